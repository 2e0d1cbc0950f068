"""A reliable channel: contents of any size, a request ID for each, and events of what became of it.

Source: RELIABLE-CHANNEL-API, "The Reliable Channel API".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, Self, Unpack

from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_bytes
from storenode.sds.aio.channel import AsyncChannel, Place
from storenode.sds.aio.events import EventHub, Events
from storenode.sds.aio.join_options import JoinOptions
from storenode.sds.aio.status import Status
from storenode.sds.claims import Proof
from storenode.sds.config import DEFAULT_CHANNEL_ID
from storenode.sds.events import Acknowledged, ChannelEvent, GaveUp, Message, NotStored, Sent
from storenode.sds.limits import MAX_LOADED_MESSAGES
from storenode.sds.log import Key
from storenode.sds.segments import (
    Reassembly,
    Revision,
    Segment,
    SegmentError,
    SegmentSet,
    SetName,
    join,
    read_segment,
    split,
)

_PAGE: Final = 16
"""Messages that are read from the log at once: each may have 100 KiB."""

_QUICK_BYTES: Final = 256 * 1024
"""Hashed in the event loop: under a millisecond."""

MAX_SEGMENT_BYTES: Final = 102_400
"""The size limit of a segment, which fits a message with history, filter and encryption."""


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


@dataclass(frozen=True, slots=True)
class Content:
    """A whole content of the log.

    ``request_id`` names it at its sender, and ``key`` is the position of the last segment to come.
    """

    request_id: str
    sender_id: str
    content: bytes
    key: Key
    own: bool


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A report that all segments of another's content came, with the right hash."""

    content: Content


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A report that nodes store all segments; perhaps no participant has received them."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A report that other participants acknowledged all segments; follows `MessageSent`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class MessageSendError:
    """An error: no node took a segment. It is sent again, so a `MessageDelivered` may follow."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class MessageDeliveryError:
    """An error: no participant has acknowledged a segment, which nodes store."""

    request_id: str
    error: str


@dataclass(frozen=True, slots=True)
class ContentDropped:
    """A content that is given up.

    Too few segments came in time, there were too many others, or all attempts to assemble it are
    used up. ``received`` is for how many indices some came.
    """

    sender_id: str
    received: int
    count: int


@dataclass(frozen=True, slots=True)
class AssemblyFailed:
    """A report that no choice of segments has the hash of a content.

    There are segments for all ``count`` indices, some of them forged, and ``attempts`` to assemble
    it have failed. A segment that comes later may complete it.
    """

    sender_id: str
    count: int
    attempts: int


@dataclass(frozen=True, slots=True)
class SegmentRefused:
    """A message that is no segment; the sentence says why."""

    message_id: str
    sender_id: str
    error: str


RequestEvent = MessageSent | MessageDelivered | MessageSendError | MessageDeliveryError
ReliableEvent = MessageReceived | RequestEvent | AssemblyFailed | ContentDropped | SegmentRefused


@dataclass(slots=True)
class _Request:
    """An own content. Its ID is that of the message with its first segment, also after a restart.

    Segments of one request follow each other among the own messages of the log; ``names`` are the
    messages of those from index ``first`` on.
    """

    request_id: str
    whole: SegmentSet
    first: int
    names: list[str] = field(default_factory=list)
    is_sent: bool = False
    has_failed: bool = False
    given_up: int = 0

    def end(self) -> RequestEvent:
        """Return what has become of all segments."""
        if not self.given_up:
            return MessageDelivered(self.request_id)
        error = (
            f"Nobody has acknowledged {self.given_up} of {self.whole.count} segments, "
            "however often they were sent."
        )
        return MessageDeliveryError(self.request_id, error)


class _Requests:
    """The requests that have not ended, by the IDs of their segments.

    ``unsent`` are the messages that no node has answered for, ``refused`` those that none takes,
    and ``open`` those that are neither acknowledged nor given up.
    """

    def __init__(self, unsent: Iterable[str] = (), open: Iterable[str] = ()) -> None:  # noqa: A002 - as the field
        self.unsent, self.open, self.refused = set(unsent), set(open), set[str]()
        self.of: dict[str, _Request] = {}
        self._newest: _Request | None = None

    def add(self, message_id: str, segment: Segment, *, acknowledged: bool = False) -> None:
        """Add an own segment, in the order of the log.

        A segment whose first ones are unknown has a request of its own.
        """
        request, index = self._newest, segment.index
        if request is None or (request.whole, request.first + len(request.names)) != (
            segment.whole,
            index,
        ):
            request = self._newest = _Request(message_id, segment.whole, index)
        request.names.append(message_id)
        request.given_up += message_id not in self.open and not acknowledged
        if message_id in self.unsent or message_id in self.open:
            self.of[message_id] = request

    def loaded(self) -> None:
        """Mark the requests so far as those of an earlier run, which were reported then."""
        for request in self.of.values():
            request.is_sent = self.unsent.isdisjoint(request.names)

    def take(self, event: Sent | NotStored | Acknowledged | GaveUp) -> list[RequestEvent]:
        """Note what became of a segment; return what follows for its request."""
        name, news = event.message_id, list[RequestEvent]()
        request = self.of.get(name)
        if request is None:
            return news
        if isinstance(event, Acknowledged | GaveUp):
            self.open.discard(name)
            request.given_up += isinstance(event, GaveUp)
        if not isinstance(event, GaveUp):
            self.unsent.discard(name)
            self.refused.discard(name)
        if isinstance(event, NotStored):
            self.refused.add(name)
            if not request.has_failed:
                request.has_failed = True
                news.append(MessageSendError(request.request_id, event.reason))
        is_whole = request.first + len(request.names) == request.whole.count
        if not is_whole or not self.unsent.isdisjoint(request.names):
            return news
        if not request.is_sent and self.refused.isdisjoint(request.names):
            request.is_sent = True
            news.append(MessageSent(request.request_id))
        if self.open.isdisjoint(request.names):
            news.append(request.end())
            for each in request.names:
                self.of.pop(each, None)
        return news


Found = Content | ContentDropped | AssemblyFailed | SegmentRefused


class ContentReader:
    """A reader of messages in any order; segments are read from the log when all are there."""

    def __init__(self, channel: AsyncChannel, patience_ms: int) -> None:
        self._channel = channel
        self._reassembly = Reassembly(patience_ms)

    def note(self, now_ms: int, message: Message, segment: Segment) -> None:
        """Add a segment of an earlier run, which has reported what it completes."""
        complete = self._add(now_ms, message, segment)
        if complete is not None:
            self._reassembly.remove(complete)
        self._reassembly.sweep(now_ms)

    async def take(self, now_ms: int, message: Message) -> list[Found]:
        """Return what a message completes, or why it completes nothing."""
        try:
            segment = _segment_of(message)
        except SegmentError as error:
            return [SegmentRefused(message.message_id, message.sender_id, str(error))]
        found: list[Found] = []
        complete = self._add(now_ms, message, segment)
        if complete is not None:
            found += await self._read(message, complete)
        for (sender, whole), received in self._reassembly.sweep(now_ms):
            found.append(ContentDropped(sender, received, whole.count))
        return found

    def _add(self, now_ms: int, message: Message, segment: Segment) -> SetName | None:
        rank = 2 if message.proof is Proof.MESSAGE else int(bool(message.proof))
        return self._reassembly.add(
            now_ms,
            message.sender_id,
            segment,
            message.key,
            rank=3 if message.signed else rank,
            causes=message.causes,
        )

    async def _read(self, message: Message, name: SetName) -> list[Found]:
        attempts, (sender, whole) = 0, name
        for keys in self._reassembly.attempts(name):
            attempts += 1
            content = await self._joined(whole, keys)
            if content is not None:
                self._reassembly.remove(name)
                return [Content(keys[0][1], sender, content, message.key, message.own)]
        found: list[Found] = [AssemblyFailed(sender, whole.count, attempts)] if attempts else []
        if self._reassembly.is_exhausted(name):
            found.append(ContentDropped(sender, self._reassembly.remove(name), whole.count))
        return found

    async def _joined(self, whole: SegmentSet, keys: tuple[Key, ...]) -> bytes | None:
        parts = []
        for key in keys:
            message = await self._channel.at(key)
            if message is None:
                return None
            parts.append(_segment_of(message).part)
        if sum(map(len, parts)) <= _QUICK_BYTES:
            return join(whole, parts)
        return await asyncio.to_thread(join, whole, parts)


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
        self, channel: AsyncChannel, segmentation: SegmentationConfig, clock: Callable[[], int]
    ) -> None:
        self.channel = channel
        self._segmentation = segmentation
        self._clock = clock
        self._hub: EventHub[ReliableEvent] = EventHub()
        # Of one moment: later changes come as events.
        self._events = channel.events()
        self._requests = _Requests(channel.unpublished(), channel.unacknowledged())

    @classmethod
    @asynccontextmanager
    async def join(
        cls,
        places: Place | Sequence[Place],
        channel_id: str = DEFAULT_CHANNEL_ID,
        sender_id: str = "",
        *,
        segmentation: SegmentationConfig | None = None,
        **options: Unpack[JoinOptions],
    ) -> AsyncIterator[Self]:
        """Take part in a channel for the length of an ``async with`` block.

        - ``segmentation``: the same revision is read whatever is written.
        - the other arguments, and errors, are those of `AsyncChannel.join`. A ``cipher`` encrypts
          and a ``signer`` signs each segment; the log of ``channel`` shows whose signatures hold.
        """
        clock = options.get("clock", time.time_ns)
        async with (
            AsyncChannel.join(places, channel_id, sender_id, **options) as channel,
            cls.over(channel, segmentation=segmentation, clock=clock) as made,
        ):
            yield made

    @classmethod
    @asynccontextmanager
    async def over(
        cls,
        channel: AsyncChannel,
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
                pump.exception()  # readers and callers were told it

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
            StateTakenError: another process took the state.
        """
        check_bytes("content", content, ".encode()")
        config = self._segmentation
        segments = await asyncio.to_thread(split, content, config.segment_bytes, config.revision)
        return (await self.channel.send_all(segments))[0]

    def events(self) -> Events[ReliableEvent]:
        """Return a reader of what happens from now on; read it, as `AsyncChannel.events`."""
        return Events(self._hub, -1)

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
                    is_known = message.acknowledged_by is not None
                    self._requests.add(message.message_id, segment, acknowledged=is_known)
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
                    self._requests.unsent.add(event.message_id)
                    self._requests.open.add(event.message_id)
                    self._requests.add(event.message_id, _segment_of(event))
            # What others publish under our name is no request of ours.
            case Message() if not event.own:
                found = await reader.take(self._now_ms(), event)
                return [
                    MessageReceived(each) if isinstance(each, Content) else each for each in found
                ]
            case Sent() | NotStored() | Acknowledged() | GaveUp():
                return [*self._requests.take(event)]
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
                    segment = replace(_segment_of(message), part=b"")
                    found.append((replace(message, content=b""), segment))
            page = await self.channel.log(_PAGE, before=page[0].key, until=self._events)
        return found[::-1]

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000


def _segment_of(message: Message) -> Segment:
    """Return the segment that a message is.

    Raises:
        SegmentError: it is none.
    """
    if not message.readable:
        raise SegmentError("it cannot be decrypted")
    return read_segment(message.content)
