"""A weighted fair queue: memory and slots that calls share.

`FairQueue.acquire` waits. Of the calls that wait, the lightest is served first: the weight is what
the connection of a call has taken and asked for, times a factor of its caller. The virtual time of
the queue, which is the tag of the call that was served last, is added to it, so that a heavy call
waits for a bounded number of lighter ones. `FairQueue.reserve` never waits.

`RequestSlots` are units of such a queue in which requests come in, each of which may have the
largest size. A small request is there at once and needs its slot for a moment.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from store.serving.drain import Endable
from store.serving.failure import CallError, Code, busy

MAX_WAITING_REQUESTS: Final = 2_048
"""Calls that wait for such a slot."""

REQUEST_TIMEOUT_S: Final = 60.0
CROWDED_TIMEOUT_S: Final = 0.5
"""How long a request may take to come in full; the second one while others wait for its slot."""


@dataclass(order=True, slots=True)
class WaitingCall:
    """A call that waits for ``size`` units."""

    tag: int
    number: int
    connection: str = field(compare=False)
    size: int = field(compare=False)
    since_s: float = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class FairQueue:
    """A number of units, such as bytes, that calls take and give back.

    One request that is larger than the whole passes when nothing else is under way. ``full`` makes
    the error of a call that is refused from the limit and its owner, "one client" or "this node";
    ``max_waiting`` calls wait, and of more the heaviest is refused. ``asked``: units by connection,
    taken by `acquire` or waited for.
    """

    def __init__(
        self,
        limit: int,
        full: Callable[[int, str], CallError],
        *,
        max_waiting: int | None = None,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.limit = self.free = limit
        self.full = full
        self.now_s = now_s
        self.waiting: list[WaitingCall] = []
        self.asked: defaultdict[str, int] = defaultdict(int)
        self._by_owner: Counter[str] = Counter()
        self._max_waiting = max_waiting
        self._numbers = count()
        self._virtual_time = 0

    @property
    def used(self) -> int:
        """The number of units that are taken."""
        return self.limit - self.free

    def fits(self, size: int) -> bool:
        """Return True if there is room now."""
        return size <= self.free or self.free == self.limit

    @contextmanager
    def reserve(self, size: int, owner: str = "") -> Iterator[None]:
        """Take units for a while, without waiting; one ``owner`` gets half at most.

        Raises:
            CallError: there is no room, or calls wait already.
        """
        if owner and self._by_owner[owner] + size > self.limit // 2:
            raise self.full(self.limit // 2, "one client")
        if self.waiting or (size > self.free and self.free < self.limit):
            raise self._full_node()
        self._by_owner[owner] += size
        self.free -= size
        try:
            yield
        finally:
            self._by_owner[owner] -= size
            if not self._by_owner[owner]:
                del self._by_owner[owner]
            self.release(size)

    def _full_node(self) -> CallError:
        return self.full(self.limit, "this node")

    async def acquire(self, connection: str, size: int, factor: int = 1) -> None:
        """Take units when it is the call's turn; `release` must follow.

        Raises:
            CallError: too many calls wait, or `refuse` was called.
        """
        self.asked[connection] += size
        if not self.waiting and self.fits(size):
            self.free -= size
            return
        if self._max_waiting is not None and len(self.waiting) >= self._max_waiting:
            self.refuse([max(self.waiting)])
        turn = asyncio.get_running_loop().create_future()
        if not self.waiting:
            self._virtual_time = 0
        tag = self._virtual_time + self.asked[connection] * factor
        call = WaitingCall(tag, next(self._numbers), connection, size, self.now_s(), turn)
        heapq.heappush(self.waiting, call)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(connection, size)
                self.serve()
            elif turn.exception() is None:
                self.release(size, connection)
            raise

    def release(self, size: int, connection: str | None = None) -> None:
        """Return units; ``connection`` is that of `acquire`."""
        self.free += size
        assert self.free <= self.limit, "more was given back than taken"
        if connection is not None:
            left = self.asked[connection] - size
            if left:
                self.asked[connection] = left
            else:
                del self.asked[connection]
        if self.waiting:
            self.serve()

    def serve(self) -> None:
        """Let in the calls that fit, the lightest first."""
        while self.waiting:
            first = self.waiting[0]
            if not first.turn.done():
                if not self.fits(first.size):
                    return
                self.free -= first.size
                self._virtual_time = first.tag
                first.turn.set_result(None)
            heapq.heappop(self.waiting)

    def refuse(self, calls: Iterable[WaitingCall]) -> None:
        """End the wait of some calls."""
        for call in calls:
            if not call.turn.done():
                call.turn.set_exception(self._full_node())
                self._forget(call.connection, call.size)
        self.waiting = [each for each in self.waiting if not each.turn.done()]
        heapq.heapify(self.waiting)

    def _forget(self, connection: str, size: int) -> None:
        self.asked[connection] -= size
        if not self.asked[connection]:
            del self.asked[connection]


def memory_queue(limit_bytes: int, what: str) -> FairQueue:
    """Return a queue for the bytes of requests under way, which ``what`` names in errors."""

    def full(limit: int, owner: str) -> CallError:
        return busy(
            f"limit of {limit:,} bytes of {what} under way on {owner} is reached: retry with"
            " backoff"
        )

    return FairQueue(limit_bytes, full)


class RequestSlots(FairQueue):
    """Slots for requests that come in.

    While calls wait, a slot is kept for `CROWDED_TIMEOUT_S` only; of more than ``max_waiting``
    calls that wait, the heaviest is refused. One timer, not one for each request, ends those that
    take too long.
    """

    def __init__(self, slots: int, max_waiting: int = MAX_WAITING_REQUESTS) -> None:
        super().__init__(slots, lambda *_: _crowded(), max_waiting=max_waiting)
        # When each must have come, and when it must have while others wait for its slot.
        self._ends_s: dict[Endable, tuple[float, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(
        self, connection: str, *, needed: bool = True, wait: bool = True
    ) -> AsyncIterator[Endable]:
        """Read a request in the block, which has a limit of time.

        A request that costs no more than its connection is read without a slot, not ``needed``.

        Raises:
            CallError: it has not come in time; too many wait; or, without ``wait``, no slot is
                free.
        """
        loop, has_slot = asyncio.get_running_loop(), False
        end_s = loop.time() + REQUEST_TIMEOUT_S
        with Endable() as block:
            self._ends_s[block] = end_s, inf
            if self._timer is None:
                self._timer = loop.call_at(end_s, self._check)
            try:
                if needed:
                    if self.free:
                        self.free -= 1
                        self.asked[connection] += 1
                    elif wait:
                        if not self.waiting:
                            loop.call_soon(self._check)
                        await self.acquire(connection, 1)
                    else:
                        raise _crowded()
                    has_slot, hurried_s = True, loop.time() + CROWDED_TIMEOUT_S
                    self._ends_s[block] = end_s if wait else hurried_s, hurried_s
                    if self.waiting or not wait:
                        self._check_at(hurried_s)
                yield block
            finally:
                del self._ends_s[block]
                if has_slot:
                    self.release(1, connection)

    def _check(self) -> None:
        """End the requests that have taken too long, and look again when the next one will have."""
        now_s, next_s = asyncio.get_running_loop().time(), inf
        for block, (end_s, hurried_s) in self._ends_s.items():
            limit_s = min(end_s, hurried_s) if self.waiting else end_s
            if limit_s > now_s:
                next_s = min(next_s, limit_s)
            else:
                block.end(_too_slow() if end_s <= now_s else _crowded())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if next_s < inf:
            self._check_at(next_s)

    def _check_at(self, time_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= time_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(time_s, self._check)


def _too_slow() -> CallError:
    return CallError(
        Code.DEADLINE_EXCEEDED,
        f"the request has not come in full within {REQUEST_TIMEOUT_S:g} s: send it faster,"
        " or a smaller one",
    )


def _crowded() -> CallError:
    return busy(
        "limit of requests that have not come in full is reached on this node, which gives each "
        f"{CROWDED_TIMEOUT_S:g} s then: retry with backoff, or send smaller requests"
    )
