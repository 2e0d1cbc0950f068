"""A store node as a transport: gRPC calls of ``storenode.v1.Store``, and what they may give.

Hashes are computed here, from what came: a message under another hash than its own, on another
topic, or that was not asked for is dropped. Streams have a deadline from page to page, and bounds
on pages without messages and on bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from storenode.connection.channel import Metadata, TlsIdentity, open_channel
from storenode.connection.ending import Ending, cancelled
from storenode.connection.errors import node_error
from storenode.message.hashing import message_hash
from storenode.sds.aio.limits import (
    CALL_TIMEOUT_S,
    MAX_CLOSURE_MESSAGES,
    MAX_CURSOR_BYTES,
    MAX_EMPTY_PAGES,
    MAX_FETCHED_BYTES,
    MAX_HINTS_PER_CALL,
    MAX_NODE_RESPONSE_BYTES,
    MAX_REASON_CHARS,
)
from storenode.sds.aio.transport import (
    CursorRefused,
    FeedPage,
    Fetched,
    Outbound,
    TransportError,
    Verdict,
)
from storenode.sds.codec import Entry
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1 import store_pb2, store_pb2_grpc
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import (
    StoreQueryRequest,
    StoreQueryResponse,
    WakuMessageKeyValue,
)
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storenode.sds.aio.transport import Route

    Call = grpc.aio.StreamStreamCall[store_pb2.PublishRequest, store_pb2.PublishResponse]

_P = TypeVar("_P")
_PAGE_FULL = MAX_HINTS_PER_CALL
_HELD = frozenset(
    {
        store_pb2.PublishResult.STORED,
        store_pb2.PublishResult.DUPLICATE,
        store_pb2.PublishResult.EPHEMERAL,
        store_pb2.PublishResult.UNCONFIRMED,
    }
)


@dataclass(frozen=True, slots=True)
class StoreNode:
    """A node at ``HOST:PORT``.

    ``token`` authenticates the participant, ``tls`` encrypts; without it the connection is in
    clear, and a token is then sent over loopback only. What is wrong with them is raised by
    `open` as ``ClientOptionError``.
    """

    address: str
    token: str | None = None
    tls: TlsIdentity | None = None

    @property
    def name(self) -> str:
        """The address."""
        return self.address

    def open(self, route: Route) -> NodeLink:
        """Make a link; it connects with its first call."""
        channel, metadata = open_channel(
            self.address, self.token, self.tls, max_response_bytes=MAX_NODE_RESPONSE_BYTES
        )
        return NodeLink(self.address, route, channel, metadata)


class NodeLink:
    """One channel at one node; the methods are those of `storenode.sds.aio.transport.Link`."""

    def __init__(
        self, name: str, route: Route, channel: grpc.aio.Channel, metadata: Metadata
    ) -> None:
        self._name = name
        self._route = route
        self._channel = channel
        self._metadata = metadata
        self._store: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(channel)
        # Encoded once: every message is hashed.
        self._topics = route.pubsub_topic.encode(), route.content_topic.encode()
        self._filter = store_pb2.ContentFilter(
            pubsub_topic=route.pubsub_topic, content_topics=[route.content_topic]
        )
        self.dropped = 0
        """Messages that were under a wrong hash or topic, or were not asked for."""

    @property
    def name(self) -> str:
        """The node's address."""
        return self._name

    @property
    def route(self) -> Route:
        """Where the channel is published."""
        return self._route

    async def close(self) -> None:
        """End all calls and the connection."""
        await self._channel.close(grace=None)

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        """By ``PublishStream``."""
        with self._translated():
            call: Call = self._store.PublishStream(None, metadata=self._metadata)
            ending = Ending(call)
            sent: deque[list[bytes]] = deque()
            writer = asyncio.create_task(self._write(call, batches, sent))
            try:
                async for response in call:
                    verdicts = self.verdicts(response, sent[0] if sent else [])
                    sent.popleft()
                    yield verdicts
            except grpc.aio.AioRpcError as error:
                if (failure := await ending.failure(error)) is not None:
                    raise failure from error
            finally:
                call.cancel()
                await cancelled(writer)
        raise TransportError(f"The node at {self._name} ended the stream of publishing.")

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """By ``Follow``."""
        async with aclosing(self.pages(self._filter, cursor)) as pages:
            async for page in pages:
                yield FeedPage(self.fetched(page.messages), page.cursor, page.live)

    async def pages(
        self, wanted: store_pb2.ContentFilter, cursor: bytes
    ) -> AsyncGenerator[store_pb2.FollowPage, None]:
        """The responses to ``Follow``, without end."""
        request = store_pb2.FollowRequest(filter=wanted, cursor=cursor, include_data=True)
        call = self._store.Follow(request, metadata=self._metadata)
        pages = aiter(call)
        timeout_s: float | None = CALL_TIMEOUT_S
        with self._translated():
            try:
                while (page := await self._next(pages, timeout_s)) is not None:
                    if len(page.cursor) > MAX_CURSOR_BYTES:
                        raise TransportError(f"The node at {self._name} gives no usable cursor.")
                    yield page
                    timeout_s = None
            finally:
                call.cancel()
        raise TransportError(f"The node at {self._name} ended the feed.")

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """By ``Scan``; a node whose messages go back in time has lost its turn."""
        return self.scan_telling(since_ns, None)

    async def scan_telling(
        self, since_ns: int, tell: Callable[[AnswerCoverage], None] | None
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """The same; ``tell`` is given how complete the answer is, if the node can tell."""

        def messages_of(page: store_pb2.ScanPage) -> Iterable[WakuMessageKeyValue]:
            if tell is not None and page.HasField("coverage"):
                tell(page.coverage)
            return page.messages

        request = store_pb2.ScanRequest(
            filter=self._filter,
            time_start=since_ns,
            include_data=True,
            coverage=tell is not None,
        )
        last_ns = since_ns
        call = self._store.Scan(request, metadata=self._metadata)
        async for messages in self._pages(call, messages_of, bounded=False):
            for message in messages:
                if message.timestamp_ns < last_ns:
                    raise TransportError(
                        f"The node at {self._name} does not scan in order of time."
                    )
                last_ns = message.timestamp_ns
            yield messages

    async def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """By ``Query``; a hint that is no hash of this topic's messages finds nothing."""
        request = StoreQueryRequest(
            include_data=True,
            message_hashes=[hint for hint in hints if len(hint) == 32],
            pagination_forward=True,
            pagination_limit=_PAGE_FULL,
        )
        wanted = set(request.message_hashes)
        while wanted:
            with self._translated():
                response = await self._store.Query(
                    request, metadata=self._metadata, timeout=CALL_TIMEOUT_S
                )
            self._check_status(response)
            found = [each for each in self.fetched(response.messages) if each.hint in wanted]
            wanted.difference_update(each.hint for each in found)
            if found:
                yield found
            if not found or not response.HasField("pagination_cursor"):
                return
            request.pagination_cursor = response.pagination_cursor

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Return the hints of messages that the node holds, by ``Query`` without data."""
        wanted = {hint for hint in hints if len(hint) == 32}
        if not wanted:
            return set()
        request = StoreQueryRequest(message_hashes=sorted(wanted), pagination_limit=_PAGE_FULL)
        with self._translated():
            response = await self._store.Query(
                request, metadata=self._metadata, timeout=CALL_TIMEOUT_S
            )
        self._check_status(response)
        return wanted & {each.message_hash for each in response.messages}

    async def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """By ``GetSdsMessages``."""
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=self._route.channel_id,
            entries=_history(entries),
            filter=self._filter,
            prefer_proven=True,
        )
        wanted = {entry.message_id for entry in entries}
        call = self._store.GetSdsMessages(request, metadata=self._metadata)
        async for messages in self._pages(call, lambda page: _stored(page.messages, wanted)):
            yield messages

    async def coverage(self) -> AnswerCoverage | None:
        """How complete the node is, by ``GetSdsMessages``; None: it cannot tell."""
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=self._route.channel_id, filter=self._filter, coverage=True
        )
        told: list[AnswerCoverage] = []

        def messages_of(page: store_pb2.SdsMessagesPage) -> Iterable[WakuMessageKeyValue]:
            if page.HasField("coverage"):
                told.append(page.coverage)
            return ()

        call = self._store.GetSdsMessages(request, metadata=self._metadata)
        async for _ in self._pages(call, messages_of):
            pass
        return told[-1] if told else None

    async def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """By ``GetCausalHistory``."""
        request = store_pb2.GetCausalHistoryRequest(
            channel_id=self._route.channel_id,
            heads=_history(heads),
            known_ids=known_ids,
            max_messages=MAX_CLOSURE_MESSAGES,
            filter=self._filter,
            prefer_proven=True,
        )
        left = MAX_CLOSURE_MESSAGES
        call = self._store.GetCausalHistory(request, metadata=self._metadata)
        async for messages in self._pages(call, lambda page: _stored(page.messages, None)):
            yield messages[:left]
            left -= len(messages)
            if left <= 0:
                return

    async def _write(
        self, call: Call, batches: AsyncIterator[Sequence[Outbound]], sent: deque[list[bytes]]
    ) -> None:
        try:
            async for batch in batches:
                request, hints = self.request(batch)
                # Listed before it is written: the answer may be quicker than this task.
                sent.append(hints)
                try:
                    await call.write(request)
                except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                    # The call is over; whoever reads its answers learns why.
                    return
        except Exception:
            # Whoever reads the answers waits for some that nobody asks for, and is told here.
            call.cancel()
            raise

    def request(self, batch: Sequence[Outbound]) -> tuple[store_pb2.PublishRequest, list[bytes]]:
        """A request that publishes a batch, and the hashes of its messages."""
        messages = [self._message(each) for each in batch]
        return (
            store_pb2.PublishRequest(messages=messages),
            [self._hash(item.message) for item in messages],
        )

    def verdicts(
        self, response: store_pb2.PublishResponse, hints: Sequence[bytes]
    ) -> list[Verdict]:
        """What a response says of the messages with these hashes.

        Raises:
            TransportError: it says it of others, or there are none.
        """
        if not hints or len(response.results) != len(hints):
            raise TransportError(f"The node at {self._name} answered what was not published.")
        return [
            Verdict(result.outcome in _HELD, hint, result.reason[:MAX_REASON_CHARS])
            for result, hint in zip(response.results, hints, strict=True)
        ]

    def _message(self, item: Outbound) -> WakuMessageAndTopic:
        route = self._route
        message = WakuMessage(
            payload=item.payload,
            content_topic=route.content_topic,
            timestamp=item.timestamp_ns,
            ephemeral=item.ephemeral or None,
        )
        return WakuMessageAndTopic(message=message, pubsub_topic=route.pubsub_topic)

    def _check_status(self, response: StoreQueryResponse) -> None:
        if not 200 <= response.status_code < 300:
            reason = response.status_desc[:MAX_REASON_CHARS]
            raise TransportError(reason or f"The node at {self._name} gave no reason.")

    def _hash(self, message: WakuMessage) -> bytes:
        meta = message.meta if message.HasField("meta") else None
        pubsub_topic, content_topic = self._topics
        return message_hash(pubsub_topic, message.payload, content_topic, meta, message.timestamp)

    def fetched(self, items: Iterable[WakuMessageKeyValue]) -> list[Fetched]:
        """Messages of the channel under their own hashes; others are dropped."""
        route = self._route
        found = []
        for item in items:
            message = item.message
            on_route = (
                item.pubsub_topic == route.pubsub_topic
                and message.content_topic == route.content_topic
            )
            hint = self._hash(message) if on_route and message.timestamp else b""
            if hint and hint == item.message_hash:
                kept = b"" if message.ephemeral else hint
                found.append(Fetched(message.payload, kept, message.timestamp))
            else:
                self.dropped += 1
        return found

    async def _pages(
        self,
        call: grpc.aio.UnaryStreamCall[Any, _P],
        items: Callable[[_P], Iterable[WakuMessageKeyValue]],
        *,
        bounded: bool = True,
    ) -> AsyncGenerator[list[Fetched], None]:
        empty = taken_bytes = 0
        pages = aiter(call)
        with self._translated():
            try:
                while (page := await self._next(pages, CALL_TIMEOUT_S)) is not None:
                    messages = self.fetched(items(page))
                    taken_bytes += sum(len(each.payload) for each in messages) if bounded else 0
                    empty = 0 if messages else empty + 1
                    if messages:
                        yield messages
                    if empty > MAX_EMPTY_PAGES or taken_bytes > MAX_FETCHED_BYTES:
                        raise TransportError(f"The node at {self._name} gives pages without end.")
            finally:
                call.cancel()

    async def _next(self, pages: AsyncIterator[_P], timeout_s: float | None) -> _P | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(pages, None)
        except TimeoutError:
            raise TransportError(
                f"The node at {self._name} gave nothing for {CALL_TIMEOUT_S:.0f} s."
            ) from None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            sentence = node_error(error, self._name).sentence[:MAX_REASON_CHARS]
            if error.code() is grpc.StatusCode.OUT_OF_RANGE:
                raise CursorRefused(sentence) from error
            raise TransportError(sentence) from error
        except grpc.aio.UsageError as error:
            raise TransportError(f"The link to {self._name} is closed.") from error


def _history(entries: Sequence[Entry]) -> list[HistoryEntry]:
    return [
        HistoryEntry(message_id=entry.message_id, retrieval_hint=entry.hint) for entry in entries
    ]


def _stored(
    messages: Iterable[store_pb2.SdsStoredMessage], wanted: set[str] | None
) -> list[WakuMessageKeyValue]:
    return [each.stored for each in messages if wanted is None or each.entry.message_id in wanted]
