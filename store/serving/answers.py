"""A budget of bytes for all answers of a node that their callers have not read yet.

gRPC takes a response and keeps it until the caller's flow control lets it leave: a caller that does
not read makes the node hold pages for it. Rules:

1. A page takes its share of the budget before it is read (`AnswerSender.room`), and gives it back
   when gRPC has sent it. Pages begin small and double while the caller takes them quickly.
2. Where there is no room, the call waits in a `FairQueue`; its weight counts the connections of its
   caller. A call that waits for `MAX_WAIT_S` is refused.
3. While a call waits, stalled readers are ended (`STALLED`), the one that has stalled longest
   first: after `STALL_S` if it is heavier than the call that waits, else after `PATIENCE_S`.
4. The bytes that gRPC holds for an ended call stay counted until they are gone. If the caller does
   not take them within `LINGER_S` and a call still waits, its connection is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from store.domain.quota import DEFAULT_UNSENT_BYTES
from store.serving.failure import over_limit
from store.serving.queue import FairQueue
from store.serving.sockets import hang_up
from store.serving.tasks import Endable

COPIES: Final = 3
"""Copies of a page in memory while it is sent: its entries, the response, gRPC's own copy."""

FIRST_PAGE_BYTES: Final = 64 * 1024
SMALL_ANSWER_BYTES: Final = 4 * 1024
"""The largest page without a `PageRoom` that is counted without waiting."""

LARGEST_SHARE: Final = 8
"""A page takes an eighth of what is free at most, unless it has the first size."""

QUICK_S: Final = 0.5
SLOW_S: Final = 2.0
"""A page that is taken quicker is followed by one twice as large, a slower one by a small one."""

STALL_S: Final = 1.0
PATIENCE_S: Final = 10.0
LINGER_S: Final = 2.0
MAX_WAIT_S: Final = 30.0
CONTENDED_S: Final = 0.5
"""A shorter wait ends no reader."""

TICK_S: Final = 0.25

STALLED: Final = (
    "the answer was not read for {seconds:.0f} s while other calls waited for room among the"
    " {limit:,} bytes of unsent answers of this node: read faster, and go on after the last page"
)


class PageRoom:
    """Bytes of the budget for one page of ``size_bytes``; `close` gives them back."""

    __slots__ = ("_sender", "_taken_bytes", "size_bytes")

    def __init__(self, sender: AnswerSender, size_bytes: int, taken_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._sender = sender
        self._taken_bytes = taken_bytes

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Take what is needed, which may be more than was asked for."""
        needed = COPIES * page_bytes + beside_bytes
        self._sender.add(needed - self._taken_bytes)
        self._taken_bytes = needed

    def close(self) -> None:
        """Return all bytes to the budget; a second call does nothing."""
        self._sender.add(-self._taken_bytes)
        self._taken_bytes = 0


class AnswerSender(Endable):
    """The bytes that one call has taken of the budget: `store.domain.ports.Outlet`.

    As a block, it is ended with a `CallError` when the caller stalls while others wait.
    ``sending_s``: since when the caller has not taken what is sent.
    """

    def __init__(self, budget: UnsentBudget, caller: str, connection: str) -> None:
        """Begin to count a call; `close` must follow when gRPC has done with it."""
        self._is_over = True  # until it is entered
        self.caller = caller
        self.connection = connection
        self.taken_bytes = 0
        self.sending_s: float | None = None
        self.ended_s: float | None = None
        self._budget = budget
        self._left_bytes = 0  # what gRPC holds of a page that was broken off
        self._page_bytes = self._most_bytes = FIRST_PAGE_BYTES
        budget.senders[self] = None
        budget.connections.setdefault(caller, Counter())[connection] += 1

    async def room(self, most_bytes: int) -> PageRoom:
        """Wait for room for a page of up to ``most_bytes``, or less if the caller is slow.

        Raises:
            CallError: there was none for long.
        """
        size = self._next_bytes(most_bytes)
        return PageRoom(self, size, await self.take(COPIES * size))

    def spare_room(self, most_bytes: int) -> PageRoom | None:
        """Return room to read a page in advance; None where less than half is free."""
        size = self._next_bytes(most_bytes)
        if 2 * self._budget.free < self._budget.limit + COPIES * size:
            return None
        self.add(COPIES * size)
        return PageRoom(self, size, COPIES * size)

    def _next_bytes(self, most_bytes: int) -> int:
        self._most_bytes = most_bytes
        size = min(most_bytes, self._page_bytes)
        while size > FIRST_PAGE_BYTES and COPIES * size * LARGEST_SHARE > self._budget.free:
            size //= 2
        return size

    async def take(self, size_bytes: int) -> int:
        """Wait for bytes of the budget, one call's share at most; return how many were taken.

        Raises:
            CallError: there was no room for long.
        """
        # No call waits until the greater part of the budget is free.
        size_bytes = min(size_bytes, self._budget.limit // LARGEST_SHARE)
        if size_bytes and (self._budget.waiting or size_bytes > self._budget.free):
            await self._budget.wait(self, size_bytes)
            self.taken_bytes += size_bytes
        else:
            self.add(size_bytes)
        return size_bytes

    def add(self, size_bytes: int) -> None:
        """Take without waiting, or give back."""
        budget = self._budget
        self.taken_bytes += size_bytes
        if size_bytes > 0:
            budget.free -= size_bytes
            budget.asked[self.connection] += size_bytes
        elif size_bytes:
            budget.release(self.connection, -size_bytes)

    async def deliver(self, response: bytes, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send one response, which is counted; one without a `PageRoom` takes what it needs."""
        size_bytes = len(response)
        extra = 0 if self.taken_bytes else COPIES * size_bytes
        if extra and size_bytes > SMALL_ANSWER_BYTES:
            extra = await self.take(extra)
        else:
            self.add(extra)
        began_s = self.sending_s = self._budget.now_s()
        try:
            await send(response)
        except BaseException:
            self._left_bytes = size_bytes
            raise
        finally:
            self.add(-extra)
        self.sending_s = None
        taken_s = self._budget.now_s() - began_s
        if taken_s < QUICK_S:
            self._page_bytes = min(2 * self._page_bytes, self._most_bytes)
        elif taken_s > SLOW_S:
            self._page_bytes = FIRST_PAGE_BYTES

    def answered(self, size_bytes: int, *, refusable: bool) -> None:
        """Count a response that gRPC sends when its handler has returned.

        One answer may pass the limit: its page is in memory already.

        Raises:
            CallError: it is ``refusable``, larger than was estimated, and there is no room left.
        """
        more_bytes = COPIES * size_bytes - self.taken_bytes
        budget = self._budget
        if refusable and budget.free <= 0 < more_bytes:
            raise budget.full(budget.limit, "this node")
        self.add(more_bytes)
        self.sending_s = budget.now_s()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Return to the budget what gRPC does not hold any more.

        Raises:
            CallError: the caller stalled while others waited.
        """
        self.add((0 if self.ended_s is None else self._left_bytes) - self.taken_bytes)
        super().__exit__(kind, *error)

    def close(self) -> None:
        """Return the rest to the budget: gRPC has done with the call."""
        budget = self._budget
        if self not in budget.senders:
            return
        del budget.senders[self]
        self.add(-self.taken_bytes)
        connections = budget.connections[self.caller]
        connections[self.connection] -= 1
        if not connections[self.connection]:
            del connections[self.connection]
        if not connections:
            del budget.connections[self.caller]

    def stalled_for(self, now_s: float) -> float:
        """Return for how many seconds the caller has not read; of an ended call all the time."""
        if self.ended_s is not None:
            return inf
        return 0.0 if self.sending_s is None else now_s - self.sending_s

    def evict(self, now_s: float) -> bool:
        """End the call; return False where only closing its connection ends it."""
        seconds, self.ended_s = self.stalled_for(now_s), now_s
        self.end(over_limit(STALLED.format(seconds=seconds, limit=self._budget.limit)))
        return not self._is_over


class UnsentBudget(FairQueue):
    """The budget, of which each `AnswerSender` takes; see the module's rules.

    ``now_s`` is a monotonic clock, in seconds. ``connections`` of each caller, with their calls.
    """

    def __init__(self, now_s: Callable[[], float], limit_bytes: int = DEFAULT_UNSENT_BYTES) -> None:
        advice = "read what was asked for, and retry with backoff"
        super().__init__(limit_bytes, "bytes of unsent answers", advice, now_s=now_s)
        self.senders: dict[AnswerSender, None] = {}
        self.connections: dict[str, Counter[str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, sender: AnswerSender, size_bytes: int) -> None:
        """Take when there is room, in the order of the module's rules.

        Raises:
            CallError: there was no room for long.
        """
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        connections = len(self.connections[sender.caller])
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self.acquire(sender.connection, size_bytes, connections)
        except TimeoutError:
            raise self.full(self.limit, "this node") from None

    def _tick(self) -> None:
        # First: to end a connection may fail where no descriptor is left.
        later = asyncio.get_running_loop().call_later
        self._timer = later(TICK_S, self._tick) if self.waiting else None
        self.evict_stalled()

    def evict_stalled(self) -> None:
        """End as many stalled readers as make room for all calls that wait."""
        now_s = self.now_s()
        waiting = [each for each in self.waiting if not each.turn.done()]
        if not waiting or now_s - min(each.since_s for each in waiting) < CONTENDED_S:
            return
        closing: set[str] = set()
        wanted = sum(call.size for call in waiting) - self.free
        for sender in sorted(self.senders, key=lambda each: -each.stalled_for(now_s)):
            weight = self.asked.get(sender.connection, 0) * len(self.connections[sender.caller])
            seconds = sender.stalled_for(now_s)
            if sender.ended_s is not None:
                if now_s - sender.ended_s > LINGER_S:
                    closing.add(sender.connection)
            elif wanted <= 0 or seconds < STALL_S:
                break
            elif seconds < PATIENCE_S and weight <= min(waiting).weight:
                continue
            elif not sender.evict(now_s):
                closing.add(sender.connection)
            wanted -= sender.taken_bytes
        hang_up(closing)
