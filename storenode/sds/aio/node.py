"""A store node as a transport: gRPC calls of ``storenode.v1.Store``, and bounds on the responses.

All links of a `StoreNode` share one connection, one ``PublishStream`` and few calls of ``Follow``
(`storenode.sds.aio.feeds`). The connection is opened with the first link and closed with the last.

Hashes are computed here, from the received bytes: a message under another hash than its own, on
another topic, or that was not requested is dropped. Streams have a deadline from page to page, and
bounds on pages without messages and on bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc

from storenode.connection.call_status import Ending, cancelled
from storenode.connection.channel import TlsIdentity, explain_failure, open_channel
from storenode.connection.errors import (
    AccessDenied,
    NodeError,
    NotAuthenticated,
    NotServed,
    TlsHandshakeError,
    WrongProtocolError,
    node_error,
)
from storenode.connection.errors import CursorRefused as NodeCursorRefused
from storenode.message.hashing import message_hash
from storenode.sds.aio.feeds import SharedFeeds
from storenode.sds.aio.limits import (
    CALL_TIMEOUT_S,
    MAX_CALLS_AT_ONCE,
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
    PublishResult,
    Route,
    TransportError,
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

_P = TypeVar("_P")
_Answers = asyncio.Queue[Sequence[PublishResult] | TransportError]
_Judge = Callable[[store_pb2.PublishResponse], Sequence[PublishResult]]
_STORED = frozenset(
    {
        store_pb2.PublishResult.STORED,
        store_pb2.PublishResult.DUPLICATE,
        store_pb2.PublishResult.EPHEMERAL,
        store_pb2.PublishResult.UNCONFIRMED,
    }
)


_FINAL = (NotAuthenticated, AccessDenied, NotServed, TlsHandshakeError, WrongProtocolError)
"""Errors that another attempt cannot heal."""


class StoreNode:
    """A node at ``HOST:PORT``.

    ``token`` authenticates the participant, ``tls`` encrypts; without it the connection is in
    clear, and a token is then sent over loopback only. Wrong values are reported by `open`, as
    ``ClientOptionError``. A subclass may have its own `link_class`.
    """

    link_class: type[NodeLink]

    def __init__(
        self, address: str, token: str | None = None, tls: TlsIdentity | None = None
    ) -> None:
        self.address = address
        self.token = token
        self.tls = tls
        # By event loop: channels of gRPC belong to one.
        self._connections: dict[asyncio.AbstractEventLoop, _Connection] = {}

    @property
    def name(self) -> str:
        """The address."""
        return self.address

    def open(self, route: Route) -> NodeLink:
        """Make a link of one channel; it connects with its first call."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            connection = self._connections[loop] = _Connection(self)
        connection.links += 1
        return self.link_class(route, connection, partial(self._release, loop))

    async def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        connection = self._connections[loop]
        connection.links -= 1
        if not connection.links:
            del self._connections[loop]
            await connection.close()


class _Connection:
    """The connection to a node; ``calls`` bounds the calls of single channels."""

    def __init__(self, node: StoreNode) -> None:
        self.name = node.address
        self._tls = node.tls
        self.links = 0
        self._channel, self.metadata = open_channel(
            node.address, node.token, node.tls, max_response_bytes=MAX_NODE_RESPONSE_BYTES
        )
        self.store: store_pb2_grpc.StoreAsyncStub = store_pb2_grpc.StoreStub(self._channel)
        self.calls = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self.feeds = SharedFeeds(self.follow, self.calls)
        self._turn = asyncio.Lock()
        self._publishing: (
            grpc.aio.StreamStreamCall[store_pb2.PublishRequest, store_pb2.PublishResponse] | None
        ) = None
        self._sent: deque[tuple[_Judge, _Answers]] = deque()
        self._reader: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End all calls and the connection."""
        await self.feeds.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait({self._reader})
        await self._channel.close(grace=None)

    async def follow(
        self, wanted: store_pb2.ContentFilter, cursor: bytes
    ) -> AsyncGenerator[store_pb2.FollowPage, None]:
        """Yield the responses to ``Follow``, without end."""
        request = store_pb2.FollowRequest(filter=wanted, cursor=cursor, include_data=True)
        call = self.store.Follow(request, metadata=self.metadata)
        pages = aiter(call)
        timeout_s: float | None = CALL_TIMEOUT_S
        with self.translated():
            try:
                while (page := await self.next_page(pages, timeout_s)) is not None:
                    if len(page.cursor) > MAX_CURSOR_BYTES:
                        raise TransportError(f"The node at {self.name} gives no usable cursor.")
                    yield page
                    timeout_s = None
            except grpc.aio.AioRpcError as error:
                raise _transport_error(
                    await explain_failure(error, self.name, self._tls)
                ) from error
            finally:
                call.cancel()
        raise TransportError(f"The node at {self.name} ended the feed.")

    async def publish(
        self, request: store_pb2.PublishRequest, judge: _Judge, answers: _Answers
    ) -> None:
        """Send a request; the verdicts, or the failure of the stream, are put into ``answers``.

        The stream is opened with the first request, and again after it has failed.
        """
        async with self._turn:
            call = self._publishing
            if call is None:
                call = self._publishing = self.store.PublishStream(None, metadata=self.metadata)
                self._reader = asyncio.create_task(self._read_answers(call))
            # Listed before it is written: the answer may be quicker than this task.
            self._sent.append((judge, answers))
            try:
                await call.write(request)
            except (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
                # The call is over; the reader reports the reason to all that wait.
                return

    async def next_page(self, pages: AsyncIterator[_P], timeout_s: float | None) -> _P | None:
        """Return the next response of a stream; None at its end."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(pages, None)
        except TimeoutError:
            raise TransportError(
                f"The node at {self.name} gave nothing for {CALL_TIMEOUT_S:.0f} s."
            ) from None

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate failures of calls into `TransportError`."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise _transport_error(node_error(error, self.name)) from error
        except grpc.aio.UsageError as error:
            raise TransportError(f"The link to {self.name} is closed.") from error

    async def _read_answers(
        self, call: grpc.aio.StreamStreamCall[store_pb2.PublishRequest, store_pb2.PublishResponse]
    ) -> None:
        failure = TransportError(f"The node at {self.name} ended the stream of publishing.")
        ending = Ending(call)
        try:
            with self.translated():
                try:
                    async for response in call:
                        self._answer(response)
                except grpc.aio.AioRpcError as error:
                    if (status := await ending.failure(error)) is not None:
                        raise status from error
        except TransportError as error:
            failure = error
        finally:
            call.cancel()
            self._publishing = None
            waiting = [answers for _, answers in self._sent]
            self._sent.clear()
            for answers in dict.fromkeys(waiting):
                answers.put_nowait(failure)

    def _answer(self, response: store_pb2.PublishResponse) -> None:
        if not self._sent:
            raise TransportError(f"The node at {self.name} answered what was not published.")
        judge, answers = self._sent[0]
        verdicts = judge(response)
        self._sent.popleft()
        answers.put_nowait(verdicts)


class NodeLink:
    """A channel at a node; the methods are those of `storenode.sds.aio.transport.Link`.

    ``dropped`` counts messages under a wrong hash or topic.
    """

    def __init__(self, route: Route, connection: _Connection, release: Callable[[], Any]) -> None:
        self.route = route
        self._connection = connection
        self._release = release
        self._closed = False
        # Encoded once: every message is hashed.
        self._topics = route.pubsub_topic.encode(), route.content_topic.encode()
        self._filter = store_pb2.ContentFilter(
            pubsub_topic=route.pubsub_topic, content_topics=[route.content_topic]
        )
        self.dropped = 0

    @property
    def name(self) -> str:
        """The node's address."""
        return self._connection.name

    async def close(self) -> None:
        """Release the connection, which is closed with its last link."""
        if not self._closed:
            self._closed = True
            await self._release()

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[PublishResult], None]:
        """Publish through the ``PublishStream`` of all channels, and yield the verdicts."""
        answers: _Answers = asyncio.Queue()
        writer = asyncio.create_task(self._write(batches, answers))
        try:
            while True:
                answer = await answers.get()
                if isinstance(answer, TransportError):
                    raise answer
                yield answer
        finally:
            await cancelled(writer)

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the channel with a call that it shares with others."""
        return self._connection.feeds.follow(self, cursor)

    async def follow_alone(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the channel with a call of its own."""
        async with aclosing(self._connection.follow(self._filter, cursor)) as pages:
            async for page in pages:
                yield FeedPage(self.fetched(page.messages), page.cursor, page.live)

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan with ``Scan``; a node whose messages go back in time fails."""
        return self.scan_with_coverage(since_ns, None)

    async def scan_with_coverage(
        self, since_ns: int, report: Callable[[AnswerCoverage], None] | None
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan, and pass the statement of how complete the answer is to ``report``, if any."""

        def messages_of(page: store_pb2.ScanPage) -> Iterable[WakuMessageKeyValue]:
            if report is not None and page.HasField("coverage"):
                report(page.coverage)
            return page.messages

        request = store_pb2.ScanRequest(
            filter=self._filter,
            time_start=since_ns,
            include_data=True,
            coverage=report is not None,
        )
        last_ns = since_ns
        call = partial(self._connection.store.Scan, request)
        async with aclosing(self._pages(call, messages_of, bounded=False)) as pages:
            async for messages in pages:
                for message in messages:
                    if message.timestamp_ns < last_ns:
                        raise TransportError(
                            f"The node at {self.name} does not scan in order of time."
                        )
                    last_ns = message.timestamp_ns
                yield messages

    async def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch by ``Query``; a hint that is no hash of this topic's messages finds nothing."""
        request = StoreQueryRequest(
            include_data=True,
            message_hashes=[hint for hint in hints if len(hint) == 32],
            pagination_forward=True,
            pagination_limit=MAX_HINTS_PER_CALL,
        )
        wanted = set(request.message_hashes)
        while wanted:
            response = await self._query(request)
            found = [each for each in self.fetched(response.messages) if each.hint in wanted]
            wanted.difference_update(each.hint for each in found)
            if found:
                yield found
            if not found or not response.HasField("pagination_cursor"):
                return
            request.pagination_cursor = response.pagination_cursor

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Return the hints of messages that the node stores, by ``Query`` without data."""
        wanted = {hint for hint in hints if len(hint) == 32}
        if not wanted:
            return set()
        response = await self._query(
            StoreQueryRequest(message_hashes=sorted(wanted), pagination_limit=MAX_HINTS_PER_CALL)
        )
        return wanted & {each.message_hash for each in response.messages}

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch by ``GetSdsMessages``."""
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=self.route.channel_id,
            entries=_history(entries),
            filter=self._filter,
            prefer_proven=True,
        )
        wanted = {entry.message_id for entry in entries}
        call = partial(self._connection.store.GetSdsMessages, request)
        return self._pages(call, lambda page: _stored(page.messages, wanted))

    async def coverage(self) -> AnswerCoverage | None:
        """Return how complete the node is, by ``GetSdsMessages``; None if it does not state it."""
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=self.route.channel_id, filter=self._filter, coverage=True
        )
        found: AnswerCoverage | None = None

        def messages_of(page: store_pb2.SdsMessagesPage) -> Iterable[WakuMessageKeyValue]:
            nonlocal found
            found = page.coverage if page.HasField("coverage") else found
            return ()

        call = partial(self._connection.store.GetSdsMessages, request)
        async for _ in self._pages(call, messages_of):
            pass
        return found

    async def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch causal histories by ``GetCausalHistory``."""
        request = store_pb2.GetCausalHistoryRequest(
            channel_id=self.route.channel_id,
            heads=_history(heads),
            known_ids=known_ids,
            max_messages=MAX_CLOSURE_MESSAGES,
            filter=self._filter,
            prefer_proven=True,
        )
        left = MAX_CLOSURE_MESSAGES
        call = partial(self._connection.store.GetCausalHistory, request)
        async with aclosing(self._pages(call, lambda page: _stored(page.messages, None))) as pages:
            async for messages in pages:
                yield messages[:left]
                left -= len(messages)
                if left <= 0:
                    return

    def fetched(self, items: Iterable[WakuMessageKeyValue]) -> list[Fetched]:
        """Return the messages of the channel under their own hashes; others are dropped."""
        route = self.route
        found = []
        for item in items:
            message = item.message
            on_route = (
                item.pubsub_topic == route.pubsub_topic
                and message.content_topic == route.content_topic
            )
            hint = self._hash(message) if on_route and message.timestamp else b""
            if hint and hint == item.message_hash:
                stored_hint = b"" if message.ephemeral else hint
                found.append(Fetched(message.payload, stored_hint, message.timestamp))
            else:
                self.dropped += 1
        return found

    async def _write(self, batches: AsyncIterator[Sequence[Outbound]], answers: _Answers) -> None:
        try:
            async for batch in batches:
                messages = [self._message(each) for each in batch]
                hints = [self._hash(item.message) for item in messages]
                request = store_pb2.PublishRequest(messages=messages)
                judge = partial(self._verdicts, hints=hints)
                await self._connection.publish(request, judge, answers)
        except Exception:
            # Else the reader would wait for answers to requests that were never sent.
            answers.put_nowait(TransportError(f"Publishing at {self.name} has failed."))
            raise

    def _verdicts(
        self, response: store_pb2.PublishResponse, hints: Sequence[bytes]
    ) -> list[PublishResult]:
        if not hints or len(response.results) != len(hints):
            raise TransportError(f"The node at {self.name} answered what was not published.")
        return [
            PublishResult(result.outcome in _STORED, hint, result.reason[:MAX_REASON_CHARS])
            for result, hint in zip(response.results, hints, strict=True)
        ]

    def _message(self, item: Outbound) -> WakuMessageAndTopic:
        message = WakuMessage(
            payload=item.payload,
            content_topic=self.route.content_topic,
            timestamp=item.timestamp_ns,
            ephemeral=item.ephemeral or None,
        )
        return WakuMessageAndTopic(message=message, pubsub_topic=self.route.pubsub_topic)

    def _hash(self, message: WakuMessage) -> bytes:
        meta = message.meta if message.HasField("meta") else None
        pubsub_topic, content_topic = self._topics
        return message_hash(pubsub_topic, message.payload, content_topic, meta, message.timestamp)

    async def _query(self, request: StoreQueryRequest) -> StoreQueryResponse:
        connection = self._connection
        async with connection.calls:
            with connection.translated():
                response = await connection.store.Query(
                    request, metadata=connection.metadata, timeout=CALL_TIMEOUT_S
                )
        if not 200 <= response.status_code < 300:
            reason = response.status_desc[:MAX_REASON_CHARS]
            raise TransportError(reason or f"The node at {self.name} gave no reason.")
        return response

    async def _pages(
        self,
        begin: Callable[..., grpc.aio.UnaryStreamCall[Any, _P]],
        items: Callable[[_P], Iterable[WakuMessageKeyValue]],
        *,
        bounded: bool = True,
    ) -> AsyncGenerator[list[Fetched], None]:
        connection = self._connection
        empty = taken_bytes = 0
        async with connection.calls:
            with connection.translated():
                call = begin(metadata=connection.metadata)
                pages = aiter(call)
                try:
                    while (page := await connection.next_page(pages, CALL_TIMEOUT_S)) is not None:
                        messages = self.fetched(items(page))
                        taken_bytes += sum(len(each.payload) for each in messages) * bounded
                        empty = 0 if messages else empty + 1
                        if messages:
                            yield messages
                        if empty > MAX_EMPTY_PAGES or taken_bytes > MAX_FETCHED_BYTES:
                            raise TransportError(
                                f"The node at {self.name} gives pages without end."
                            )
                finally:
                    call.cancel()


StoreNode.link_class = NodeLink


def _transport_error(error: NodeError) -> TransportError:
    sentence = error.sentence[:MAX_REASON_CHARS]
    if isinstance(error, NodeCursorRefused):
        return CursorRefused(sentence)
    return TransportError(sentence, error if isinstance(error, _FINAL) else None)


def _history(entries: Sequence[Entry]) -> list[HistoryEntry]:
    return [
        HistoryEntry(message_id=entry.message_id, retrieval_hint=entry.hint) for entry in entries
    ]


def _stored(
    messages: Iterable[store_pb2.SdsStoredMessage], wanted: set[str] | None
) -> list[WakuMessageKeyValue]:
    return [each.stored for each in messages if wanted is None or each.entry.message_id in wanted]
