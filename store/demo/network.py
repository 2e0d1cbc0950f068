"""The network of the demo: loopback proxies, which carry everything or lose everything.

Whoever calls a node does so through a `Wire`, whose address stays when the node is started again on
other ports. A wire is open, closed (connections are broken, new ones refused), or drops: bytes are
read and thrown away, new connections stay without an answer, and nobody is told. A connection that
has lost bytes is broken when the wire is opened again, since what was on it is gone for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import Enum
from typing import Final

from store.demo.tasks import Tasks

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
        self.state = State.OPEN
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
        if state is State.CLOSED or self.state is State.DROPPING:
            self._abort()
        self.state = state

    def _abort(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.start(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state is State.CLOSED:
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
        if self.state is State.DROPPING:
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
            if writer is None or self.state is State.DROPPING:
                continue
            writer.write(data)
            await writer.drain()


class Network:
    """All wires: of nodes that call each other, of participants, and of those who look on.

    A fault splits it: one node and the participants behind it on one side, all others on the other.
    """

    def __init__(self) -> None:
        self._peers: dict[tuple[str, str], Wire] = {}
        self._people: dict[tuple[str, str], Wire] = {}
        self._wires: list[tuple[str, str, Wire]] = []
        self._ready: dict[str, dict[str, str]] = {}

    async def peer_wire(self, caller: str, callee: str) -> Wire:
        """The wire by which one node calls another."""
        wire = self._peers[caller, callee] = await self.wire(callee, "peer")
        return wire

    async def person_wire(self, person: str, node: str) -> Wire:
        """The wire by which a participant reaches a node."""
        wire = self._people[person, node] = await self.wire(node)
        return wire

    async def wire(self, node: str, listener: str = "listen") -> Wire:
        """A wire to a node that no fault touches; ``listener`` is its name in the ready line."""
        wire = await Wire().open()
        wire.target = self._ready.get(node, {}).get(listener, "")
        self._wires.append((node, listener, wire))
        return wire

    def moved(self, node: str, ready: dict[str, str]) -> None:
        """A node serves, at the addresses of its ready line."""
        self._ready[node] = ready
        for callee, listener, wire in self._wires:
            if callee == node:
                wire.target = ready[listener]

    def node_at(self, address: str | None) -> str:
        """The node that an address leads to; empty where it leads nowhere."""
        return next((node for node, _, wire in self._wires if wire.address == address), "")

    def split(self, node: str, people: Collection[str]) -> None:
        """Cut off a node with these people: between peers everything is lost without a word."""
        for ends, wire in self._peers.items():
            if node in ends:
                wire.set(State.DROPPING)
        for person, _ in self._people:
            self.place(person, node, inside=person in people)

    def place(self, person: str, cut_off: str, *, inside: bool) -> None:
        """Put somebody on one side of the split: what is on the other can not be reached."""
        for (who, node), wire in self._people.items():
            if who == person:
                wire.set(State.OPEN if (node == cut_off) == inside else State.CLOSED)

    def heal(self) -> None:
        """Let everybody reach everybody."""
        for wire in (*self._peers.values(), *self._people.values()):
            wire.set(State.OPEN)

    async def close(self) -> None:
        """Break everything."""
        for _, _, wire in self._wires:
            await wire.close()
