"""The assembly of whole contents from messages of the log."""

from __future__ import annotations

import asyncio
from typing import Final

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Message
from storenode.sds.aio.reliable.events import (
    AssemblyFailed,
    Content,
    ContentDropped,
    SegmentRefused,
)
from storenode.sds.claims import Proof
from storenode.sds.log import Key
from storenode.sds.reassembly import Dropped, Reassembly, SetName
from storenode.sds.segments import Segment, SegmentError, join, read_segment

Found = Content | ContentDropped | AssemblyFailed | SegmentRefused

_QUICK_BYTES: Final = 256 * 1024
"""Hashed in the event loop: under a millisecond."""


class ContentReader:
    """A reader of messages in any order; segments are read from the log when all are there."""

    def __init__(self, channel: Channel, patience_ms: int) -> None:
        self._channel = channel
        self._reassembly = Reassembly(patience_ms)

    def note(self, now_ms: int, message: Message, segment: Segment) -> None:
        """Add a segment from before; what it completes was reported then."""
        complete = self._add(now_ms, message, segment)
        if complete is not None:
            self._reassembly.remove(complete)
        self._reassembly.sweep(now_ms)

    async def take(self, now_ms: int, message: Message) -> list[Found]:
        """Return what a message completes, or why it completes nothing."""
        try:
            segment = segment_of(message)
        except SegmentError as error:
            return [SegmentRefused(message.message_id, message.sender_id, str(error))]
        found: list[Found] = []
        complete = self._add(now_ms, message, segment)
        if complete is not None:
            found += await self._read(message, complete)
        found += [_dropped(each) for each in self._reassembly.sweep(now_ms)]
        return found

    def _add(self, now_ms: int, message: Message, segment: Segment) -> SetName | None:
        return self._reassembly.add(
            now_ms,
            message.sender_id,
            segment,
            message.key,
            rank=_rank(message),
            causes=message.causes,
        )

    async def _read(self, message: Message, name: SetName) -> list[Found]:
        attempts = 0
        for places in self._reassembly.attempts(name):
            attempts += 1
            content = await self._joined(name, places)
            if content is not None:
                self._reassembly.remove(name)
                sender, first = name[0], places[0][1]
                return [Content(first, sender, content, message.key, message.own)]
        sender, whole = name
        found: list[Found] = [AssemblyFailed(sender, whole.count, attempts)] if attempts else []
        if self._reassembly.is_exhausted(name):
            found.append(_dropped(self._reassembly.remove(name)))
        return found

    async def _joined(self, name: SetName, places: tuple[Key, ...]) -> bytes | None:
        parts = []
        for place in places:
            message = await self._channel.at(place)
            if message is None:
                return None
            parts.append(segment_of(message).part)
        if sum(map(len, parts)) <= _QUICK_BYTES:
            return join(name[1], parts)
        return await asyncio.to_thread(join, name[1], parts)


def segment_of(message: Message) -> Segment:
    """Return the segment that a message is.

    Raises:
        SegmentError: it is none.
    """
    if not message.readable:
        raise SegmentError("it cannot be decrypted")
    return read_segment(message.content)


def _rank(message: Message) -> int:
    """Return how well it is shown that a segment is its sender's."""
    if message.signed:
        return 3
    return 2 if message.proof is Proof.MESSAGE else int(bool(message.proof))


def _dropped(dropped: Dropped) -> ContentDropped:
    return ContentDropped(dropped.sender_id, dropped.received, dropped.whole.count)
