"""Answers to repair requests: read from the state, and published if no node stores them.

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
from typing import TYPE_CHECKING

from storenode.common.bounded import BoundedDict
from storenode.sds.aio.limits import MAX_KNOWN_TIMES
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
from storenode.sds.events import Broadcast
from storenode.sds.limits import MAX_PENDING_ANSWERS, MAX_RECALLED_AT_ONCE

if TYPE_CHECKING:
    from storenode.sds.aio.participant import Participant
    from storenode.sds.aio.transport import Link


class RepairResponder:
    """Answers the repair requests of others; failed reads are left to the next request."""

    def __init__(self, participant: Participant) -> None:
        self._participant = participant
        self._core = participant.core
        self._wanted: deque[str] = deque(maxlen=MAX_PENDING_ANSWERS)
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
        """Queue messages for answering; past the bound, the oldest are dropped."""
        self._wanted.extend(message_ids)
        self._news.set()

    async def run(self) -> None:
        """Publish answers until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                most = min(MAX_RECALLED_AT_ONCE, len(self._wanted))
                with suppress(StateError, MessageError):
                    await self.answer([self._wanted.popleft() for _ in range(most)])

    async def answer(self, message_ids: Sequence[str]) -> None:
        """Publish the messages that no node stores; none if no node can be asked."""
        found = await self._participant.saver.messages(message_ids)
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
        self._participant.tell([event for event in events if not isinstance(event, Broadcast)])
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
