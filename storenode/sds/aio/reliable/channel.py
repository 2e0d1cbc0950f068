"""A reliable channel: contents of any size, a request ID for each, and events of what became of it.

Source: RELIABLE-CHANNEL-API, "The Reliable Channel API".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, Self, Unpack

from storenode.common.errors import ArgumentError
from storenode.sds.aio.channel import Channel, Place
from storenode.sds.aio.events import ChannelEvent, EventHub, Events, Message, NotStored
from storenode.sds.aio.join_options import JoinOptions
from storenode.sds.aio.reliable.assembly import ContentReader, segment_of
from storenode.sds.aio.reliable.encryption import Encryption, Hook
from storenode.sds.aio.reliable.events import (
    Content,
    MessageReceived,
    ReliableEvent,
)
from storenode.sds.aio.reliable.requests import SendRequests
from storenode.sds.aio.status import Status
from storenode.sds.config import DEFAULT_CHANNEL_ID
from storenode.sds.events import Acknowledged, GaveUp, Sent
from storenode.sds.limits import MAX_LOADED_MESSAGES
from storenode.sds.segments import Revision, Segment, SegmentError, split

_PAGE: Final = 16
"""Messages that are read from the log at once: each may have 100 KiB."""

MAX_SEGMENT_BYTES: Final = 102_400
"""With history, filter and what encryption adds it must fit into one message."""


@dataclass(frozen=True, slots=True)
class SegmentationConfig:
    """The way in which contents are split: in parts of ``segment_bytes``.

    A content of which no segment came for ``patience_ms`` is given up.
    """

    segment_bytes: int = MAX_SEGMENT_BYTES
    patience_ms: int = 86_400_000
    revision: Revision = Revision.PUBLISHED

    def __post_init__(self) -> None:
        if not 256 <= self.segment_bytes <= MAX_SEGMENT_BYTES:
            raise ArgumentError(f"segment_bytes is 256 to {MAX_SEGMENT_BYTES}")
        if self.patience_ms < 1:
            raise ArgumentError("patience_ms is at least 1")


class ReliableChannel:
    """A participant of a channel whose contents are segmented; made by `join` or `over`.

    Examples:
        ```python
        async with ReliableChannel.join("127.0.0.1:7420", "album", "alice", state="a.db") as album:
            events = album.events()
            request_id = await album.send(picture)
            async for event in events:
                print(event, request_id)
        ```
    """

    def __init__(
        self, channel: Channel, segmentation: SegmentationConfig, clock: Callable[[], int]
    ) -> None:
        self.channel = channel
        self._segmentation = segmentation
        self._clock = clock
        self._requests = SendRequests()
        self._hub: EventHub[ReliableEvent] = EventHub()
        # Of one moment: what follows is told by the events.
        self._events = channel.events()
        self._unsent, self._open = channel.unpublished(), channel.unacknowledged()

    @classmethod
    @asynccontextmanager
    async def join(
        cls,
        places: Place | Sequence[Place],
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        *,
        segmentation: SegmentationConfig | None = None,
        encryption: Encryption | None = None,
        encrypt_whole: bool = True,
        **options: Unpack[JoinOptions],
    ) -> AsyncIterator[Self]:
        """Take part in a channel for the length of an ``async with`` block.

        - ``segmentation``: the same revision is read whatever is written.
        - ``encryption``: applied to each segment after SDS; with ``encrypt_whole=False`` to the
          segment only, so that nodes serve by ID and causal history.
        - the other arguments, and errors, are those of `Channel.join`. A ``signer`` signs each
          segment; the log of ``channel`` shows whose signatures hold.
        """
        if encryption is not None:
            options["cipher"] = Hook(encryption, whole=encrypt_whole)
        clock = options.get("clock", time.time_ns)
        async with (
            Channel.join(places, channel_id, sender_id, **options) as channel,
            cls.over(channel, segmentation=segmentation, clock=clock) as made,
        ):
            yield made

    @classmethod
    @asynccontextmanager
    async def over(
        cls,
        channel: Channel,
        *,
        segmentation: SegmentationConfig | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> AsyncIterator[Self]:
        """Use a channel that was joined already, such as one of `Channels`."""
        made = cls(channel, segmentation or SegmentationConfig(), clock)
        pump = asyncio.create_task(made._run())
        try:
            yield made
        finally:
            pump.cancel()
            await asyncio.wait({pump})
            made._events.close()
            made._hub.end()
            if not pump.cancelled():
                # Readers and callers were told it.
                pump.exception()

    @property
    def status(self) -> Status:
        """The status of the participant now."""
        return self.channel.status

    async def send(self, content: bytes) -> str:
        """Send a content, which may be empty; answers its request ID when all of it is saved.

        After a crash all of its segments are sent, or none was.

        Raises:
            ValueError: it is too large for 255 segments.
            ChannelFullError: too many own segments are unacknowledged.
            StateTaken: another process took the state.
        """
        config = self._segmentation
        segments = await asyncio.to_thread(split, content, config.segment_bytes, config.revision)
        return (await self.channel.send_all(segments))[0]

    def events(self) -> Events[ReliableEvent]:
        """Return a reader of what happens from now on; read it, as `Channel.events`."""
        return self._hub.reader(-1)

    async def messages(self) -> AsyncGenerator[Content, None]:
        """Yield the whole contents of the log, own ones too, then each as it is completed."""
        reader = ContentReader(self.channel, self._segmentation.patience_ms)
        async for message in self.channel.messages():
            for found in await reader.take(self._now_ms(), message):
                if isinstance(found, Content):
                    yield found

    async def _run(self) -> None:
        reader = ContentReader(self.channel, self._segmentation.patience_ms)
        try:
            for message, segment in await self._newest():
                if message.own:
                    self._note_own(message, segment)
                else:
                    reader.note(self._now_ms(), message, segment)
            self._requests.loaded()
            async for event in self._events:
                await self._hub.room()
                self._hub.put(0, await self._follow(reader, event))
            self._hub.end()
        except Exception as error:
            self._hub.fail(error)
            raise

    async def _follow(self, reader: ContentReader, event: ChannelEvent) -> list[ReliableEvent]:
        match event:
            case Message() if event.own and not event.published:
                with suppress(SegmentError):
                    segment = segment_of(event)
                    self._requests.add(event.message_id, segment, unsent=True, unacknowledged=True)
            # What others publish under our name is no request of ours.
            case Message() if not event.own:
                found = await reader.take(self._now_ms(), event)
                return [
                    MessageReceived(each) if isinstance(each, Content) else each for each in found
                ]
            case Sent():
                return [*self._requests.stored(event.message_id)]
            case NotStored():
                return [*self._requests.refused(event.message_id, event.reason)]
            case Acknowledged():
                return [*self._requests.acknowledged(event.message_id)]
            case GaveUp():
                return [*self._requests.given_up(event.message_id)]
            case _:
                pass
        return []

    async def _newest(self) -> list[tuple[Message, Segment]]:
        """Return the newest segments of the log, without their parts, as far as they may matter."""
        since_ms = self._now_ms() - self._segmentation.patience_ms
        found: list[tuple[Message, Segment]] = []
        looked = 0
        page = await self.channel.log(_PAGE, until=self._events)
        while page and looked < MAX_LOADED_MESSAGES and page[-1].lamport >= since_ms:
            looked += len(page)
            for message in reversed(page):
                with suppress(SegmentError):
                    segment = replace(segment_of(message), part=b"")
                    found.append((replace(message, content=b""), segment))
            page = await self.channel.log(_PAGE, before=page[0].key, until=self._events)
        return found[::-1]

    def _note_own(self, message: Message, segment: Segment) -> None:
        name, acknowledged = message.message_id, message.acknowledged_by is not None
        self._requests.add(
            name,
            segment,
            unsent=name in self._unsent,
            unacknowledged=name in self._open,
            given_up=name not in self._open and not acknowledged,
        )

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000
