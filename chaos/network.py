"""The network of a run: loopback proxies that carry, delay, refuse or lose everything.

Each caller reaches a node through a `Wire`, whose address stays when the node starts again on other
ports. A wire is open, closed (connections are reset, new ones refused), or lossy: bytes are read
and thrown away, new connections get no answer, and no error is reported. Connections that lost
bytes are reset when the wire opens again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from typing import Final

from chaos.tasks import Tasks

PEER: Final = "peer"
"""The listener for peers, by its name in the ready line."""

_CHUNK_BYTES: Final = 64 * 1024


class WireState(Enum):
    """The treatment of bytes by a wire."""

    OPEN = "open"
    CLOSED = "closed"
    LOSSY = "lossy"


class Wire:
    """A port of 127.0.0.1 that stands for another; ``target`` may change, and may be unset.

    ``delay_s`` is the time for which each portion of bytes is held back, in each direction.
    """

    def __init__(self, caller: str = "", node: str = "", listener: str = "") -> None:
        self.caller = caller
        self.node = node
        self.listener = listener
        self.target = ""
        self.address = ""
        self.state = WireState.OPEN
        self.delay_s = 0.0
        self._server: asyncio.Server | None = None
        self._connections = Tasks()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> Wire:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def close(self) -> None:
        """Reset all connections, and stop listening."""
        if self._server is not None:
            self._server.close()
        self._abort()
        await self._connections.stop()

    def set(self, state: WireState) -> None:
        """Change the treatment of bytes."""
        if state is WireState.CLOSED or self.state is WireState.LOSSY:
            self._abort()
        self.state = state

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state is WireState.CLOSED:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self._carry(reader, writer)
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state is WireState.LOSSY:
            await self._pump(reader, writer)
            return
        if not self.target:
            return
        there, back = await asyncio.open_connection(*self.target.rsplit(":", 1))
        self._writers.add(back)
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        try:
            # gRPC does not use half a connection: the end of one direction ends both.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(back)
            back.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if self.state is not WireState.LOSSY:
                writer.write(data)
                await writer.drain()


class Network:
    """The wires between nodes, from clients to nodes, and of observers: callers without a name.

    Faults befall the wires of peers and clients, never those of observers.
    """

    def __init__(self) -> None:
        self._wires: list[Wire] = []
        self._ready: dict[str, dict[str, str]] = {}

    async def open_wire(self, node: str, caller: str = "", listener: str = "listen") -> Wire:
        """Open a caller's wire to a node; ``listener`` is its name in the ready line."""
        wire = await Wire(caller, node, listener).open()
        wire.target = self._ready.get(node, {}).get(listener, "")
        self._wires.append(wire)
        return wire

    async def open_peer_wires(self, caller: str, nodes: Iterable[str]) -> dict[str, str]:
        """Open the wires by which a node calls all others, and return their addresses by node."""
        others = [each for each in nodes if each != caller]
        return {each: (await self.open_wire(each, caller, PEER)).address for each in others}

    def move(self, node: str, ready: dict[str, str]) -> None:
        """Connect all wires of a node to the addresses of its ready line."""
        self._ready[node] = ready
        for wire in self._wires:
            if wire.node == node:
                wire.target = ready[wire.listener]

    def find_node(self, address: str | None) -> str:
        """Return the node that an address of a wire leads to; empty if it leads nowhere."""
        return next((each.node for each in self._wires if each.address == address), "")

    def wires_of(self, node: str, *, clients: bool) -> Iterator[Wire]:
        """Yield the wires of a node to and from its peers, and with ``clients`` from clients."""
        for wire in self._wires:
            if wire.listener == PEER:
                if node in (wire.caller, wire.node):
                    yield wire
            elif clients and wire.caller and wire.node == node:
                yield wire

    def split(self, node: str, clients: Collection[str]) -> None:
        """Separate a node and some clients from all others; peers get no error."""
        for wire in self.wires_of(node, clients=False):
            wire.set(WireState.LOSSY)
        for client in {wire.caller for wire in self._wires}:
            self.place(client, node, inside=client in clients)

    def place(self, client: str, cut_off: str, *, inside: bool) -> None:
        """Let a client reach the node that is cut off alone, or all others."""
        for wire in self._wires:
            if client and wire.caller == client and wire.listener != PEER:
                is_open = (wire.node == cut_off) == inside
                wire.set(WireState.OPEN if is_open else WireState.CLOSED)

    def heal(self) -> None:
        """End all faults."""
        for wire in self._wires:
            wire.delay_s = 0.0
            wire.set(WireState.OPEN)

    async def close(self) -> None:
        """Close all wires."""
        for wire in self._wires:
            await wire.close()
