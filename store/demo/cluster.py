"""The nodes: their certificates, their peers, and how they are reached."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Final

from store.demo.certificates import Authority
from store.demo.network import Network
from store.demo.node import NodeProcess
from storenode.connection.channel import TlsIdentity

NODES: Final = ("n1", "n2", "n3")
DOMAIN: Final = "demo.storenode"


class Cluster:
    """Three nodes with a database each, that are all peers of each other."""

    def __init__(self, directory: Path, network: Network, without: Collection[str]) -> None:
        self._directory = directory
        self._network = network
        self._without = without
        self._authority = Authority(directory)
        self.nodes: dict[str, NodeProcess] = {}
        self.addresses: dict[str, str] = {}
        self.admin_addresses: dict[str, str] = {}

    @property
    def tls(self) -> TlsIdentity:
        """A client's certificate, and the authority that it trusts; another one each time."""
        return self._authority.client(f"client.{DOMAIN}")

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
        files = self._authority.files(node_id(name))
        options = [
            *("--tls-cert", str(files.cert), "--tls-key", str(files.key)),
            *("--tls-ca", str(files.ca), "--client-ca", str(files.ca)),
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


def node_id(name: str) -> str:
    """The ID of a node: the DNS name of its certificate."""
    return f"{name}.{DOMAIN}"


def short_name(text: str) -> str:
    """The name of a node whose ID, or ID@HOST:PORT, is given."""
    return text.partition("@")[0].removesuffix(f".{DOMAIN}")
