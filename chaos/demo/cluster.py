"""The nodes of the demo: their certificates, their peers, and their addresses."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
import trustme

from chaos.checker.clients import Endpoint
from chaos.network import Network
from chaos.node import NodeProcess
from storenode.connection.channel import TlsIdentity

NODES: Final = ("n1", "n2", "n3")
DOMAIN: Final = "demo.storenode"
WAYS: Final = ("gossip", "transfer", "resume")
"""Values of the label ``source`` for messages from other nodes; `transfer` is reconciliation."""

CALL_TIMEOUT_S: Final = 60.0
"""How long one answer of a node may take."""

_LIFETIME: Final = timedelta(days=1)
"""The lifetime of certificates; the authority's key is in no file."""

_STORED: Final = re.compile(
    rb'^storenode_messages_stored_total\{source="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE
)
_MAX_METRICS_BYTES: Final = 4 * 1024 * 1024


class Cluster:
    """A cluster of three nodes with a database each, which are all peers."""

    def __init__(self, directory: Path, network: Network, without: Collection[str]) -> None:
        self._directory = directory
        self._network = network
        self._without = without
        self._authority = trustme.CA()
        self._ca = directory / "ca.pem"
        self._ca.write_bytes(self._authority.cert_pem.bytes())
        self.nodes: dict[str, NodeProcess] = {}
        self.admin_addresses: dict[str, str] = {}

    @property
    def tls(self) -> TlsIdentity:
        """A new certificate of a client, its key, and the authority to trust."""
        return self._issue(f"client.{DOMAIN}")

    async def start(self) -> None:
        """Start all nodes at the same time.

        Raises:
            NodeFailedError: One did not start.
        """
        for name in NODES:
            self.admin_addresses[name] = (await self._network.open_wire(name, "admin")).address
            self.nodes[name] = NodeProcess(name, self._directory, await self._options(name))
        starting = (self.serve(name) for name in NODES)
        for result in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def serve(self, name: str) -> None:
        """Start one node, and lead its wires to it."""
        node = self.nodes[name]
        await node.start()
        self._network.move(name, node.ready)

    async def open_endpoint(self, name: str) -> Endpoint:
        """Open an observer's wire to a node, for clients with a certificate of their own."""
        wire, tls = await self._network.open_wire(name), self.tls
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        return Endpoint(wire.address, credentials)

    async def count_stored(self, name: str) -> Counter[str]:
        """Return the number of messages that a node has stored since its start, by source."""
        text = await asyncio.to_thread(_read_metrics, self.nodes[name].ready["metrics"])
        return Counter({key.decode(): int(float(value)) for key, value in _STORED.findall(text)})

    async def stop(self) -> None:
        """Stop all nodes."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    def kill(self) -> None:
        """End all nodes at once; `stop` then has nothing left to wait for."""
        for node in self.nodes.values():
            node.send_kill()

    async def _options(self, name: str) -> list[str]:
        identity = self._issue(node_id(name))
        cert, key = (self._directory / f"{name}.{kind}" for kind in ("pem", "key"))
        cert.write_bytes(identity.cert or b"")
        key.touch(mode=0o600)
        key.write_bytes(identity.key or b"")
        options = [
            *("--log-format", "text"),
            *("--tls-cert", str(cert), "--tls-key", str(key)),
            *("--tls-ca", str(self._ca), "--client-ca", str(self._ca)),
            *("--sync-interval", "0" if "reconciliation" in self._without else "5s"),
            *("--sync-offset", "2s"),
            *("--gossip", "off" if "gossip" in self._without else "on"),
        ]
        for other in NODES:
            if other != name:
                wire = await self._network.open_peer_wire(name, other)
                options += ["--allow-peer", node_id(other)]
                options += ["--peer", f"{node_id(other)}@{wire.address}"]
        return options

    def _issue(self, name: str) -> TlsIdentity:
        """Make a certificate for a name and 127.0.0.1."""
        until = datetime.now(UTC) + _LIFETIME
        issued = self._authority.issue_cert(name, "127.0.0.1", not_after=until)
        return TlsIdentity(
            ca=self._authority.cert_pem.bytes(),
            cert=issued.cert_chain_pems[0].bytes(),
            key=issued.private_key_pem.bytes(),
        )


def node_id(name: str) -> str:
    """Return the ID of a node: the DNS name of its certificate."""
    return f"{name}.{DOMAIN}"


def short_name(text: str) -> str:
    """Return the name of a node with this ID, or ID@HOST:PORT."""
    return text.partition("@")[0].removesuffix(f".{DOMAIN}")


def _read_metrics(address: str) -> bytes:
    connection = http.client.HTTPConnection(address, timeout=CALL_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(_MAX_METRICS_BYTES)
    finally:
        connection.close()
