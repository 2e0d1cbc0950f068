"""The bound on the bytes of requests that have not come in full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

import pytest

from store.serving import arrivals
from store.serving.arrivals import COUNTED, LOOKAHEAD_BYTES, Arrivals, AwaitedRequest
from store.serving.failure import CallError, Code
from store.serving.sockets import Connection
from tests.support.polling import settle
from tests.support.virtual_time import virtual_time


def unread_bytes(requests: Arrivals) -> int:
    return sum(each.unread_bytes for each in requests.connections.values() if each.awaited)


MIB = 1024 * 1024
PORT = 7420


class Kernel:
    """The bytes that have come over each connection that is open."""

    def __init__(self) -> None:
        self.came: dict[Connection, int] = {}
        self.asked: list[list[Connection]] = []

    async def count(self, wanted: Iterable[Connection]) -> dict[Connection, int]:
        """Count as `store.serving.sockets.ReceivedBytes` does."""
        names = list(wanted)
        self.asked.append(names)
        return {name: self.came[name] for name in names if name in self.came}


class Stream:
    """A call whose requests come when the test says so."""

    def __init__(
        self, requests: Arrivals, kernel: Kernel, connection: str, owner: str, **kind: bool
    ) -> None:
        self._requests, self._kind = requests, kind
        self._kernel = kernel
        self._connection = connection
        self._owner = owner
        self._coming: asyncio.Queue[bytes] = asyncio.Queue()
        self.task = self._read()
        kernel.came.setdefault((PORT, connection), 0)

    def sends(self, size: int) -> None:
        """Receive a part of a request."""
        self._kernel.came[PORT, self._connection] += size

    async def completes(self, size: int) -> None:
        """Receive a whole request, which is read; the next one is awaited."""
        self.sends(size)
        self._coming.put_nowait(bytes(size))
        assert await self.task == bytes(size)
        self.task = self._read()
        await asyncio.sleep(0)

    def _read(self) -> asyncio.Task[bytes]:
        coming = self._coming.get()
        return asyncio.create_task(
            read(self._requests, coming, self._connection, self._owner, **self._kind)
        )


async def read(
    requests: Arrivals,
    coming: Awaitable[bytes],
    connection: str,
    owner: str = "a",
    *,
    is_first: bool = False,
    **kind: bool,
) -> bytes:
    """Read a request."""
    return await requests.receive(
        lambda _: coming, (PORT, connection), owner, is_first=is_first, **kind
    )


async def come(size: int) -> bytes:
    """Return a request that has come."""
    return bytes(size)


async def measure(requests: Arrivals) -> None:
    """Measure, and let streams end."""
    await asyncio.sleep(0)
    await requests.measure()
    await settle()


async def test_the_caller_with_the_most_bytes_gives_way() -> None:
    kernel = Kernel()
    requests = Arrivals(10 * MIB, kernel.count)
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
    requests = Arrivals(10 * MIB, kernel.count)
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
    requests = Arrivals(10 * MIB, kernel.count)
    stream = Stream(requests, kernel, "ipv4:192.0.2.1:1", "a")
    for _ in range(100):
        await stream.completes(MIB)
        stream.sends(MIB // 2)  # headers and frames
        await measure(requests)
        assert not stream.task.done()
        # What came since the look before might be part of a request.
        assert unread_bytes(requests) <= MIB + MIB // 2 + LOOKAHEAD_BYTES
    kernel.came[PORT, "ipv4:192.0.2.1:1"] += 8 * MIB
    assert await read(requests, come(8 * MIB), "ipv4:192.0.2.1:1")
    await measure(requests)
    assert not stream.task.done()
    stream.sends(11 * MIB)
    await measure(requests)
    assert stream.task.done()
    await stop([stream])


async def test_requests_that_complete_beside_it_hide_no_part_of_another() -> None:
    kernel = Kernel()
    requests = Arrivals(10 * MIB, kernel.count)
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
    requests = Arrivals(10 * MIB, kernel.count)
    name = "ipv4:192.0.2.1:1"
    stream = Stream(requests, kernel, name, "a")
    await measure(requests)
    kernel.came[PORT, name] += 11 * MIB
    await measure(requests)
    assert stream.task.done()
    again = Stream(requests, kernel, name, "a")
    for _ in range(3):
        await measure(requests)
    assert not again.task.done()
    await stop([stream, again])


async def test_closed_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "FORGET_BEYOND", 4)
    kernel = Kernel()
    requests = Arrivals(MIB, kernel.count)
    stream = Stream(requests, kernel, "ipv4:192.0.2.1:1", "a")
    for number in range(2_000):
        assert await read(requests, come(100), f"ipv4:192.0.2.3:{number}")
        if number % 100 == 0:
            await measure(requests)
    await measure(requests)
    kernel.asked.clear()
    for number in range(2_000, 2_020):
        assert await read(requests, come(100), f"ipv4:192.0.2.3:{number}")
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

    class Measured(Arrivals):
        async def measure(self) -> list[int]:
            times_s.append(loop.time())
            return []

    incomplete, kernel = Measured(), Kernel()
    run = asyncio.create_task(incomplete.run())
    await asyncio.sleep(3_600)
    assert times_s == []
    began_s = loop.time()
    silent = Stream(incomplete, kernel, "ipv4:192.0.2.1:1", "peer")
    await asyncio.sleep(2 * arrivals.PAUSE_S)
    assert times_s[0] - began_s == pytest.approx(arrivals.PAUSE_S)
    await asyncio.sleep(60)
    before = len(times_s)
    assert 60 / arrivals.MAX_PAUSE_S <= before < 80 / arrivals.MAX_PAUSE_S
    begun_s = loop.time()
    calling = Stream(incomplete, kernel, "ipv4:192.0.2.2:1", "caller")
    await asyncio.sleep(2 * arrivals.PAUSE_S)
    assert times_s[before] - begun_s < 1.5 * arrivals.PAUSE_S
    await stop([silent, calling])
    peer = Stream(incomplete, kernel, "ipv4:192.0.2.3:1", "peer", is_peer=True)
    before = len(times_s)
    await asyncio.sleep(60)
    assert (
        60 / arrivals.MAX_PEERS_PAUSE_S <= len(times_s) - before < 80 / arrivals.MAX_PEERS_PAUSE_S
    )
    await stop([peer])
    measured = len(times_s)
    await asyncio.sleep(3_600)
    assert len(times_s) <= measured + 2
    run.cancel()


@virtual_time
async def test_a_first_request_has_a_limit_of_time_and_later_ones_have_none() -> None:
    requests, kernel = Arrivals(count=Kernel().count), Kernel()
    run = asyncio.create_task(requests.run())
    stream = Stream(requests, kernel, "ipv4:192.0.2.1:1", "a")
    late = Stream(requests, kernel, "ipv4:192.0.2.2:1", "a", is_first=True).task
    await asyncio.sleep(arrivals.REQUEST_TIMEOUT_S - 1)
    assert not late.done()
    await asyncio.sleep(2)
    with pytest.raises(CallError, match="within 60 s") as refused:
        await late
    assert refused.value.code is Code.DEADLINE_EXCEEDED
    await asyncio.sleep(3_600)
    assert not stream.task.done()
    await stop([stream])
    run.cancel()


async def test_calls_without_a_first_request_are_bounded_in_number() -> None:
    kernel = Kernel()
    requests = Arrivals(10 * MIB, kernel.count)
    most = 10 * MIB // arrivals.SILENT_BYTES
    crowd = [
        Stream(requests, kernel, f"ipv4:192.0.2.1:{n % 4}", "b", is_first=True) for n in range(most)
    ]
    alone = Stream(requests, kernel, "ipv4:192.0.2.2:1", "a", is_first=True)
    await measure(requests)
    assert not any(each.task.done() for each in (*crowd, alone)), "they may come at once"
    await measure(requests)
    assert sum(each.task.done() for each in crowd) == most // 4
    assert not alone.task.done()
    await stop([*crowd, alone])


async def test_strangers_have_a_smaller_bound_and_give_way_first() -> None:
    kernel = Kernel()
    requests = Arrivals(count=kernel.count)
    strangers = [
        Stream(requests, kernel, f"ipv4:192.0.2.1:{n}", "x", is_stranger=True, is_first=True)
        for n in range(4)
    ]
    client = Stream(requests, kernel, "ipv4:192.0.2.2:1", "client")
    await measure(requests)
    client.sends(16 * MIB)
    for each in strangers:
        each.sends(15 * MIB)
    await measure(requests)
    assert sum(each.task.done() for each in strangers) == 3
    assert not client.task.done()
    await stop([*strangers, client])


async def test_bytes_that_are_counted_as_they_come_need_no_kernel() -> None:
    kernel = Kernel()
    requests = Arrivals(10 * MIB, kernel.count)

    async def receive(request: AwaitedRequest) -> None:
        await requests.came(request, 6 * MIB)
        await asyncio.Event().wait()

    tasks = [asyncio.create_task(requests.receive(receive, (COUNTED, name), name)) for name in "ab"]
    await settle()
    assert sum(task.done() for task in tasks) == 1, "at once"
    assert requests.counted_bytes == 6 * MIB
    await measure(requests)
    assert requests.counted_bytes == 6 * MIB
    assert sum(task.done() for task in tasks) == 1
    assert not kernel.asked
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not requests.connections
    assert requests.counted_bytes == 0


async def test_a_request_whose_last_part_passes_the_bound_is_refused() -> None:
    requests = Arrivals(10 * MIB)

    async def receive(request: AwaitedRequest) -> None:
        await requests.came(request, 11 * MIB)

    with pytest.raises(CallError):
        await asyncio.create_task(requests.receive(receive, (COUNTED, "a"), "a"))
    assert requests.counted_bytes == 0
