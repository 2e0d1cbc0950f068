"""The client for asyncio: every call of a store node, at one node or at several."""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from types import NoneType
from typing import Final, Self

from storenode.client.message import (
    Message,
    Page,
    Published,
    SdsMessage,
    SdsResult,
    Time,
    check_hashes,
    check_list,
    check_range,
    encode_message,
    entries_of,
)
from storenode.client.messages import publish_requests, query_request
from storenode.client.node import Entry, NodeClient, connect, content_filter, listed
from storenode.client.positions import Resume, position_of
from storenode.client.publisher import DEFAULT_MAX_PENDING, AsyncPublisher
from storenode.client.retry import Retry
from storenode.client.streams import AsyncMessageStream, followed_across, limited, up_to_live
from storenode.common.errors import ArgumentError
from storenode.connection.arguments import check_bytes, check_kind
from storenode.connection.channel import TlsIdentity
from storenode.connection.errors import LimitExceededError
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.storenode.v1.admin_pb2 import FetchReport, NodeStatus, SyncReport
from storenode.wire.storenode.v1.store_pb2 import (
    CausalHistoryPage,
    CoverageStep,
    FollowPage,
    ScanPage,
    SdsMessagesPage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse

DEFAULT_TIMEOUT_S: Final = 30.0
"""The deadline of a call that is not a stream."""

DEFAULT_RETRY: Final = Retry()
"""Nodes that are away are called again for about a quarter of a minute, once one has answered."""

MAX_QUERY_PAGE: Final = 1_000
MAX_SCAN_PAGE: Final = 4_000
"""Messages of one page, which the contract allows."""

MAX_COLLECTED_BYTES: Final = 256 * 1024 * 1024
"""An answer that is returned as one list or dictionary."""

AnyPage = StoreQueryResponse | ScanPage | SdsMessagesPage | CausalHistoryPage
Topics = str | Sequence[str]
"""A content topic, or several."""

SdsId = str | Entry
"""An SDS message ID, alone or with the hash of the message that is meant."""


class _Connected:
    """Connections to nodes as a context manager; leaving the block closes them."""

    _calls: NodeClient
    _is_open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all calls and connections."""
        self._is_open = False
        await self._calls.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._calls.nodes.addresses)})"

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=1)


class AsyncClient(_Connected):
    """A client of one store node, or of several that hold the same messages.

    ``nodes`` are addresses (``HOST:PORT``), the preferred one first: a call that a node does not
    serve goes to the next one, and is retried as ``retry`` says. That is safe for every call:
    publishing is idempotent, since a message is named by its hash. ``token`` authenticates the
    client, ``tls`` encrypts; a token is never sent in clear beyond loopback. ``timeout_s`` bounds
    how long a call waits for its answer and a stream for its next page; a follower that has caught
    up waits for new messages without end. While a node has been silent for a second, the next one
    is called too.

    Examples:
        ```python
        async with AsyncClient("127.0.0.1:7420") as client:
            await client.publish(Message(b"hello", "/my-app/1/chat/proto"))
            async for message in client.scan("/my-app/1/chat/proto"):
                print(message.time, message.payload)
        ```

    Raises:
        ClientOptionError: An address, the token or the TLS files cannot be used.
    """

    def __init__(
        self,
        nodes: str | Sequence[str],
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        retry: Retry = DEFAULT_RETRY,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._calls = connect(nodes, token=token, tls=tls, retry=retry, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._is_open = True

    async def publish(
        self,
        message: Message,
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Published:
        """Publish one message; when this returns, the message is durable at the node.

        With ``min_confirms`` it is also durable at that many other stores; ``confirm_timeout_s`` is
        how long the node waits for them, its own default when ``None``. ``timeout_s`` takes the
        place of the client's for this call.

        Examples:
            ```python
            result = await client.publish(Message(b"hello", "/my-app/1/chat/proto"))
            print(result.hash.hex())
            ```

        Raises:
            MessageRejectedError: The node does not take the message.
            NotConfirmedError: The node holds it, but too few other stores confirmed it in time.
            NodeError: No node served the call.
        """
        (result,) = await self.publish_many(
            [message],
            min_confirms=min_confirms,
            confirm_timeout_s=confirm_timeout_s,
            timeout_s=timeout_s,
        )
        return result.check(message)

    async def publish_many(
        self,
        messages: Iterable[Message],
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> list[Published]:
        """Publish messages in batches, and return the answer for each, in their order.

        A rejected message raises nothing here: look at `Published.outcome`, or call
        `Published.check`.

        Raises:
            NodeError: No node served the call. Messages of earlier batches are stored; publish all
                of them again, which stores none twice.
        """
        if isinstance(messages, Message):
            raise ArgumentError("This is one message: pass a list, or use publish.")
        check_list("messages", messages)
        requests = publish_requests(
            map(encode_message, messages),
            min_confirms=min_confirms,
            confirm_timeout_s=confirm_timeout_s,
        )
        found: list[Published] = []
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        for request in requests:
            results = await self._calls.publish_request(
                request, timeout_s=limit_s + (confirm_timeout_s or 0)
            )
            found += map(Published.decode, results)
        return found

    def publisher(
        self,
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
        strict: bool = True,
    ) -> AsyncPublisher:
        """Make a publisher for many messages: it batches them and bounds what is unacknowledged.

        Examples:
            ```python
            async with client.publisher() as publisher:
                for reading in readings:
                    await publisher.send(Message(reading, "/my-app/1/readings/proto"))
            ```
        """
        return AsyncPublisher(
            self._calls,
            min_confirms=min_confirms,
            confirm_timeout_s=confirm_timeout_s,
            max_pending=max_pending,
            strict=strict,
        )

    async def get(self, hashes: Iterable[bytes]) -> dict[bytes, Message]:
        """Look up messages by hash, 256 MiB at most; one that the node does not hold is left out.

        Examples:
            ```python
            found = await client.get([result.hash])
            ```
        """
        wanted = check_hashes(hashes)
        found: dict[bytes, Message] = {}
        size_bytes = 0
        for start in range(0, len(wanted), MAX_QUERY_PAGE):
            part = wanted[start : start + MAX_QUERY_PAGE]
            request = query_request(include_data=True, message_hashes=part)
            request.pagination_forward, request.pagination_limit = True, len(part)
            async with aclosing(self._calls.query_pages(request)) as pages:
                async for page in pages:
                    size_bytes = _collected_bytes(size_bytes, page)
                    found |= {item.message_hash: Message.decode(item) for item in page.messages}
        return found

    async def query(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        limit: int | None = None,
        newest_first: bool = True,
        cursor: bytes | None = None,
        coverage: bool = False,
        timeout_s: float | None = None,
    ) -> Page:
        """Fetch one page (13/WAKU2-STORE): the newest messages, or the oldest.

        The messages of a page are in ascending order either way. ``start`` is inclusive, ``end``
        exclusive. Pass `Page.cursor` to get the next page in the same direction. ``limit`` is 100
        unless it is given, and 1,000 at most. With ``coverage``, `Page.coverage` says how complete
        the page is.

        Examples:
            ```python
            page = await client.query("/my-app/1/chat/proto", limit=20)
            ```

        Raises:
            CursorRefusedError: The node does not know the cursor.
            NodeError: The node refused the request, or no node served the call.
        """
        _check_paging(limit, cursor)
        time_start, time_end = check_range(start, end)
        request = query_request(
            include_data=True,
            pubsub_topic=pubsub_topic,
            content_topics=listed(content_topics),
            time_start=time_start,
            time_end=time_end,
            pagination_forward=not newest_first,
            pagination_cursor=cursor,
            pagination_limit=limit,
            coverage=coverage,
        )
        page = await self._calls.query(request, timeout_s=timeout_s)
        following = page.pagination_cursor if page.HasField("pagination_cursor") else None
        return Page(
            [Message.decode(item) for item in page.messages], following, coverage=_coverage(page)
        )

    def scan(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        cursor: bytes | None = None,
        resume: Resume | None = None,
        ack: bool = False,
        limit: int | None = None,
        newest_first: bool = False,
        page_size: int = 0,
        coverage: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncMessageStream:
        """Read a time range, the oldest message first, at any size.

        ``start`` is inclusive, ``end`` exclusive. ``limit`` ends it after that many messages;
        ``newest_first`` turns the order around. The stream's ``cursor`` continues later,
        also at another node; ``resume`` and ``ack`` keep it as those of `follow` do. With
        ``coverage``, that of the stream says at the end how complete the answer was.

        Examples:
            ```python
            async for message in client.scan(start=datetime.now(UTC) - timedelta(days=1)):
                print(message.payload)
            ```
        """
        _check_paging(limit, cursor)
        time_start, time_end = check_range(start, end)
        topics = listed(content_topics)
        if (limit is not None or newest_first) and resume is not None:
            raise ArgumentError("resume goes neither with limit nor with newest_first.")
        if newest_first and (cursor or coverage or page_size):
            raise ArgumentError(
                "newest_first goes neither with cursor nor with coverage or page_size: use query."
            )

        def pages(after: bytes) -> AsyncGenerator[Page]:
            if newest_first:
                request = query_request(
                    include_data=True,
                    pubsub_topic=pubsub_topic,
                    content_topics=topics,
                    time_start=time_start,
                    time_end=time_end,
                    pagination_limit=min(limit or MAX_QUERY_PAGE, MAX_QUERY_PAGE),
                )
                found = _newest_first(self._calls.query_pages(request))
            else:
                found = _streamed(
                    self._calls.scan(
                        filter=content_filter(pubsub_topic, topics),
                        time_start=time_start,
                        time_end=time_end,
                        cursor=after,
                        page_size=page_size or min(limit or 0, MAX_SCAN_PAGE),
                        coverage=coverage,
                        timeout_s=timeout_s,
                    )
                )
            return found if limit is None else limited(found, limit)

        position = None if resume is None else position_of(resume)
        return AsyncMessageStream(pages, cursor or b"", position=position, acknowledges=ack)

    async def scan_hashes(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
    ) -> AsyncGenerator[bytes]:
        """Read the hashes of a time range without the messages, in the order of `scan`."""
        time_start, time_end = check_range(start, end)
        pages = self._calls.scan(
            filter=content_filter(pubsub_topic, content_topics),
            time_start=time_start,
            time_end=time_end,
            include_data=False,
        )
        async with aclosing(pages):
            async for page in pages:
                for item in page.messages:
                    yield item.message_hash

    async def coverage(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        by_day: bool = False,
        channel_id: str = "",
    ) -> AsyncGenerator[CoverageStep]:
        """Read hour by hour what the store holds, and which other stores were found to be equal.

        The last day by default. A step that is `StoreCoverage.EQUAL` was complete as far as both
        stores knew at ``compared_at``. With ``channel_id``, ``missing_parents`` counts what SDS
        messages of the channel name and the store lacks. Counts come only without a filter, and for
        callers that may read everything.

        Examples:
            ```python
            async for step in client.coverage():
                print(step.time_start, step.messages, [each.store_id for each in step.stores])
            ```
        """
        time_start, time_end = check_range(start, end)
        pages = self._calls.coverage(
            filter=content_filter(pubsub_topic, content_topics),
            time_start=time_start,
            time_end=time_end,
            by_day=by_day,
            channel_id=channel_id,
        )
        async with aclosing(pages):
            async for page in pages:
                for step in page.steps:
                    yield step

    def follow(
        self,
        content_topics: Topics = (),
        *,
        pubsub_topic: str | None = None,
        cursor: bytes | None = None,
        resume: Resume | None = None,
        ack: bool = False,
        from_beginning: bool = False,
        until_live: bool = False,
        overlap_s: float | None = None,
        timeout_s: float | None = None,
    ) -> AsyncMessageStream:
        """Receive messages in the order in which they are stored, without end.

        ``resume`` names where the position is kept between runs: a path, a path and a name for
        SQLite, or an object with ``load`` and ``save``. The position is saved when the messages
        of a page have been taken and the next one is asked for, or with ``ack`` by
        its ``ack`` alone: after a kill messages may come again, and none is missed. Without
        a position it begins now, or ``from_beginning``. ``until_live`` ends it when everything that
        was stored has come.

        Instead of ``resume``, keep the stream's ``cursor`` with what you have processed
        and pass it next time. A cursor belongs to one store (a database, with any number of nodes).
        With nodes of several stores, ``overlap_s`` lets the follower continue at another store when
        no node of the first one is left: it reads what that store holds since ``overlap_s`` seconds
        before the last page, less what came already.

        Examples:
            ```python
            feed = client.follow("/my-app/1/chat/proto", resume="position", from_beginning=True)
            async for message in feed:
                print(message.payload)
            ```

        Raises:
            CursorRefusedError: By the stream: the cursor is another store's, or the store lost
                commits since. Scan the time that is in question, and follow without a cursor.
        """
        _check_paging(None, cursor)
        wanted, is_first = content_filter(pubsub_topic, content_topics), True

        def feed(after: bytes) -> AsyncGenerator[Page]:
            nonlocal is_first
            from_start, is_first = from_beginning and is_first and not after, False
            pages = self._calls.follow(
                filter=wanted, cursor=after, from_beginning=from_start, timeout_s=timeout_s
            )
            return _streamed(pages)

        def stored(since_ns: int) -> AsyncGenerator[Page]:
            return _streamed(self._calls.scan(filter=wanted, time_start=since_ns))

        def pages(after: bytes) -> AsyncGenerator[Page]:
            if overlap_s is None:
                found = feed(after)
            else:
                found = followed_across(feed, stored, after, overlap_s)
            return up_to_live(found) if until_live else found

        position = None if resume is None else position_of(resume)
        return AsyncMessageStream(pages, cursor or b"", position=position, acknowledges=ack)

    async def get_sds(
        self,
        channel_id: str,
        ids: Iterable[SdsId],
        *,
        pubsub_topic: str | None = None,
        content_topics: Topics = (),
        coverage: bool = False,
        prefer_proven: bool = True,
    ) -> SdsResult:
        """Look SDS messages of a channel up by message ID, or by (message ID, hash).

        Several messages may claim one ID; the node returns up to 16 of them, those first that the
        ID proves unless ``prefer_proven`` is False. With ``coverage``, `SdsResult.coverage` says
        how complete the store is. It raises `LimitExceededError` for more than 256 MiB.

        Examples:
            ```python
            result = await client.get_sds("lobby", ["b1"])
            ```
        """
        pages = self._calls.get_sds(
            channel_id,
            _entries(ids),
            filter=content_filter(pubsub_topic, content_topics),
            coverage=coverage,
            prefer_proven=prefer_proven,
        )
        return await _sds_result(pages)

    async def causal_history(
        self,
        channel_id: str,
        heads: Iterable[SdsId],
        *,
        known_ids: Iterable[str] = (),
        max_messages: int = 0,
        max_depth: int = 0,
        pubsub_topic: str | None = None,
        content_topics: Topics = (),
        coverage: bool = False,
        prefer_proven: bool = True,
    ) -> SdsResult:
        """Fetch SDS messages with everything that they depend on, parents first, in one call.

        What is behind ``known_ids`` is left out. ``max_messages`` and ``max_depth`` bound the walk;
        with 0 only the node's limits and 256 MiB do. ``prefer_proven`` is that of `get_sds`. With
        ``coverage``, `SdsResult.coverage` says how complete the store is.

        Examples:
            ```python
            past = await client.causal_history("lobby", ["c1"])
            print([each.message_id for each in past.messages], past.missing)
            ```
        """
        pages = self._calls.causal_history(
            channel_id,
            _entries(heads),
            known_ids=[name for name, _ in _entries(known_ids)],
            max_messages=max_messages,
            max_depth=max_depth,
            filter=content_filter(pubsub_topic, content_topics),
            coverage=coverage,
            prefer_proven=prefer_proven,
        )
        return await _sds_result(pages)


class AsyncAdmin(_Connected):
    """A client of a node's admin listener; answers are the schema's own classes.

    Examples:
        ```python
        async with AsyncAdmin("127.0.0.1:7421") as admin:
            print((await admin.status()).messages)
        ```
    """

    def __init__(
        self,
        node: str,
        *,
        token: str | None = None,
        tls: TlsIdentity | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._calls = connect(node, token=token, tls=tls, timeout_s=timeout_s)
        self._is_open = True

    async def status(self) -> NodeStatus:
        """Return what the node stores, whether it serves, and the state of its peers."""
        return await self._calls.status()

    async def synchronize(
        self, peer: str = "", *, start: Time | None = None, end: Time | None = None
    ) -> SyncReport:
        """Reconcile the node with a peer now; by default with a random one."""
        time_start, time_end = check_range(start, end)
        return await self._calls.synchronize(peer, time_start=time_start, time_end=time_end)

    async def fetch_messages(self, peer: str, channel_id: str, ids: Iterable[SdsId]) -> FetchReport:
        """Request SDS messages for the node from one of its peers."""
        return await self._calls.fetch_messages(peer, channel_id, _entries(ids))


def _check_paging(limit: int | None, cursor: bytes | None) -> None:
    check_kind("limit", limit, (int, NoneType), "a number of messages")
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit={limit}: ask for at least one message.")
    if cursor is not None:
        check_bytes("cursor", cursor, "bytes.fromhex()")


def _entries(ids: Iterable[SdsId]) -> list[Entry]:
    """Return message IDs, each with its hash where one is given.

    Raises:
        ArgumentError: They are no list of IDs.
    """
    check_list("IDs", ids)
    return [(each, None) if isinstance(each, str) else each for each in ids]


async def _streamed(pages: AsyncGenerator[ScanPage | FollowPage]) -> AsyncGenerator[Page]:
    async with aclosing(pages):
        async for page in pages:
            messages = [Message.decode(item) for item in page.messages]
            is_live = isinstance(page, FollowPage) and page.live
            coverage = _coverage(page) if isinstance(page, ScanPage) else None
            yield Page(messages, page.cursor or None, is_live, coverage)


async def _newest_first(pages: AsyncGenerator[StoreQueryResponse]) -> AsyncGenerator[Page]:
    async with aclosing(pages):
        async for page in pages:
            yield Page([Message.decode(item) for item in reversed(page.messages)], None)


async def _sds_result(
    pages: AsyncGenerator[SdsMessagesPage] | AsyncGenerator[CausalHistoryPage],
) -> SdsResult:
    messages, missing = list[SdsMessage](), list[Entry]()
    truncated, coverage, size_bytes = False, None, 0
    async with aclosing(pages):
        async for page in pages:
            size_bytes = _collected_bytes(size_bytes, page)
            coverage = _coverage(page)
            messages += filter(None, map(SdsMessage.decode, page.messages))
            missing += entries_of(page.missing)
            truncated = truncated or page.truncated
    return SdsResult(messages, missing, truncated, coverage)


def _collected_bytes(size_bytes: int, page: AnyPage) -> int:
    """Return the bytes of an answer with one page more; raise LimitExceededError for too many."""
    size_bytes += page.ByteSize()
    if size_bytes > MAX_COLLECTED_BYTES:
        raise LimitExceededError(
            "RESOURCE_EXHAUSTED",
            f"The answer has more than {MAX_COLLECTED_BYTES // 2**20} MiB, too many for one list:"
            " ask for fewer messages at a time.",
        )
    return size_bytes


def _coverage(page: AnyPage) -> AnswerCoverage | None:
    return page.coverage if page.HasField("coverage") else None
