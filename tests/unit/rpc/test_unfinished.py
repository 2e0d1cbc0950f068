"""The budget of what streams hold of requests that have not come in full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from store.rpc import unfinished
from store.rpc.limits import LOOKAHEAD_BYTES
from store.rpc.unfinished import Unfinished
from store.serving.failure import CallFailure, Code

MIB = 1024 * 1024


class Kernel:
    """What has come over each connection that is open."""

    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.asked: list[list[str]] = []

    def count(self, wanted: Iterable[str]) -> dict[str, int]:
        """As `store.serving.sockets.Arrivals.count` does."""
        names = list(wanted)
        self.asked.append(names)
        return {name: self.came[name] for name in names if name in self.came}


class Stream:
    """A call whose requests come when the test says so."""

    def __init__(self, places: Unfinished, kernel: Kernel, connection: str, owner: str) -> None:
        self._places = places
        self._kernel = kernel
        self._connection = connection
        self._owner = owner
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = self._read()
        kernel.came.setdefault(connection, 0)

    def peer(self) -> str:
        """The name of the connection."""
        return self._connection

    async def read(self) -> bytes:
        """The next request."""
        return await self._coming.get()

    def sends(self, size: int) -> None:
        """A part of a request comes."""
        self._kernel.came[self._connection] += size

    async def completes(self, size: int) -> None:
        """So many bytes come and make a request, which is read; the next one is awaited."""
        self.sends(size)
        self._coming.put_nowait(bytes(size))
        assert await self.task == bytes(size)
        self.task = self._read()
        await asyncio.sleep(0)

    def _read(self) -> asyncio.Task[bytes | None]:
        return asyncio.create_task(self._places.next(cast("Any", self), self._owner))


async def read(places: Unfinished, connection: str, size_bytes: int) -> None:
    """Read a request that has come in full."""
    async with places.awaiting(connection, "a") as known:
        known.read_bytes += size_bytes


async def look(places: Unfinished) -> None:
    """Look, and let streams end."""
    await asyncio.sleep(0)
    await places.look()
    for _ in range(4):
        await asyncio.sleep(0)


async def test_streams_that_send_nothing_stay_however_many_they_are() -> None:
    kernel = Kernel()
    places = Unfinished(MIB, kernel.count)
    streams = [Stream(places, kernel, f"ipv4:192.0.2.1:{n}", "a") for n in range(500)]
    for _ in range(3):
        await look(places)
    assert not any(each.task.done() for each in streams)
    assert places.held_bytes == 0
    await stop(streams)


async def test_who_holds_most_gives_way_and_others_go_on() -> None:
    kernel = Kernel()
    places = Unfinished(10 * MIB, kernel.count)
    crowd = [Stream(places, kernel, f"ipv4:192.0.2.1:{n}", "crowd") for n in range(8)]
    large = Stream(places, kernel, "ipv4:192.0.2.2:1", "honest")
    large.sends(9 * MIB)
    await look(places)
    assert not large.task.done()
    for each in crowd:
        each.sends(2 * MIB)
    await look(places)
    ended = [each for each in crowd if each.task.done()]
    assert len(ended) == 8
    failure = ended[0].task.exception()
    assert isinstance(failure, CallFailure)
    assert failure.code is Code.UNAVAILABLE
    assert failure.retry
    assert not large.task.done()
    assert places.held_bytes == 9 * MIB
    await stop([large])


async def test_of_one_caller_the_connection_that_stands_still_goes_first() -> None:
    kernel = Kernel()
    places = Unfinished(10 * MIB, kernel.count)
    stalled, busy = (Stream(places, kernel, f"ipv4:192.0.2.1:{n}", "a") for n in range(2))
    stalled.sends(4 * MIB)
    busy.sends(5 * MIB)
    await look(places)
    busy.sends(2 * MIB)
    await look(places)
    assert stalled.task.done()
    assert not busy.task.done()
    await stop([stalled, busy])


async def test_what_was_read_and_its_frames_are_held_by_nobody() -> None:
    kernel = Kernel()
    places = Unfinished(10 * MIB, kernel.count)
    stream = Stream(places, kernel, "ipv4:192.0.2.1:1", "a")
    for _ in range(100):
        await stream.completes(MIB)
        stream.sends(MIB // 2)  # headers and frames
        await look(places)
        assert not stream.task.done()
        # What came since the look before might be part of a request.
        assert places.held_bytes <= MIB + MIB // 2 + LOOKAHEAD_BYTES
    kernel.came["ipv4:192.0.2.1:1"] += 8 * MIB
    await read(places, "ipv4:192.0.2.1:1", 8 * MIB)
    await look(places)
    assert not stream.task.done()
    stream.sends(11 * MIB)
    await look(places)
    assert stream.task.done()
    await stop([stream])


async def test_requests_that_complete_beside_it_hide_no_part_of_another() -> None:
    kernel = Kernel()
    places = Unfinished(10 * MIB, kernel.count)
    name = "ipv4:192.0.2.1:1"
    held, other = Stream(places, kernel, name, "a"), Stream(places, kernel, name, "a")
    held.sends(6 * MIB)
    await look(places)
    for _ in range(5):
        await other.completes(MIB)
        await look(places)
    assert places.held_bytes >= 6 * MIB
    held.sends(5 * MIB)
    await look(places)
    assert held.task.done()
    await stop([held, other])


async def test_a_stream_that_gave_way_by_mistake_is_not_ended_again() -> None:
    """Much traffic that is no request counts once as held."""
    kernel = Kernel()
    places = Unfinished(10 * MIB, kernel.count)
    name = "ipv4:192.0.2.1:1"
    stream = Stream(places, kernel, name, "a")
    await look(places)
    kernel.came[name] += 11 * MIB
    await look(places)
    assert stream.task.done()
    again = Stream(places, kernel, name, "a")
    for _ in range(3):
        await look(places)
    assert not again.task.done()
    await stop([stream, again])


async def test_closed_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished, "FORGET_BEYOND", 4)
    kernel = Kernel()
    places = Unfinished(MIB, kernel.count)
    stream = Stream(places, kernel, "ipv4:192.0.2.1:1", "a")
    for number in range(2_000):
        await read(places, f"ipv4:192.0.2.3:{number}", 100)
        if number % 100 == 0:
            await look(places)
    await look(places)
    kernel.asked.clear()
    for number in range(2_000, 2_020):
        await read(places, f"ipv4:192.0.2.3:{number}", 100)
    await look(places)
    assert max(map(len, kernel.asked)) < 200
    await stop([stream])


async def stop(streams: Iterable[Stream]) -> None:
    """End what waits."""
    tasks = [each.task for each in streams]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
