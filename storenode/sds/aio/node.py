"""A store node as a transport: gRPC calls of ``storenode.v1.Store``, and bounds on the responses.

Links of a `StoreNode` share connections, up to `MAX_LINKS_PER_CONNECTION` each, since a node bounds
the calls of one. A connection is opened with its first link and closed with its last.

Hashes are computed here, from the received bytes: a message under another hash than its own, on
another topic, or that was not requested is dropped. Streams have a deadline from page to page, and
bounds on pages without messages and on bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

import grpc

from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.retry import Retry
from storenode.common.errors import ClientClosedError
from storenode.connection import errors
from storenode.connection.channel import TlsIdentity
from storenode.message.hashing import message_hash
from storenode.message.limits import MAX_QUERY_HASHES
from storenode.sds.aio.transport import (
    FeedCursorRefusedError,
    FeedPage,
    Fetched,
    Link,
    Outbound,
    PublishResult,
    Route,
    TransportError,
)
from storenode.sds.codec import Entry
from storenode.sds.limits import (
    CALL_TIMEOUT_S,
    MAX_CALLS_AT_ONCE,
    MAX_CLOSURE_MESSAGES,
    MAX_CURSOR_BYTES,
    MAX_EMPTY_PAGES,
    MAX_FETCHED_BYTES,
    MAX_LINKS_PER_CONNECTION,
    MAX_NODE_RESPONSE_BYTES,
    MAX_PUBLISHES_AT_ONCE,
    MAX_REASON_CHARS,
)
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import (
    StoreQueryRequest,
    StoreQueryResponse,
    WakuMessageKeyValue,
)
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

_P = TypeVar("_P")
_STORED = frozenset(
    {
        store_pb2.PublishResult.STORED,
        store_pb2.PublishResult.DUPLICATE,
        store_pb2.PublishResult.EPHEMERAL,
        store_pb2.PublishResult.UNCONFIRMED,
    }
)

_FINAL = (
    errors.NotAuthenticatedError,
    errors.AccessDeniedError,
    errors.NotServedError,
    errors.TlsHandshakeError,
    errors.WrongProtocolError,
)
"""Errors that another attempt cannot heal."""


class StoreNode:
    """A node at ``HOST:PORT``.

    ``token`` authenticates the participant, ``tls`` encrypts; without it the connection is in
    clear, and a token is then sent over loopback only. Wrong values are reported by `open`, as
    ``ClientOptionError``.
    """

    def __init__(
        self, address: str, token: str | None = None, tls: TlsIdentity | None = None
    ) -> None:
        self.name = self.address = address
        self.token = token
        self.tls = tls
        # By event loop: channels of gRPC belong to one.
        self._connections = WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Connection]]()

    def open(self, route: Route) -> NodeLink:
        """Make a link of one channel; it connects with its first call."""
        known = self._connections.setdefault(asyncio.get_running_loop(), [])
        with_room = (each for each in known if each.links < MAX_LINKS_PER_CONNECTION)
        connection = next(with_room, None)
        if connection is None:
            known.append(connection := _Connection(self, known))
        connection.links += 1
        return NodeLink(route, connection)


class _Connection:
    """A connection to a node; ``calls`` and ``publishes`` bound the calls of its links."""

    def __init__(self, node: StoreNode, others: list[_Connection]) -> None:
        self.name = node.address
        self._others = others
        self.links = 0
        self.client = connect(
            node.address,
            token=node.token,
            tls=node.tls,
            retry=Retry(attempts=0),
            timeout_s=CALL_TIMEOUT_S,
            max_response_bytes=MAX_NODE_RESPONSE_BYTES,
        )
        self.calls = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self.publishes = asyncio.Semaphore(MAX_PUBLISHES_AT_ONCE)

    async def release(self) -> None:
        """Release a link; close the connection with its last one."""
        self.links -= 1
        if not self.links:
            self._others.remove(self)
            await self.client.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate failures of calls into `TransportError`."""
        try:
            yield
        except errors.NodeError as error:
            sentence = error.sentence[:MAX_REASON_CHARS]
            if isinstance(error, errors.CursorRefusedError):
                raise FeedCursorRefusedError(sentence) from error
            raise TransportError(sentence, error if isinstance(error, _FINAL) else None) from error
        except (ClientClosedError, grpc.aio.UsageError) as error:
            raise TransportError(f"The link to {self.name} is closed.") from error


class NodeLink(Link):
    """A channel at a node."""

    def __init__(self, route: Route, connection: _Connection) -> None:
        self.route = route
        self._connection = connection
        self._closed = False
        # Encoded once: every message is hashed.
        self._topics = route.pubsub_topic.encode(), route.content_topic.encode()
        self._filter = store_pb2.ContentFilter(
            pubsub_topic=route.pubsub_topic, content_topics=[route.content_topic]
        )

    @property
    def name(self) -> str:
        """The node's address."""
        return self._connection.name

    async def close(self) -> None:
        """Release the connection, which is closed with its last link."""
        if not self._closed:
            self._closed = True
            await self._connection.release()

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        """Publish a batch by ``Publish``."""
        messages = [self._message(each) for each in batch]
        connection = self._connection
        async with connection.publishes:
            with connection.translated():
                results = await connection.client.publish(messages)
        return [
            PublishResult(each.outcome in _STORED, self._hash(sent), each.reason[:MAX_REASON_CHARS])
            for sent, each in zip((item.message for item in messages), results, strict=False)
        ]

    async def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the channel by ``Follow``."""
        connection = self._connection
        found = connection.client.follow(filter=self._filter, cursor=cursor)
        with connection.translated():
            async with aclosing(found) as pages:
                async for page in pages:
                    if len(page.cursor) > MAX_CURSOR_BYTES:
                        raise TransportError(f"The node at {self.name} gives no usable cursor.")
                    yield FeedPage(self.fetched(page.messages), page.cursor, page.live)
        raise TransportError(f"The node at {self.name} ended the feed.")

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan with ``Scan``; a node whose messages go back in time fails."""
        found = self._connection.client.scan(filter=self._filter, time_start=since_ns)
        last_ns = since_ns
        async with aclosing(self._pages(found, lambda page: page.messages, bounded=False)) as pages:
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
            pagination_limit=MAX_QUERY_HASHES,
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
            StoreQueryRequest(message_hashes=sorted(wanted), pagination_limit=MAX_QUERY_HASHES)
        )
        return wanted & {each.message_hash for each in response.messages}

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch by ``GetSdsMessages``."""
        wanted = {entry.message_id for entry in entries}
        found = self._connection.client.get_sds(
            self.route.channel_id, _named(entries), filter=self._filter
        )
        return self._pages(found, lambda page: _stored(page.messages, wanted))

    async def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch causal histories by ``GetCausalHistory``."""
        left = MAX_CLOSURE_MESSAGES
        found = self._connection.client.causal_history(
            self.route.channel_id,
            _named(heads),
            known_ids=known_ids,
            max_messages=left,
            filter=self._filter,
        )
        async with aclosing(self._pages(found, lambda page: _stored(page.messages, None))) as pages:
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
        return found

    def _message(self, item: Outbound) -> WakuMessageAndTopic:
        return new_message(
            item.payload,
            self.route.content_topic,
            self.route.pubsub_topic,
            item.timestamp_ns,
            ephemeral=item.ephemeral or None,
        )

    def _hash(self, message: WakuMessage) -> bytes:
        meta = message.meta if message.HasField("meta") else None
        pubsub_topic, content_topic = self._topics
        return message_hash(pubsub_topic, message.payload, content_topic, meta, message.timestamp)

    async def _query(self, request: StoreQueryRequest) -> StoreQueryResponse:
        connection = self._connection
        async with connection.calls:
            with connection.translated():
                return await connection.client.query(request)

    async def _pages(
        self,
        pages: AsyncGenerator[_P, None],
        items: Callable[[_P], Iterable[WakuMessageKeyValue]],
        *,
        bounded: bool = True,
    ) -> AsyncGenerator[list[Fetched], None]:
        connection = self._connection
        empty = taken_bytes = 0
        async with connection.calls, aclosing(pages):
            with connection.translated():
                async for page in pages:
                    messages = self.fetched(items(page))
                    taken_bytes += sum(len(each.payload) for each in messages) * bounded
                    empty = 0 if messages else empty + 1
                    if messages:
                        yield messages
                    if empty > MAX_EMPTY_PAGES or taken_bytes > MAX_FETCHED_BYTES:
                        raise TransportError(f"The node at {self.name} gives pages without end.")


def _named(entries: Sequence[Entry]) -> list[tuple[str, bytes | None]]:
    return [(entry.message_id, entry.hint) for entry in entries]


def _stored(
    messages: Iterable[store_pb2.SdsStoredMessage], wanted: set[str] | None
) -> list[WakuMessageKeyValue]:
    return [each.stored for each in messages if wanted is None or each.entry.message_id in wanted]
