"""The bound on the bytes of requests that have not come in full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from store.rpc import request_memory
from store.rpc.listeners import LOOKAHEAD_BYTES
from store.rpc.request_memory import IncompleteRequests
from store.serving.drain import Endable
from store.serving.failure import CallError, Code
from tests.support.virtual_time import virtual_time


class Caller:
    """The context of a call whose request has come."""

    def __init__(self, request: bytes) -> None:
        self._request = request

    async def read(self) -> object:
        """Return the request."""
        return self._request


def unread_bytes(requests: IncompleteRequests) -> int:
    return sum(each.unread_bytes for each in requests._connections.values() if each.awaited)


MIB = 1024 * 1024


class Kernel:
    """The bytes that have come over each connection that is open."""

    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.asked: list[list[str]] = []

    async def count(self, wanted: Iterable[str]) -> dict[str, int]:
        """Count as `store.serving.connections.ReceivedBytes` does."""
        names = list(wanted)
        self.asked.append(names)
        return {name: self.came[name] for name in names if name in self.came}


class Stream:
    """A call whose requests come when the test says so."""

    def __init__(
        self, requests: IncompleteRequests, kernel: Kernel, connection: str, owner: str
    ) -> None:
        self._requests = requests
        self._kernel = kernel
        self._connection = connection
        self._owner = owner
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = self._read()
        kernel.came.setdefault(connection, 0)

    async def read(self) -> bytes:
        """Return the next request."""
        return await self._coming.get()

    def sends(self, size: int) -> None:
        """Receive a part of a request."""
        self._kernel.came[self._connection] += size

    async def completes(self, size: int) -> None:
        """Receive a whole request, which is read; the next one is awaited."""
        self.sends(size)
        self._coming.put_nowait(bytes(size))
        assert await self.task == bytes(size)
        self.task = self._read()
        await asyncio.sleep(0)

    def _read(self) -> asyncio.Task[bytes | None]:
        return asyncio.create_task(read(self._requests, self, self._connection, self._owner))


async def read(
    requests: IncompleteRequests, context: object, connection: str, owner: str = "a"
) -> bytes | None:
    """Read a request."""
    with Endable() as block:
        call = SimpleNamespace(context=context, connection=connection)
        return await requests.read(cast("Any", call), owner, block)


async def measure(requests: IncompleteRequests) -> None:
    """Measure, and let streams end."""
    await asyncio.sleep(0)
    await requests.measure()
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_caller_with_the_most_bytes_gives_way() -> None:
    kernel = Kernel()
    requests = IncompleteRequests(10 * MIB, kernel.count)
    crowd = [Stream(requests, kernel, f"ipv4:192.0.2.1:{n}", "crowd") for n in range(8)]
    large = Stream(requests, kernel, "ipv4:192.0.2.2:1", "honest")
    large.sends(9 * MIB)
    await measure(requests)
    assert not large.task.done()
    for each in crowd:
        each.sends(2 * MIB)
    await measure(requests)
    ended = [each for each in crowd if each.task.done()]
    assert len(ended) == 8
    failure = ended[0].task.exception()
    assert isinstance(failure, CallError)
    assert failure.code is Code.UNAVAILABLE
    assert failure.retry
    assert not large.task.done()
    assert unread_bytes(requests) == 9 * MIB
    await stop([large])


async def test_of_one_caller_the_connection_that_stands_still_goes_first() -> None:
    kernel = Kernel()
    requests = IncompleteRequests(10 * MIB, kernel.count)
    stalled, busy = (Stream(requests, kernel, f"ipv4:192.0.2.1:{n}", "a") for n in range(2))
    stalled.sends(4 * MIB)
    busy.sends(5 * MIB)
    await measure(requests)
    busy.sends(2 * MIB)
    await measure(requests)
    assert stalled.task.done()
    assert not busy.task.done()
    await stop([stalled, busy])


async def test_requests_that_were_read_and_frames_do_not_count() -> None:
    kernel = Kernel()
    requests = IncompleteRequests(10 * MIB, kernel.count)
    stream = Stream(requests, kernel, "ipv4:192.0.2.1:1", "a")
    for _ in range(100):
        await stream.completes(MIB)
        stream.sends(MIB // 2)  # headers and frames
        await measure(requests)
        assert not stream.task.done()
        # What came since the look before might be part of a request.
        assert unread_bytes(requests) <= MIB + MIB // 2 + LOOKAHEAD_BYTES
    kernel.came["ipv4:192.0.2.1:1"] += 8 * MIB
    assert await read(requests, Caller(bytes(8 * MIB)), "ipv4:192.0.2.1:1")
    await measure(requests)
    assert not stream.task.done()
    stream.sends(11 * MIB)
    await measure(requests)
    assert stream.task.done()
    await stop([stream])


async def test_requests_that_complete_beside_it_hide_no_part_of_another() -> None:
    kernel = Kernel()
    requests = IncompleteRequests(10 * MIB, kernel.count)
    name = "ipv4:192.0.2.1:1"
    slow, other = Stream(requests, kernel, name, "a"), Stream(requests, kernel, name, "a")
    slow.sends(6 * MIB)
    await measure(requests)
    for _ in range(5):
        await other.completes(MIB)
        await measure(requests)
    assert unread_bytes(requests) >= 6 * MIB
    slow.sends(5 * MIB)
    await measure(requests)
    assert slow.task.done()
    await stop([slow, other])


async def test_a_stream_that_gave_way_by_mistake_is_not_ended_again() -> None:
    """Count much traffic that is no request only once, as slow."""
    kernel = Kernel()
    requests = IncompleteRequests(10 * MIB, kernel.count)
    name = "ipv4:192.0.2.1:1"
    stream = Stream(requests, kernel, name, "a")
    await measure(requests)
    kernel.came[name] += 11 * MIB
    await measure(requests)
    assert stream.task.done()
    again = Stream(requests, kernel, name, "a")
    for _ in range(3):
        await measure(requests)
    assert not again.task.done()
    await stop([stream, again])


async def test_closed_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "FORGET_BEYOND", 4)
    kernel = Kernel()
    requests = IncompleteRequests(MIB, kernel.count)
    stream = Stream(requests, kernel, "ipv4:192.0.2.1:1", "a")
    for number in range(2_000):
        assert await read(requests, Caller(bytes(100)), f"ipv4:192.0.2.3:{number}")
        if number % 100 == 0:
            await measure(requests)
    await measure(requests)
    kernel.asked.clear()
    for number in range(2_000, 2_020):
        assert await read(requests, Caller(bytes(100)), f"ipv4:192.0.2.3:{number}")
    await measure(requests)
    assert max(map(len, kernel.asked)) < 200
    await stop([stream])


async def stop(streams: Iterable[Stream]) -> None:
    """End the streams that wait."""
    tasks = [each.task for each in streams]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual_time
async def test_connections_are_measured_only_while_they_await_a_request() -> None:
    times_s: list[float] = []
    loop = asyncio.get_running_loop()

    class Measured(IncompleteRequests):
        async def measure(self) -> None:
            times_s.append(loop.time())

    incomplete, kernel = Measured(), Kernel()
    run = asyncio.create_task(incomplete.run())
    await asyncio.sleep(3_600)
    assert times_s == []
    began_s = loop.time()
    silent = Stream(incomplete, kernel, "ipv4:192.0.2.1:1", "peer")
    await asyncio.sleep(2 * request_memory.PAUSE_S)
    assert times_s[0] - began_s == pytest.approx(request_memory.PAUSE_S)
    await asyncio.sleep(60)
    before = len(times_s)
    assert 60 / request_memory.MAX_PAUSE_S <= before < 80 / request_memory.MAX_PAUSE_S
    begun_s = loop.time()
    calling = Stream(incomplete, kernel, "ipv4:192.0.2.2:1", "caller")
    await asyncio.sleep(2 * request_memory.PAUSE_S)
    assert times_s[before] - begun_s < 1.5 * request_memory.PAUSE_S
    await stop([silent, calling])
    measured = len(times_s)
    await asyncio.sleep(3_600)
    assert len(times_s) <= measured + 2
    run.cancel()
