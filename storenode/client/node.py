"""The calls of ``Store`` and ``Admin`` on the schema's own classes; `AsyncClient` stands on them.

Messages and pages are the generated classes of the schema. `storenode.client.messages` builds
messages, `storenode.client.plain` turns them into values for JSON.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import aclosing
from types import NoneType
from typing import TYPE_CHECKING, Final, Self, TypeVar

import grpc

from storenode.client.messages import new_request, publish_requests
from storenode.client.nodes import Node, Nodes
from storenode.client.publish_pipeline import PublishPipeline
from storenode.client.retry import Attempts, Retry, stream
from storenode.connection.arguments import check_content_topic, check_kind, refusing
from storenode.connection.channel import MAX_RESPONSE_BYTES, TlsIdentity
from storenode.connection.errors import NodeError, query_error
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1 import admin_pb2, store_pb2
from storenode.wire.waku.store.v3 import store_pb2 as waku_pb2

if TYPE_CHECKING:
    from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic

_STORE: Final = "storenode.v1.Store"
_Q = TypeVar("_Q")
_R = TypeVar("_R")
_F = TypeVar("_F", store_pb2.ScanRequest, store_pb2.FollowRequest)
_G = TypeVar("_G", store_pb2.ScanPage, store_pb2.FollowPage)

Entry = tuple[str, bytes | None]
"""An SDS message ID, and the retrieval hint (32-byte message hash) where one is known."""


def connect(
    nodes: str | Sequence[str],
    *,
    token: str | None = None,
    tls: TlsIdentity | None = None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
) -> NodeClient:
    """Make a client of the node, or of several, at ``HOST:PORT``; its first call connects.

    ``token`` authenticates the client. ``tls`` encrypts; without it the connection is in clear,
    and a token is then sent over loopback only. ``retry`` bounds how often a call is made again,
    ``timeout_s`` how long each call waits for its answer, and a stream for its next page. A larger
    response than ``max_response_bytes`` fails its call.

    Raises:
        ClientOptionError: An address, the token or their combination is refused.
    """
    check_kind("timeout_s", timeout_s, (int, float, NoneType), "a number of seconds")
    check_kind("retry", retry, (Retry, NoneType), "a Retry")
    return NodeClient(Nodes(nodes, token, tls, max_response_bytes), retry or Retry(), timeout_s)


@refusing
def listed(content_topics: str | Sequence[str]) -> Sequence[str]:
    """Return content topics as a list.

    Raises:
        ArgumentError: One is no text.
    """
    topics = [content_topics] if isinstance(content_topics, str | bytes) else content_topics
    for topic in topics:
        check_content_topic(topic)
    return topics


@refusing
def content_filter(
    pubsub_topic: str | None = None, content_topics: str | Sequence[str] = ()
) -> store_pb2.ContentFilter | None:
    """Build the filter of ``Scan``, ``Follow`` and the SDS calls; ``None`` when it is empty."""
    topics = listed(content_topics)
    if pubsub_topic is None and not topics:
        return None
    return store_pb2.ContentFilter(pubsub_topic=pubsub_topic, content_topics=topics)


class NodeClient:
    """An async context manager; made by `connect`.

    Every method raises `NodeError` when the call fails. The streaming ones are asynchronous
    generators: close them (``contextlib.aclosing``) to end the call early.
    """

    def __init__(self, nodes: Nodes, retry: Retry, timeout_s: float | None) -> None:
        self.nodes = nodes
        self.retry = retry
        self.timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all calls and connections."""
        await self.nodes.close()

    async def publish(
        self,
        messages: Iterable[WakuMessageAndTopic],
        *,
        min_confirms: int = 0,
        confirm_timeout_s: float | None = None,
    ) -> Sequence[store_pb2.PublishResult]:
        """Store one batch; the results come in its order, and STORED is durable."""
        request = new_request(messages, min_confirms, confirm_timeout_s)
        return await self.publish_request(request)

    async def publish_request(
        self, request: store_pb2.PublishRequest, *, timeout_s: float | None = None
    ) -> Sequence[store_pb2.PublishResult]:
        """Store the batch of a request; its results come in its order."""
        attempts = self._attempts(timeout_s)

        async def call(node: Node) -> store_pb2.PublishResponse:
            return await node.store.Publish(request, metadata=node.metadata)

        if request.min_confirms:
            # A node without peers must not answer for one that waits for confirmations.
            response = await attempts.answer_of_one(call)
        else:
            _, response = await attempts.answer(call)
        _check_count(request, response)
        return response.results

    async def publish_stream(
        self, requests: Iterable[store_pb2.PublishRequest] | AsyncIterable[store_pb2.PublishRequest]
    ) -> AsyncGenerator[tuple[store_pb2.PublishRequest, store_pb2.PublishResponse], None]:
        """Store many batches without waiting for each; yields each request with its answer.

        Continues after the node was away: what was not acknowledged is sent again, which may turn
        STORED into DUPLICATE, and hand an ephemeral message out twice.
        """
        pipeline = PublishPipeline(
            self.nodes,
            self.retry,
            self.timeout_s,
            lambda node: node.store.PublishStream(None, metadata=node.metadata),
        )
        async with aclosing(pipeline.run(requests)) as answers:
            async for request, response in answers:
                _check_count(request, response)
                yield request, response

    async def publish_all(
        self, messages: Iterable[WakuMessageAndTopic]
    ) -> AsyncGenerator[tuple[WakuMessageAndTopic, store_pb2.PublishResult], None]:
        """Store any number of messages by `publish_stream`; yields each with its result."""
        async with aclosing(self.publish_stream(publish_requests(messages))) as answers:
            async for request, response in answers:
                for pair in zip(request.messages, response.results, strict=True):
                    yield pair

    async def query(
        self, request: waku_pb2.StoreQueryRequest, *, timeout_s: float | None = None
    ) -> waku_pb2.StoreQueryResponse:
        """Fetch one page (13/WAKU2-STORE); a status code that is no success raises `NodeError`."""

        async def call(node: Node) -> waku_pb2.StoreQueryResponse:
            response = await node.store.Query(request, metadata=node.metadata)
            if not 200 <= response.status_code < 300:
                raise query_error(response.status_code, response.status_desc)
            return response

        _, page = await self._attempts(timeout_s).answer(call)
        return page

    async def query_pages(
        self, request: waku_pb2.StoreQueryRequest
    ) -> AsyncGenerator[waku_pb2.StoreQueryResponse, None]:
        """Yield the pages from the request's cursor on, in its direction."""
        request = waku_pb2.StoreQueryRequest.FromString(request.SerializeToString())
        while True:
            page = await self.query(request)
            yield page
            if not page.HasField("pagination_cursor"):
                return
            request.pagination_cursor = page.pagination_cursor

    @refusing
    def scan(
        self,
        *,
        filter: store_pb2.ContentFilter | None = None,  # noqa: A002 - the field's own name
        time_start: int | None = None,
        time_end: int | None = None,
        include_data: bool = True,
        cursor: bytes = b"",
        page_size: int = 0,
        coverage: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[store_pb2.ScanPage, None]:
        """Stream all matches in (timestamp, hash) order; times in nanoseconds, end exclusive.

        Continues from the last page's cursor when the node was away. With ``coverage`` the last
        page says how complete the pages are, after such a pause only those from that cursor on.
        """
        request = store_pb2.ScanRequest(
            filter=filter,
            time_start=time_start,
            time_end=time_end,
            include_data=include_data,
            page_size=page_size,
            coverage=coverage,
        )
        return self._from(cursor, lambda node: node.store.Scan, request, timeout_s)

    @refusing
    def coverage(
        self,
        *,
        filter: store_pb2.ContentFilter | None = None,  # noqa: A002 - the field's own name
        time_start: int | None = None,
        time_end: int | None = None,
        by_day: bool = False,
        channel_id: str = "",
    ) -> AsyncGenerator[store_pb2.CoveragePage, None]:
        """Stream what is stored step by step, and which other stores were found to be equal."""
        steps = store_pb2.GetCoverageRequest
        request = steps(
            filter=filter,
            time_start=time_start,
            time_end=time_end,
            step=steps.DAY if by_day else steps.HOUR,
            channel_id=channel_id,
        )
        return self._whole(lambda node: node.store.GetCoverage, request)

    @refusing
    def follow(
        self,
        *,
        filter: store_pb2.ContentFilter | None = None,  # noqa: A002 - the field's own name
        cursor: bytes = b"",
        from_beginning: bool = False,
        include_data: bool = True,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[store_pb2.FollowPage, None]:
        """Stream all matches in commit order, then live, without end.

        Continues from the last page's cursor when the node was away, at a node of the same store;
        nothing is missed or sent twice then either. When only nodes of other stores answer, their
        refusal of the cursor is raised.
        """
        request = store_pb2.FollowRequest(
            filter=filter, from_beginning=from_beginning, include_data=include_data
        )
        return self._from(cursor, lambda node: node.store.Follow, request, timeout_s, endless=True)

    @refusing
    def get_sds(
        self,
        channel_id: str,
        entries: Iterable[Entry],
        *,
        filter: store_pb2.ContentFilter | None = None,  # noqa: A002 - the field's own name
        coverage: bool = False,
        prefer_proven: bool = True,
    ) -> AsyncGenerator[store_pb2.SdsMessagesPage, None]:
        """Fetch SDS messages by ID, and by hint where one is given."""
        request = store_pb2.GetSdsMessagesRequest(
            channel_id=channel_id,
            entries=_history(entries),
            filter=filter,
            coverage=coverage,
            prefer_proven=prefer_proven,
        )
        return self._whole(lambda node: node.store.GetSdsMessages, request)

    @refusing
    def causal_history(
        self,
        channel_id: str,
        heads: Iterable[Entry],
        *,
        known_ids: Iterable[str] = (),
        max_messages: int = 0,
        max_depth: int = 0,
        filter: store_pb2.ContentFilter | None = None,  # noqa: A002 - the field's own name
        coverage: bool = False,
        prefer_proven: bool = True,
    ) -> AsyncGenerator[store_pb2.CausalHistoryPage, None]:
        """Fetch the causal past of some messages, every parent before its children."""
        request = store_pb2.GetCausalHistoryRequest(
            channel_id=channel_id,
            heads=_history(heads),
            known_ids=known_ids,
            max_messages=max_messages,
            max_depth=max_depth,
            filter=filter,
            coverage=coverage,
            prefer_proven=prefer_proven,
        )
        return self._whole(lambda node: node.store.GetCausalHistory, request)

    async def status(self, *, timeout_s: float | None = None) -> admin_pb2.NodeStatus:
        """Return the node's state; only the admin listener answers."""
        request = admin_pb2.GetStatusRequest()
        return await self._called(lambda node: node.admin.GetStatus, request, timeout_s)

    async def synchronize(
        self,
        peer: str = "",
        *,
        time_start: int | None = None,
        time_end: int | None = None,
        timeout_s: float | None = None,
    ) -> admin_pb2.SyncReport:
        """Reconcile the node with a peer now; only the admin listener answers.

        ``peer`` empty is one at random. Times in nanoseconds, ``time_end`` exclusive; None is the
        node's usual window.
        """
        request = admin_pb2.SynchronizeRequest(peer=peer, time_start=time_start, time_end=time_end)
        return await self._called(lambda node: node.admin.Synchronize, request, timeout_s)

    async def fetch_messages(
        self,
        peer: str,
        channel_id: str,
        entries: Iterable[Entry],
        *,
        timeout_s: float | None = None,
    ) -> admin_pb2.FetchReport:
        """Request SDS messages for the node from a peer; only the admin listener answers."""
        request = admin_pb2.FetchMessagesRequest(
            peer=peer, channel_id=channel_id, entries=_history(entries)
        )
        return await self._called(lambda node: node.admin.FetchMessages, request, timeout_s)

    async def _called(
        self,
        method: Callable[[Node], grpc.aio.UnaryUnaryMultiCallable[_Q, _R]],
        request: _Q,
        timeout_s: float | None,
    ) -> _R:
        async def call(node: Node) -> _R:
            return await method(node)(request, metadata=node.metadata)

        _, answer = await self._attempts(timeout_s).answer(call)
        return answer

    def _whole(
        self, method: Callable[[Node], grpc.aio.UnaryStreamMultiCallable[_Q, _R]], request: _Q
    ) -> AsyncGenerator[_R, None]:
        return stream(
            self.nodes,
            self.retry,
            self.timeout_s,
            lambda node, _: method(node)(request, metadata=node.metadata),
        )

    def _from(
        self,
        cursor: bytes,
        method: Callable[[Node], grpc.aio.UnaryStreamMultiCallable[_F, _G]],
        request: _F,
        timeout_s: float | None,
        *,
        endless: bool = False,
    ) -> AsyncGenerator[_G, None]:
        """Stream pages from a cursor on, and from the last page's after an outage."""

        def call(node: Node, after: bytes) -> grpc.aio.UnaryStreamCall[_F, _G]:
            request.cursor = after
            return method(node)(request, metadata=node.metadata)

        return stream(
            self.nodes,
            self.retry,
            self._limit_s(timeout_s),
            call,
            cursor=cursor,
            cursor_of=lambda page: page.cursor,
            is_endless=endless,
        )

    def _attempts(self, timeout_s: float | None) -> Attempts:
        return Attempts(self.nodes, self.retry, self._limit_s(timeout_s))

    def _limit_s(self, timeout_s: float | None) -> float | None:
        check_kind("timeout_s", timeout_s, (int, float, NoneType), "a number of seconds")
        return self.timeout_s if timeout_s is None else timeout_s


def _check_count(request: store_pb2.PublishRequest, response: store_pb2.PublishResponse) -> None:
    if len(response.results) != len(request.messages):
        raise NodeError(
            "INTERNAL",
            f"The node gave {len(response.results)} results for {len(request.messages)} messages: "
            "publish them again.",
        )


def _history(entries: Iterable[Entry]) -> list[HistoryEntry]:
    return [HistoryEntry(message_id=name, retrieval_hint=hint) for name, hint in entries]
