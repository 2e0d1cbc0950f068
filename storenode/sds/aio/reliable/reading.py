"""From messages of the log to whole contents."""

from __future__ import annotations

import asyncio
from typing import Final

from storenode.sds.aio.channel import Channel
from storenode.sds.aio.events import Message
from storenode.sds.aio.reliable.events import Content, ContentDropped, SegmentRefused
from storenode.sds.pages import Key
from storenode.sds.reassembly import Complete, Dropped, Reassembly
from storenode.sds.segments import Segment, SegmentError, join, read_segment

Found = Content | ContentDropped | SegmentRefused

_QUICK_BYTES: Final = 256 * 1024
"""Hashed in the event loop: under a millisecond."""


class Reader:
    """Takes messages in any order; segments are read from the log again when all are there."""

    def __init__(self, channel: Channel, patience_ms: int) -> None:
        self._channel = channel
        self._reassembly = Reassembly(patience_ms)

    def note(self, now_ms: int, message: Message, segment: Segment) -> None:
        """Remember a segment that was taken before."""
        self._reassembly.add(now_ms, message.sender_id, segment, message.key)
        self._reassembly.sweep(now_ms)

    async def take(self, now_ms: int, message: Message) -> list[Found]:
        """What a message completes, or why it completes nothing."""
        try:
            segment = segment_of(message)
        except SegmentError as error:
            return [SegmentRefused(message.message_id, message.sender_id, str(error))]
        found: list[Found] = []
        complete = self._reassembly.add(now_ms, message.sender_id, segment, message.key)
        if complete is not None:
            found += await self._read(now_ms, message, complete)
        found += [_dropped(each) for each in self._reassembly.sweep(now_ms)]
        return found

    async def _read(self, now_ms: int, message: Message, complete: Complete) -> list[Found]:
        attempts = 0
        for places in complete.attempts():
            attempts += 1
            content = await self._joined(complete, places)
            if content is not None:
                sender, name = complete.sender_id, places[0][1]
                return [Content(name, sender, content, message.key, message.own)]
        dropped = self._reassembly.put_back(now_ms, complete, attempts)
        return [] if dropped is None else [_dropped(dropped)]

    async def _joined(self, complete: Complete, places: tuple[Key, ...]) -> bytes | None:
        parts = []
        for place in places:
            message = await self._channel.at(place)
            if message is None:
                return None
            parts.append(segment_of(message).part)
        if sum(map(len, parts)) <= _QUICK_BYTES:
            return join(complete.whole, parts)
        return await asyncio.to_thread(join, complete.whole, parts)


def segment_of(message: Message) -> Segment:
    """The segment that a message is.

    Raises:
        SegmentError: it is none.
    """
    if not message.readable:
        raise SegmentError("it cannot be decrypted")
    return read_segment(message.content)


def _dropped(dropped: Dropped) -> ContentDropped:
    return ContentDropped(dropped.sender_id, dropped.held, dropped.whole.count)
