"""Repair: missing messages are requested from the nodes, in few calls however deep the gap is.

A round goes through the nodes in turn, for what is still missing:

1. by hint, 1,000 at a time: what a history names is there, as a rule, in one call;
2. by ID, 1,000 at a time: what had no hint, or a wrong one;
3. what that has revealed to be missing in addition is the edge of something deeper, and is
   fetched as a causal closure: all of it in one call, down to what is known.

There is one round at a time, so nothing is asked for twice at once. What no node held is asked
for again after a pause that doubles. If all that name it are themselves older than the time after
which a cause is given up, there is nothing to wait for: when no node that can be reached holds it,
it is abandoned at once. Should it come later, it takes its place in the log nevertheless.

Answers to the requests of others are read from the state, and published if no node stores them. A
message that a node holds is not published again: who asks for it can fetch it there. One that no
node holds is published with its own time, if that is still known, so that it is the same message
under the same hash wherever it is held. A node refuses a time that is too old; then, and where the
time or the exact bytes are not known, the message is published once with a new time, and nodes hold
that copy from then on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import (
    MAX_CAUSAL_HEADS,
    MAX_CAUSAL_KNOWN_IDS,
    MAX_QUERY_HASHES,
    MAX_SDS_ENTRIES,
)
from storenode.sds.aio.ledger import message_of
from storenode.sds.aio.state import Row, StateError
from storenode.sds.aio.transport import Fetched, TransportError
from storenode.sds.claims import said_by
from storenode.sds.codec import Entry, MessageError, decode_message
from storenode.sds.events import Broadcast, MissingMessage, Repaired
from storenode.sds.limits import (
    MAX_CLOSURES_PER_ROUND,
    MAX_KNOWN_TIMES,
    MAX_PENDING_ANSWERS,
    MAX_REPAIR_IDS,
    REPAIR_FIRST_DELAY_MS,
    REPAIR_MAX_DELAY_MS,
)

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link

_T = TypeVar("_T")
_GRACE_S = 0.05
"""The pause before a repair, as messages out of order often arrive a moment later."""
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
            await self._participant.feed.quiet.wait()
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
                self._participant.notify(self._participant.ledger.note(events))
            found = len(ids) - len(left)
            self._participant.notify((Repaired(len(ids), found, self.calls.total() - calls),))
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
        for some in _split(left, MAX_SDS_ENTRIES):
            await self._fetch("by_id", link.by_id([_entry(each) for each in some]))
        for _ in range(MAX_CLOSURES_PER_ROUND):
            heads = self._revealed(asked)[:MAX_CAUSAL_HEADS]
            if not heads:
                return
            asked.update(each.message_id for each in heads)
            entries = [_entry(each) for each in heads]
            await self._fetch("closure", link.closure(entries, self._known(heads)))

    async def _by_hint(self, link: Link, wanted: Iterable[MissingMessage]) -> None:
        hints = list(dict.fromkeys(hint for each in wanted for hint in each.hints))
        for some in _split(hints, MAX_QUERY_HASHES):
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
        waiting = list(incoming.ids)[-MAX_CAUSAL_KNOWN_IDS // 4 :]
        waiters = (waiter for each in heads for waiter in incoming.waiters(each.message_id))
        first = min((waiter.message.lamport or 0 for waiter in waiters), default=0)
        entries = self._core.log.preceding((first, ""), MAX_CAUSAL_KNOWN_IDS - len(waiting))
        return waiting + [entry.message_id for entry in entries]

    def _is_old(self, message_id: str) -> bool:
        """Return True if all messages that name one are older than the longest wait."""
        lost_after_ms = self._core.config.lost_after_ms
        if lost_after_ms is None:
            return False
        waiters = self._core.incoming.waiters(message_id)
        newest = max((each.message.lamport or 0 for each in waiters), default=0)
        return newest < self._participant.now_ms() - lost_after_ms


class RepairResponder:
    """Answers the repair requests of others; failed reads are left to the next request."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._core = participant.core
        self._wanted = deque[Sequence[str]](maxlen=MAX_PENDING_ANSWERS)
        self._copies = BoundedDict[str, bytes](MAX_KNOWN_TIMES)
        self._times = BoundedDict[bytes, int](MAX_KNOWN_TIMES)
        self._news = asyncio.Event()

    def note(self, messages: Iterable[Fetched]) -> None:
        """Remember the times of messages that came."""
        self._times.update((each.hint, each.timestamp_ns) for each in messages if each.hint)

    def copied(self, message_id: str, hint: bytes) -> None:
        """Remember that a node stores an answer under a hint."""
        self._copies[message_id] = hint

    def want(self, message_ids: Sequence[str]) -> None:
        """Queue the messages of a `Recall`; past the bound, the oldest are dropped."""
        self._wanted.append(message_ids)
        self._news.set()

    async def run(self) -> None:
        """Publish answers until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                with suppress(StateError, MessageError):
                    await self.answer(self._wanted.popleft())

    async def answer(self, message_ids: Sequence[str]) -> None:
        """Publish the messages that no node stores; none if no node can be asked."""
        saver = self._participant.saver
        found = await saver.in_thread(saver.state.messages, message_ids)
        rows = {row["message_id"].decode(): row for row in found}
        answers: dict[str, Broadcast] | None = None
        for link in self._participant.rotation.in_turn():
            try:
                await self._drop_stored(link, rows)
                if answers is None:
                    # What is downloaded for a comparison is charged, too.
                    answers = self._answers(rows.values())
                stored = await self._stored(link, answers)
            except TransportError:
                continue
            for message_id, answer in answers.items():
                if message_id in rows and message_id not in stored:
                    hint = rows[message_id]["hint"]
                    time_ns = None if hint is None else self._times.get(hint)
                    self._participant.publish_answer(answer, hint, time_ns)
            return

    async def _drop_stored(self, link: Link, rows: dict[str, Row]) -> None:
        """Remove the messages that a node stores under a known hint."""
        hints = {
            hint: message_id
            for message_id, row in rows.items()
            for hint in (row["hint"], self._copies.get(message_id))
            if hint
        }
        for hint in await link.holds(list(hints)) if hints else ():
            rows.pop(hints.get(hint, ""), None)

    def _answers(self, rows: Iterable[Row]) -> dict[str, Broadcast]:
        found = [message_of(self._core.config.channel_id, row) for row in rows]
        events = self._participant.ledger.note(self._core.recalled(found))
        answers = [event for event in events if isinstance(event, Broadcast)]
        self._participant.notify([event for event in events if not isinstance(event, Broadcast)])
        return {answer.message_id: answer for answer in answers}

    async def _stored(self, link: Link, answers: dict[str, Broadcast]) -> set[str]:
        """Return the IDs of the answers that a node stores under whatever hint."""
        stored: set[str] = set()
        if answers and self._participant.readable:
            entries = [Entry(message_id) for message_id in answers]
            async with aclosing(link.by_id(entries)) as pages:
                async for page in pages:
                    stored |= {name for each in page if (name := _same(each, answers))}
        return stored


def _same(found: Fetched, answers: dict[str, Broadcast]) -> str | None:
    """Return the ID of the answer that a message is, if it is one of them."""
    try:
        message = decode_message(found.payload)
    except MessageError:
        return None
    answer = answers.get(message.message_id)
    if answer is None or said_by(message) != said_by(decode_message(answer.payload)):
        return None
    return message.message_id


def _loop_ms() -> int:
    """Return the time of the event loop, which does not change when the clock is set."""
    return int(asyncio.get_running_loop().time() * 1_000)


def _entry(message: MissingMessage) -> Entry:
    return Entry(message.message_id, message.hints[0] if message.hints else None)


def _split(items: list[_T], size: int) -> Iterable[list[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
