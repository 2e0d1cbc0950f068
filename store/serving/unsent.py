"""One budget of bytes for all answers of a node that their callers have not read yet.

gRPC takes a response and keeps it until the caller's flow control lets it leave: whoever does not
read makes the node hold pages for it. Rules:

1. A page takes its share of the budget before it is read (`Outlet.room`), and gives it back when
   gRPC has sent it. Pages begin small and double while the caller takes them quickly, so a caller
   that never reads costs little.
2. Where there is no room, the call waits. The lightest is served first: the weight is what a
   connection has taken and asked for, times the connections of its caller. A call that waits for
   `MAX_WAIT_S` is refused.
3. While a call waits, stalled readers are ended (`STALLED`), the one that has stalled longest
   first: after `STALL_S` if it is heavier than the call that waits, else after `PATIENCE_S`.
4. While the node shuts down, every reader that has stalled for `DRAIN_STALL_S` is ended: it can go
   on elsewhere after the last page that it has read.
5. What gRPC holds for an ended call stays counted until it is gone. If the caller does not take it
   within `LINGER_S` and a call still waits, or the node shuts down, its connection is closed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from operator import itemgetter
from typing import Final

from store.domain.query import DEFAULT_UNSENT_BYTES
from store.serving.failure import CallFailure, busy, over_limit, unready
from store.serving.sockets import hang_up

COPIES: Final = 3
"""How often a page is in memory while it is sent: its entries, the response, gRPC's own copy."""

FIRST_PAGE_BYTES: Final = 64 * 1024
SMALL_ANSWER_BYTES: Final = 4 * 1024
"""What is counted without waiting."""

LARGEST_SHARE: Final = 8
"""A page takes an eighth of what is free at most, unless it has the first size."""

MAX_GROWING: Final = 8
"""Unary answers that are larger than was estimated and wait for room; further ones are refused."""

QUICK_S: Final = 0.5
SLOW_S: Final = 2.0
"""A page that is taken quicker is followed by one twice as large, a slower one by half of it."""

STALL_S: Final = 1.0
PATIENCE_S: Final = 10.0
DRAIN_STALL_S: Final = 2.0
LINGER_S: Final = 2.0
MAX_WAIT_S: Final = 30.0
CONTENDED_S: Final = 0.5
"""A shorter wait ends nobody."""

TICK_S: Final = 0.25

STALLED: Final = (
    "the answer was not read for {seconds:.0f} s while other calls waited for room among the"
    " {limit:,} bytes of unsent answers of this node: read faster, and go on after the last page"
)
DRAINING: Final = (
    "the node is shutting down, and the answer was not read for {seconds:.0f} s: go on after the"
    " last page at another node, or here later"
)
FULL: Final = (
    "limit of {limit:,} bytes of unsent answers on this node is reached: read what was asked for,"
    " and retry with backoff"
)


@dataclass(order=True, slots=True)
class _Waiting:
    weight: int
    number: int
    since_s: float = field(compare=False)
    outlet: Outlet = field(compare=False)
    size_bytes: int = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class Room:
    """Bytes of the budget for one page of ``size_bytes``; `close` gives them back."""

    __slots__ = ("_outlet", "_taken_bytes", "size_bytes")

    def __init__(self, outlet: Outlet, size_bytes: int, taken_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._outlet = outlet
        self._taken_bytes = taken_bytes

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Take what is needed, which may be more than was asked for."""
        needed = COPIES * page_bytes + beside_bytes
        self._outlet.add(needed - self._taken_bytes)
        self._taken_bytes = needed

    def close(self) -> None:
        """Give everything back; once more does nothing."""
        self._outlet.add(-self._taken_bytes)
        self._taken_bytes = 0


class Outlet:
    """What one call holds of the budget: `store.domain.ports.Outlet`."""

    __slots__ = (
        "_all",
        "_end",
        "_left_bytes",
        "_most_bytes",
        "_page_bytes",
        "caller",
        "connection",
        "ended_s",
        "held_bytes",
        "sending_s",
        "stalled_s",
    )

    def __init__(self, everything: UnsentAnswers, caller: str, connection: str) -> None:
        """Begin to count a call; `close` must follow when gRPC has done with it."""
        self.caller = caller
        self.connection = connection
        self.held_bytes = 0
        self.sending_s: float | None = None  # since when the caller has not taken what is sent
        self.ended_s: float | None = None
        self.stalled_s = 0.0
        self._all = everything
        self._left_bytes = 0  # what gRPC holds of a page that was broken off
        self._end: Callable[[], object] | None = None
        self._page_bytes = self._most_bytes = FIRST_PAGE_BYTES
        everything.outlets[self] = None
        if caller not in everything.connections:
            everything.connections[caller] = Counter()
        everything.connections[caller][connection] += 1

    async def room(self, most_bytes: int) -> Room:
        """Wait for room for a page of up to ``most_bytes``, or less if the caller is slow.

        Raises:
            CallFailure: there was none for long.
        """
        size = self._next_bytes(most_bytes)
        return Room(self, size, await self.take(COPIES * size))

    def spare_room(self, most_bytes: int) -> Room | None:
        """Room to read a page in advance; None where less than half of the budget is free."""
        size = self._next_bytes(most_bytes)
        if 2 * self._all.free_bytes < self._all.limit_bytes + COPIES * size:
            return None
        self.add(COPIES * size)
        return Room(self, size, COPIES * size)

    def _next_bytes(self, most_bytes: int) -> int:
        self._most_bytes = most_bytes
        size = min(most_bytes, self._page_bytes)
        while size > FIRST_PAGE_BYTES and COPIES * size * LARGEST_SHARE > self._all.free_bytes:
            size //= 2
        return size

    async def take(self, size_bytes: int) -> int:
        """Wait for bytes of the budget, and take them, no more than one call's share; how many.

        Raises:
            CallFailure: there was no room for long.
        """
        everything = self._all
        # No call waits until the greater part of the budget is free.
        size_bytes = min(size_bytes, everything.limit_bytes // LARGEST_SHARE)
        if everything.waiting or everything.free_bytes < size_bytes:
            await everything.wait(self, size_bytes)
        else:
            self.add(size_bytes)
        return size_bytes

    def add(self, size_bytes: int) -> None:
        """Take without waiting, or give back."""
        everything = self._all
        self.held_bytes += size_bytes
        everything.free_bytes -= size_bytes
        everything.asked[self.connection] += size_bytes
        if size_bytes < 0 and everything.waiting:
            everything.serve()

    @asynccontextmanager
    async def sending(self, size_bytes: int) -> AsyncIterator[None]:
        """Around the sending of one response; one without a `Room` takes what it needs."""
        extra = 0 if self.held_bytes else COPIES * size_bytes
        if extra and size_bytes > SMALL_ANSWER_BYTES:
            extra = await self.take(extra)
        else:
            self.add(extra)
        began_s = self.sending_s = self._all.now_s()
        try:
            yield
        except BaseException:
            self._left_bytes = size_bytes
            raise
        finally:
            self.add(-extra)
        self.sending_s = None
        self._adapt(self._all.now_s() - began_s)

    def _adapt(self, taken_s: float) -> None:
        if taken_s < QUICK_S:
            self._page_bytes = min(2 * self._page_bytes, self._most_bytes)
        elif taken_s > SLOW_S:
            self._page_bytes = max(self._page_bytes // 2, FIRST_PAGE_BYTES)

    async def answered(self, size_bytes: int, *, refusable: bool) -> None:
        """Count a response that gRPC sends when its handler has returned.

        Raises:
            CallFailure: it is ``refusable``, and there is no room for it.
        """
        more_bytes = COPIES * size_bytes - self.held_bytes
        if refusable and more_bytes > COPIES * SMALL_ANSWER_BYTES:
            await self._all.grow(self, more_bytes)
        else:
            self.add(more_bytes)
        self.sending_s = self._all.now_s()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Around what is ended when the caller stalls.

        Raises:
            CallFailure: the caller stalled while others waited.
        """
        task = asyncio.current_task()
        assert task is not None
        self._end = task.cancel
        try:
            yield
        except asyncio.CancelledError:
            # The node's or the caller's own cancellation may come at the same moment.
            if self.ended_s is None or task.uncancel():
                raise
            if self._all.is_draining:
                raise unready(DRAINING.format(seconds=self.stalled_s)) from None
            limit = self._all.limit_bytes
            raise over_limit(STALLED.format(seconds=self.stalled_s, limit=limit)) from None
        finally:
            self._end = None
            self.add((0 if self.ended_s is None else self._left_bytes) - self.held_bytes)

    def close(self) -> None:
        """GRPC has done with the call: nothing of it is left."""
        everything = self._all
        self.add(-self.held_bytes)
        if not everything.asked[self.connection]:
            del everything.asked[self.connection]
        everything.outlets.pop(self, None)
        everything.ended.discard(self)
        connections = everything.connections[self.caller]
        connections[self.connection] -= 1
        if not connections[self.connection]:
            del connections[self.connection]
        if not connections:
            del everything.connections[self.caller]

    def lingers(self, now_s: float) -> bool:
        """True when the call was ended and gRPC still holds something for it."""
        return self.ended_s is not None and now_s - self.ended_s > LINGER_S

    def end(self, now_s: float) -> bool:
        """End the call, of which nothing is taken any more; False where only gRPC could."""
        assert self.sending_s is not None
        self.ended_s, self.stalled_s = now_s, now_s - self.sending_s
        if self._end is None:
            return False
        self._end()
        return True


class UnsentAnswers:
    """The budget, of which each `Outlet` takes; see the module's rules.

    ``now_s`` is a monotonic clock, in seconds. ``free_bytes``: what nobody has taken. ``asked``:
    bytes by connection, taken or waited for. ``connections`` of each caller, with their calls.
    """

    def __init__(self, now_s: Callable[[], float], limit_bytes: int = DEFAULT_UNSENT_BYTES) -> None:
        self.limit_bytes = self.free_bytes = limit_bytes
        self.now_s = now_s
        self.outlets: dict[Outlet, None] = {}
        self.ended: set[Outlet] = set()
        self.asked: Counter[str] = Counter()
        self.connections: dict[str, Counter[str]] = {}
        self.is_draining = False
        self.waiting: list[_Waiting] = []
        self._numbers = count()
        self._growing = 0
        self._ticking: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        """What all calls have taken."""
        return self.limit_bytes - self.free_bytes

    async def wait(self, outlet: Outlet, size_bytes: int) -> None:
        """Take when there is room, in the order of the module's rules.

        Raises:
            CallFailure: there was no room for long.
        """
        self.asked[outlet.connection] += size_bytes
        turn = asyncio.get_running_loop().create_future()
        number, weight = next(self._numbers), self._weight(outlet)
        heapq.heappush(
            self.waiting, _Waiting(weight, number, self.now_s(), outlet, size_bytes, turn)
        )
        self._tick()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                outlet.add(-size_bytes)
            raise

    async def grow(self, outlet: Outlet, size_bytes: int) -> None:
        """Take for an answer that exists already and is larger than was estimated.

        Raises:
            CallFailure: there is no room, and others wait with theirs.
        """
        if self._growing >= MAX_GROWING:
            raise self._full()
        self._growing += 1
        try:
            await outlet.take(size_bytes)
        finally:
            self._growing -= 1

    def _unask(self, waiting: _Waiting) -> None:
        connection = waiting.outlet.connection
        self.asked[connection] -= waiting.size_bytes
        if not self.asked[connection]:
            del self.asked[connection]

    def _weight(self, outlet: Outlet) -> int:
        return self.asked[outlet.connection] * len(self.connections[outlet.caller])

    def serve(self) -> None:
        """Let in who fits, the lightest first."""
        while self.waiting:
            first = self.waiting[0]
            fits = first.size_bytes <= self.free_bytes or self.free_bytes == self.limit_bytes
            if not first.turn.done() and not fits:
                return
            heapq.heappop(self.waiting)
            self._unask(first)
            if not first.turn.done():
                first.outlet.add(first.size_bytes)
                first.turn.set_result(None)

    def _tick(self) -> None:
        if self._ticking is None:
            loop = asyncio.get_running_loop()
            self._ticking = loop.call_later(TICK_S, self._ticked)

    def _ticked(self) -> None:
        self._ticking = None
        self.press()
        if self.waiting:
            self._tick()

    def press(self) -> None:
        """Refuse what has waited too long; end who stalls, as long as a call waits."""
        now_s = self.now_s()
        for waiting in self.waiting:
            if now_s - waiting.since_s > MAX_WAIT_S and not waiting.turn.done():
                waiting.turn.set_exception(self._full())
        self._forget_done()
        self.serve()
        if not self.waiting or now_s - min(each.since_s for each in self.waiting) < CONTENDED_S:
            return
        lingering = {each.connection for each in self.ended if each.lingers(now_s)}
        lingering |= self._end_stalled(self.waiting[0], now_s)
        if lingering:
            hang_up(lingering)

    async def drain(self) -> None:
        """End stalled readers until cancelled: the node shuts down, and waits for its calls."""
        while True:
            self.end_stalled_readers()
            await asyncio.sleep(TICK_S)

    def end_stalled_readers(self) -> None:
        """End the readers that have stalled, and close the connections of those that linger."""
        self.is_draining, now_s = True, self.now_s()
        closing = {each.connection for each in self.ended if each.lingers(now_s)}
        for outlet in list(self.outlets):
            since_s = outlet.sending_s
            if outlet.ended_s is None and since_s is not None and now_s - since_s >= DRAIN_STALL_S:
                self.ended.add(outlet)
                if not outlet.end(now_s):
                    closing.add(outlet.connection)
        if closing:
            hang_up(closing)

    def _forget_done(self) -> None:
        for each in self.waiting:
            if each.turn.done():
                self._unask(each)
        self.waiting = [each for each in self.waiting if not each.turn.done()]
        heapq.heapify(self.waiting)

    def _full(self) -> CallFailure:
        return busy(FULL.format(limit=self.limit_bytes))

    def _end_stalled(self, first: _Waiting, now_s: float) -> set[str]:
        """End as many as make room for all that wait, the longest stalled first.

        The connections that must be closed for it.
        """
        closing: set[str] = set()
        wanted = sum(waiting.size_bytes for waiting in self.waiting) - self.free_bytes
        wanted -= sum(outlet.held_bytes for outlet in self.ended)
        sending = [
            (outlet.sending_s, outlet)
            for outlet in self.outlets
            if outlet.ended_s is None
            and outlet.sending_s is not None
            and now_s - outlet.sending_s >= STALL_S
        ]
        weight = self._weight(first.outlet)
        for since_s, outlet in sorted(sending, key=itemgetter(0)):
            if wanted <= 0:
                break
            if now_s - since_s < PATIENCE_S and self._weight(outlet) <= weight:
                continue
            wanted -= outlet.held_bytes
            self.ended.add(outlet)
            if not outlet.end(now_s):
                closing.add(outlet.connection)
        return closing
