"""A weighted fair queue: memory that calls share.

`FairQueue.acquire` waits. Of the calls that wait, the lightest is served first: the weight is what
the connection of a call has taken and asked for, times a factor of its caller. The virtual time of
the queue, which is the tag of the call that was served last, is added to it, so that a heavy call
waits for a bounded number of lighter ones. `FairQueue.take` never waits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from store.serving.failure import CallError, busy


@dataclass(order=True, slots=True)
class WaitingCall:
    """A call that waits for ``size`` units."""

    tag: int
    number: int
    weight: int = field(compare=False)
    size: int = field(compare=False)
    since_s: float = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class FairQueue:
    """A number of units, such as bytes, that calls take and give back.

    An ``account`` is a connection, or a caller. ``asked``: the units that each has taken or waits
    for, ``waiting_units`` what all wait for. One request that is larger than the whole passes when
    nothing else is under way. ``units`` and ``advice`` are for the error of a call that is refused.
    """

    def __init__(
        self,
        limit: int,
        units: str = "bytes of requests under way",
        advice: str = "retry with backoff",
        *,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.limit = self.free = limit
        self.units = units
        self.advice = advice
        self.now_s = now_s
        self.waiting: list[WaitingCall] = []
        self.waiting_units = self._waiting_calls = 0
        self.asked: defaultdict[str, int] = defaultdict(int)
        self._numbers = count()
        self._virtual_time = 0

    @property
    def used(self) -> int:
        """The number of units that are taken."""
        return self.limit - self.free

    def full(self, limit: int, owner: str) -> CallError:
        """Return the error of a call that is refused for the limit of an owner."""
        return busy(f"limit of {limit:,} {self.units} on {owner} is reached: {self.advice}")

    def take(self, account: str, size: int) -> Callable[[], None]:
        """Take units without waiting, one account half at most; return what gives them back.

        Raises:
            CallError: there is no room, or calls wait already.
        """
        usage = self.asked.get(account, 0)
        if usage and usage + size > self.limit // 2:
            raise self.full(self.limit // 2, "one client")
        if self.waiting or (size > self.free and self.free < self.limit):
            raise self.full(self.limit, "this node")
        self.free -= size
        self.asked[account] += size
        return partial(self.release, account, size)

    async def acquire(self, account: str, size: int, factor: int = 1) -> None:
        """Take units when it is the call's turn; `release` must follow."""
        self.asked[account] += size
        if not self.waiting and (size <= self.free or self.free == self.limit):
            self.free -= size
            return
        turn = asyncio.get_running_loop().create_future()
        if not self.waiting:
            self._virtual_time = 0
        weight = self.asked[account] * factor
        tag = self._virtual_time + weight
        call = WaitingCall(tag, next(self._numbers), weight, size, self.now_s(), turn)
        heapq.heappush(self.waiting, call)
        self.waiting_units += size
        self._waiting_calls += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.free -= size  # which was not given
            self.release(account, size)
            raise
        finally:
            self.waiting_units -= size
            self._waiting_calls -= 1
            if len(self.waiting) > 2 * self._waiting_calls:
                self.waiting = [each for each in self.waiting if not each.turn.done()]
                heapq.heapify(self.waiting)

    def release(self, account: str, size: int) -> None:
        """Return units, and let in the calls that fit now."""
        self.free += size
        assert self.free <= self.limit, "more was given back than taken"
        self.asked[account] -= size
        if not self.asked[account]:
            del self.asked[account]
        if self.waiting:
            self._serve()

    def _serve(self) -> None:
        """Let in the calls that fit, the lightest first."""
        while self.waiting:
            first = self.waiting[0]
            if not first.turn.done():
                if first.size > self.free and self.free < self.limit:
                    return
                self.free -= first.size
                self._virtual_time = first.tag
                first.turn.set_result(None)
            heapq.heappop(self.waiting)
