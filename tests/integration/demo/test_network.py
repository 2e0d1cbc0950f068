"""Wires between real sockets: they carry, refuse, and lose everything without a word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from store.demo.network import Network, State, Wire

PATIENCE_S = 60.0


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """The address of a server that sends back what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@asynccontextmanager
async def wired() -> AsyncIterator[Wire]:
    async with echo() as address, asyncio.timeout(PATIENCE_S):
        wire = await Wire().open()
        wire.target = address
        yield wire
        await wire.close()


class Caller:
    """A connection through a wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def on(cls, wire: Wire) -> Caller:
        host, _, port = wire.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def says(self, text: bytes) -> bytes:
        """Say something; what comes back, nothing if the connection is broken."""
        self.writer.write(text)
        try:
            return await self.reader.readexactly(len(text))
        except (OSError, asyncio.IncompleteReadError):
            return b""


async def test_an_open_wire_carries_everything() -> None:
    async with wired() as wire:
        caller = await Caller.on(wire)
        text = bytes(range(256)) * 4_096
        assert await caller.says(text) == text


async def test_a_closed_wire_breaks_and_refuses() -> None:
    async with wired() as wire:
        caller = await Caller.on(wire)
        assert await caller.says(b"one") == b"one"
        wire.set(State.CLOSED)
        assert await caller.says(b"two") == b""
        assert await (await Caller.on(wire)).says(b"three") == b""
        wire.set(State.OPEN)
        assert await (await Caller.on(wire)).says(b"four") == b"four"


async def test_a_dropping_wire_says_nothing_and_its_connections_do_not_come_back() -> None:
    async with wired() as wire:
        before = await Caller.on(wire)
        assert await before.says(b"one") == b"one"
        wire.set(State.DROPPING)
        during = await Caller.on(wire)
        # Else it might be served only when the wire is open again. The third: the first has two.
        while len(wire._writers) < 3:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(0)
        waiting = [asyncio.create_task(caller.says(b"two")) for caller in (before, during)]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        assert not done
        wire.set(State.OPEN)
        assert await asyncio.gather(*waiting) == [b"", b""]
        assert await (await Caller.on(wire)).says(b"three") == b"three"


async def test_a_wire_to_nobody_breaks() -> None:
    async with wired() as wire:
        wire.target = ""
        assert await (await Caller.on(wire)).says(b"one") == b""


@pytest.mark.parametrize(
    ("person", "node", "state"),
    [
        ("inside", "n3", State.OPEN),
        ("inside", "n1", State.CLOSED),
        ("outside", "n3", State.CLOSED),
        ("outside", "n1", State.OPEN),
    ],
)
async def test_a_split_has_two_sides(person: str, node: str, state: State) -> None:
    network = Network()
    for who in ("inside", "outside"):
        for name in ("n1", "n3"):
            await network.person_wire(who, name)
    peers = [await network.peer_wire(*pair) for pair in (("n1", "n3"), ("n3", "n1"), ("n1", "n2"))]
    wire = await network.person_wire(person, node)
    network.split("n3", ["inside"])
    assert wire.state is state
    assert [peer.state for peer in peers] == [State.DROPPING, State.DROPPING, State.OPEN]
    network.place(person, "n3", inside=person == "outside")
    assert wire.state is (State.OPEN if state is State.CLOSED else State.CLOSED)
    network.heal()
    assert {each.state for each in (wire, *peers)} == {State.OPEN}
    await network.close()
