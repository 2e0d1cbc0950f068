"""Repair: what is missing is asked of the nodes, in few calls however deep the gap is.

A round goes through the nodes in turn, for what is still missing:

1. by hint, 1,000 at a time: what a history names is there, as a rule, in one call;
2. by ID, 1,000 at a time: what had no hint, or a wrong one;
3. what that has revealed to be missing in addition is the edge of something deeper, and is
   fetched as a causal closure: all of it in one call, down to what is known.

There is one round at a time, so nothing is asked for twice at once. What no node held is asked
for again after a pause that doubles. If all that name it are themselves older than the time after
which a cause is given up, there is nothing to wait for: when no node that can be reached holds it,
it is abandoned at once. Should it come later, it takes its place in the log all the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from storenode.sds.aio.limits import (
    MAX_CLOSURES_PER_ROUND,
    MAX_HEADS_PER_CALL,
    MAX_HINTS_PER_CALL,
    MAX_IDS_PER_CALL,
    MAX_KNOWN_IDS,
    MAX_REPAIR_IDS,
    REPAIR_FIRST_DELAY_MS,
    REPAIR_MAX_DELAY_MS,
)
from storenode.sds.aio.transport import Fetched, TransportError
from storenode.sds.codec import Entry
from storenode.sds.events import MissingMessage, Repaired

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link

_T = TypeVar("_T")
_GRACE_S = 0.05
"""What comes out of order often comes a moment later by itself."""

_MAX_DOUBLINGS = 16


class Repair:
    """Asks the nodes for what a participant misses."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._core = participant.core
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self.calls: Counter[str] = Counter()

    def wake(self) -> None:
        """Wake the task, since more is missing."""
        self._news.set()

    async def run(self) -> None:
        """Run rounds until cancelled, but none while a scan is under way."""
        while True:
            await self._until_due()
            await asyncio.sleep(_GRACE_S)
            await self._participant.feed.quiet()
            await self.round()

    async def round(self) -> bool:
        """Run one round, when no other is under way; return True if messages were found."""
        async with self._turn:
            wanted = self._due()
            if not wanted:
                return False
            calls, ids = self.calls.total(), [each.message_id for each in wanted]
            answered = await self._ask_in_turn(wanted)
            left = [name for name in ids if name in self._core.incoming.wants]
            self._failed(left)
            if answered:
                old = [name for name in left if self._is_old(name)]
                events = self._core.abandon(self._participant.now_ms(), old)
                self._participant.tell(self._participant.ledger.note(events))
            found = len(ids) - len(left)
            self._participant.tell((Repaired(len(ids), found, self.calls.total() - calls),))
            still = self._core.incoming.wants
            return any(name not in still for name in ids)

    def _due(self) -> list[MissingMessage]:
        """Return what may be asked for now, 10,000 at most."""
        now_ms, incoming = _loop_ms(), self._core.incoming
        due = [key for key, want in incoming.wants.items() if want.ask_ms <= now_ms]
        return list(incoming.missing(due[:MAX_REPAIR_IDS]))

    def _failed(self, message_ids: Iterable[str]) -> None:
        for message_id in message_ids:
            want = self._core.incoming.wants[message_id]
            delay_ms = REPAIR_FIRST_DELAY_MS << min(want.tries, _MAX_DOUBLINGS)
            want.tries += 1
            want.ask_ms = _loop_ms() + min(delay_ms, REPAIR_MAX_DELAY_MS)

    async def _until_due(self) -> None:
        wants = self._core.incoming.wants.values()
        due_ms = min((want.ask_ms for want in wants if want.tries), default=None)
        timeout_s = None if due_ms is None else max(due_ms - _loop_ms(), 0) / 1_000
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    async def _ask_in_turn(self, wanted: list[MissingMessage]) -> bool:
        """Ask every node for what is left; return True if one answered to the end."""
        answered = False
        for link in self._participant.rotation.in_turn():
            left = [each for each in wanted if each.message_id in self._core.incoming.wants]
            if not left:
                break
            try:
                await self._ask(link, left)
                answered = True
            except TransportError:
                continue
        return answered

    async def _ask(self, link: Link, wanted: list[MissingMessage]) -> None:
        wants = self._core.incoming.wants
        asked = set(wants)
        await self._by_hint(link, wanted)
        if not self._participant.readable:
            await self._generations_by_hint(link, asked)
            return
        left = [each for each in wanted if each.message_id in wants]
        for some in _split(left, MAX_IDS_PER_CALL):
            await self._fetch("by_id", link.by_id([_entry(each) for each in some]))
        for _ in range(MAX_CLOSURES_PER_ROUND):
            heads = self._revealed(asked)[:MAX_HEADS_PER_CALL]
            if not heads:
                return
            asked.update(each.message_id for each in heads)
            entries = [_entry(each) for each in heads]
            await self._fetch("closure", link.closure(entries, self._known(heads)))

    async def _by_hint(self, link: Link, wanted: Iterable[MissingMessage]) -> None:
        hints = list(dict.fromkeys(hint for each in wanted for hint in each.hints))
        for some in _split(hints, MAX_HINTS_PER_CALL):
            await self._fetch("by_hint", link.by_hint(some))

    async def _generations_by_hint(self, link: Link, asked: set[str]) -> None:
        while heads := self._revealed(asked)[:MAX_REPAIR_IDS]:
            asked.update(each.message_id for each in heads)
            await self._by_hint(link, heads)

    async def _fetch(self, name: str, pages: AsyncGenerator[Sequence[Fetched], None]) -> None:
        self.calls[name] += 1
        async with aclosing(pages):
            async for page in pages:
                await self._participant.take(page)

    def _revealed(self, asked: set[str]) -> list[MissingMessage]:
        return [each for each in self._core.missing() if each.message_id not in asked]

    def _known(self, heads: list[MissingMessage]) -> list[str]:
        """Return IDs at which a walk from these heads may stop."""
        incoming = self._core.incoming
        waiting = list(incoming.ids)[-MAX_KNOWN_IDS // 4 :]
        waiters = (waiter for each in heads for waiter in incoming.waiters(each.message_id))
        first = min((waiter.message.lamport or 0 for waiter in waiters), default=0)
        entries = self._core.log.preceding((first, ""), MAX_KNOWN_IDS - len(waiting))
        return waiting + [entry.message_id for entry in entries]

    def _is_old(self, message_id: str) -> bool:
        """Return True if all messages that name one are older than the longest wait."""
        lost_after_ms = self._core.config.lost_after_ms
        if lost_after_ms is None:
            return False
        waiters = self._core.incoming.waiters(message_id)
        newest = max((each.message.lamport or 0 for each in waiters), default=0)
        return newest < self._participant.now_ms() - lost_after_ms


def _loop_ms() -> int:
    """Return the time of the event loop, which does not change when the clock is set."""
    return int(asyncio.get_running_loop().time() * 1_000)


def _entry(message: MissingMessage) -> Entry:
    return Entry(message.message_id, message.hints[0] if message.hints else None)


def _split(items: list[_T], size: int) -> Iterable[list[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
