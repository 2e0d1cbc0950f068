"""Answers to repair requests: read from the state what has left memory, and ask the nodes first.

A message that a node holds is not published again: who asks for it can fetch it there. One that no
node holds is published with its own time, if that is still known, so that it is the same message
under the same hash wherever it is held. A node refuses a time that is too old; then, and where the
time or the exact bytes are not known, the message is published once with a new time, and nodes hold
that copy from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar

from storenode.common.bounded import BoundedDict
from storenode.sds.aio.limits import MAX_KNOWN_TIMES, MAX_VOLATILE_ITEMS
from storenode.sds.aio.state import LAMPORT_OFFSET, Row, StateError
from storenode.sds.aio.transport import Fetched, TransportError
from storenode.sds.claims import said_by
from storenode.sds.codec import (
    Entry,
    MessageError,
    SdsMessage,
    decode_history,
    decode_message,
)
from storenode.sds.limits import MAX_ANSWERS_AT_ONCE, MAX_PENDING_RECALLS, MAX_RECALLED_AT_ONCE

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link
    from storenode.sds.events import Broadcast


_T = TypeVar("_T")


class RepairResponder:
    """Answers the repair requests of others; failed reads are left to the next request."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._core = participant.core
        self._wanted: deque[str] = deque(maxlen=MAX_PENDING_RECALLS)
        self._answers: deque[Broadcast] = deque(maxlen=MAX_VOLATILE_ITEMS)
        self._hints = BoundedDict[str, bytes](MAX_PENDING_RECALLS)
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
        """Queue messages for reading; past the bound, the oldest are dropped."""
        self._wanted.extend(message_ids)
        self._news.set()

    def offer(self, answer: Broadcast) -> None:
        """Queue a message for publishing again, unless a node stores it."""
        self._answers.append(answer)
        self._news.set()

    async def run(self) -> None:
        """Read and answer until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted or self._answers:
                with suppress(StateError, MessageError):
                    await self._recall(_take(self._wanted, MAX_RECALLED_AT_ONCE))
                await self.answer(_take(self._answers, MAX_ANSWERS_AT_ONCE))

    async def _recall(self, message_ids: list[str]) -> None:
        if message_ids:
            rows = await self._participant.saver.messages(message_ids)
            self._hints.update(
                (row["message_id"].decode(), row["hint"]) for row in rows if row["hint"]
            )
            found = [message_of(self._core.config.channel_id, row) for row in rows]
            self._participant.tell(self._participant.ledger.recalled(found))

    async def answer(self, answers: list[Broadcast]) -> None:
        """Publish answers that no node stores; none if no node can be asked."""
        for link in self._participant.rotation.in_turn() if answers else ():
            try:
                stored = await self._stored(link, answers)
            except TransportError:
                continue
            for answer in answers:
                if answer.message_id not in stored:
                    hint = self._hint(answer.message_id)
                    time_ns = None if hint is None else self._times.get(hint)
                    self._participant.publish_answer(answer, hint, time_ns)
            return

    async def _stored(self, link: Link, answers: list[Broadcast]) -> set[str]:
        """Return the IDs of the answers that a node stores; known hints cost no budget."""
        hints = {
            hint: each.message_id
            for each in answers
            for hint in (self._hint(each.message_id), self._copies.get(each.message_id))
            if hint
        }
        known = await link.holds(list(hints)) if hints else ()
        stored = {hints[hint] for hint in known if hint in hints}
        left = {each.message_id: each for each in answers if each.message_id not in stored}
        if self._core.answers is not None:
            for each in answers:
                if each.message_id in stored:
                    self._core.answers.budget.refund(each.requester, len(each.payload))
        if left and self._participant.readable:
            entries = [Entry(message_id) for message_id in left]
            async with aclosing(link.by_id(entries)) as pages:
                async for page in pages:
                    stored |= {name for each in page if (name := _same(each, left))}
        return stored

    def _hint(self, message_id: str) -> bytes | None:
        entry = self._core.log.recent(message_id)
        return self._hints.get(message_id) if entry is None else entry.hint


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


def _take(queue: deque[_T], most: int) -> list[_T]:
    return [queue.popleft() for _ in range(min(most, len(queue)))]


def message_of(channel_id: str, row: Row) -> SdsMessage:
    """Return the message of a row of the log, without filter and requests.

    Raises:
        MessageError: its causal history is damaged.
    """
    return SdsMessage(
        channel_id,
        row["message_id"].decode(),
        row["sender_id"].decode(),
        row["lamport"] + LAMPORT_OFFSET,
        decode_history(row["history"]),
        content=row["content"],
    )
