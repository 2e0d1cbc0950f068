"""The network of the demo: loopback proxies, which carry everything or lose everything.

Whoever calls a node does so through a `Wire`, whose address stays when the node is started again on
other ports. A wire is open, closed (connections are broken, new ones refused), or drops: bytes are
read and thrown away, new connections stay without an answer, and nobody is told. A connection that
has lost bytes is broken when the wire is opened again, since what was on it is gone for good.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from demo.tasks import Tasks

_CHUNK_BYTES: Final = 64 * 1024


class State(Enum):
    """What a wire does with what is sent."""

    OPEN = "open"
    CLOSED = "closed"
    DROPPING = "dropping"


class Wire:
    """A port of 127.0.0.1 that stands for another; ``target`` may change, and may be unset."""

    def __init__(self) -> None:
        self.target = ""
        self.address = ""
        self.dropped_bytes = 0
        self._state = State.OPEN
        self._server: asyncio.Server | None = None
        self._connections = Tasks()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> Wire:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def close(self) -> None:
        """Break everything, and listen no more."""
        if self._server is not None:
            self._server.close()
        self._abort()
        await self._connections.stop()

    def set(self, state: State) -> None:
        """Carry on, break, or drop from now on."""
        if self._state is not State.OPEN or state is State.CLOSED:
            self._abort()
        self._state = state

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.adopt(task)
        if self._state is State.CLOSED:
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
        if self._state is State.DROPPING:
            await self._pump(reader, None)
            return
        host, _, port = self.target.rpartition(":")
        if not host:
            return
        there, back = await asyncio.open_connection(host, int(port))
        self._writers.add(back)
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        try:
            # Either direction's end is the end of both: gRPC does not use half a connection.
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(back)
            back.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if writer is None or self._state is State.DROPPING:
                self.dropped_bytes += len(data)
                continue
            writer.write(data)
            await writer.drain()


class Network:
    """All wires: one for each pair of nodes that call each other, and those of clients."""

    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], Wire] = {}
        self._wires: list[tuple[str, str, Wire]] = []
        self._ready: dict[str, dict[str, str]] = {}

    async def peer_wire(self, caller: str, callee: str) -> Wire:
        """The wire by which one node calls another."""
        wire = await self._wire(callee, "peer")
        self._peers[caller, callee] = wire
        return wire

    async def client_wire(self, node: str, listener: str = "listen") -> Wire:
        """A new wire by which clients, or operators (``admin``), reach a node."""
        return await self._wire(node, listener)

    def moved(self, node: str, ready: dict[str, str]) -> None:
        """A node serves, at the addresses of its ready line."""
        self._ready[node] = ready
        for callee, listener, wire in self._wires:
            if callee == node:
                wire.target = ready[listener]

    def node_at(self, address: str | None) -> str:
        """The node that an address leads to; empty where it leads nowhere."""
        return next((node for node, _, wire in self._wires if wire.address == address), "")

    def cut_off(self, node: str) -> None:
        """Drop all that a node and its peers send each other."""
        for ends, wire in self._peers.items():
            if node in ends:
                wire.set(State.DROPPING)

    def heal(self) -> None:
        """Let peers reach each other again."""
        for wire in self._peers.values():
            wire.set(State.OPEN)

    @property
    def dropped_bytes(self) -> int:
        """Bytes between peers that were lost so far."""
        return sum(wire.dropped_bytes for wire in self._peers.values())

    async def close(self) -> None:
        """Break everything."""
        for _, _, wire in self._wires:
            await wire.close()

    async def _wire(self, callee: str, listener: str) -> Wire:
        wire = await Wire().open()
        wire.target = self._ready.get(callee, {}).get(listener, "")
        self._wires.append((callee, listener, wire))
        return wire
