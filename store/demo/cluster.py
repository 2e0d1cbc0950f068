"""The nodes: their certificates, their peers, and how they are reached."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import trustme

from store.demo.network import Network
from store.demo.node import NodeProcess
from storenode.connection.channel import TlsIdentity

NODES: Final = ("n1", "n2", "n3")
DOMAIN: Final = "demo.storenode"
_LIFETIME: Final = timedelta(days=1)
"""Of certificates; the authority's key is in no file."""


class Cluster:
    """Three nodes with a database each, that are all peers of each other."""

    def __init__(self, directory: Path, network: Network, without: Collection[str]) -> None:
        self._directory = directory
        self._network = network
        self._without = without
        self._authority = trustme.CA()
        self._ca = directory / "ca.pem"
        self._ca.write_bytes(self._authority.cert_pem.bytes())
        self.nodes: dict[str, NodeProcess] = {}
        self.addresses: dict[str, str] = {}
        self.admin_addresses: dict[str, str] = {}

    @property
    def tls(self) -> TlsIdentity:
        """A client's certificate, and the authority that it trusts; another one each time."""
        return self._issue(f"client.{DOMAIN}")

    async def start(self) -> None:
        """Start all nodes, side by side.

        Raises:
            NodeFailed: one did not start.
        """
        for name in NODES:
            self.addresses[name] = (await self._network.wire(name)).address
            self.admin_addresses[name] = (await self._network.wire(name, "admin")).address
            self.nodes[name] = NodeProcess(name, self._directory, await self._options(name))
        starting = (self.serve(name) for name in NODES)
        for result in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def serve(self, name: str) -> None:
        """Start one node, and lead the network to it."""
        node = self.nodes[name]
        await node.start()
        self._network.moved(name, node.ready)

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
            *("--tls-cert", str(cert), "--tls-key", str(key)),
            *("--tls-ca", str(self._ca), "--client-ca", str(self._ca)),
            *("--sync-interval", "0" if "reconciliation" in self._without else "5s"),
            *("--sync-offset", "2s"),
            *("--gossip", "off" if "gossip" in self._without else "on"),
        ]
        for other in NODES:
            if other != name:
                wire = await self._network.peer_wire(name, other)
                options += ["--allow-peer", node_id(other)]
                options += ["--peer", f"{node_id(other)}@{wire.address}"]
        return options

    def _issue(self, name: str) -> TlsIdentity:
        """A certificate for a name and 127.0.0.1, its key, and the authority to trust."""
        until = datetime.now(UTC) + _LIFETIME
        issued = self._authority.issue_cert(name, "127.0.0.1", not_after=until)
        return TlsIdentity(
            ca=self._authority.cert_pem.bytes(),
            cert=issued.cert_chain_pems[0].bytes(),
            key=issued.private_key_pem.bytes(),
        )


def node_id(name: str) -> str:
    """The ID of a node: the DNS name of its certificate."""
    return f"{name}.{DOMAIN}"


def short_name(text: str) -> str:
    """The name of a node whose ID, or ID@HOST:PORT, is given."""
    return text.partition("@")[0].removesuffix(f".{DOMAIN}")
