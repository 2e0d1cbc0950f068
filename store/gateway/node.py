"""The nodes behind the gateway: `Store.Query`, `Publish`, `Scan` and `Follow`.

One of the nodes serves at a time; when it does not, the next one does, as for any client of the
library. Messages are not parsed here. A query gets one field more, by which the node reads it as
nwaku does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Final

import grpc

from store.gateway.faults import StatusError
from store.gateway.limits import FORWARD_PLACES, FORWARD_TIMEOUT_S, MAX_REFUSAL_BYTES
from store.gateway.metrics import GatewayMetrics
from store.observe.logging import get_logger
from storenode.client.nodes import Node as ClientNode
from storenode.client.nodes import Nodes
from storenode.client.retry import Attempts, Retry
from storenode.connection.errors import NodeError, node_error, query_error
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import (
    PublishedMessage,
    PublishedMessages,
)
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_UNSPECIFIED,
    ContentFilter,
    FollowRequest,
    PublishResponse,
    PublishResult,
    ScanPage,
    ScanRequest,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

_QUERY: Final = "/storenode.v1.Store/Query"
_PUBLISH: Final = "/storenode.v1.Store/Publish"
_FOLLOW: Final = "/storenode.v1.Store/Follow"
_SCAN: Final = "/storenode.v1.Store/Scan"
_SCAN_PAGE: Final = 10_000
_NWAKU_RULES: Final = StoreQueryRequest(nwaku_rules=True).SerializeToString()
"""It goes first, so that a request that is cut off stays one."""
_STATUS_CODES: Final = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "RESOURCE_EXHAUSTED": 429,
    "QUERY_429": 429,
}
_UNAVAILABLE: Final = 503
_TOO_BUSY: Final = (_UNAVAILABLE, 429)
_AWAY: Final = "the node behind this gateway cannot be reached: try again later"
"""The sentence for strangers; the operator's log has the node, and why."""

_ONE_ROUND: Final = Retry(attempts=0)
"""Each node is asked once: the client, or the feed, tries again."""

_log = get_logger("store.gateway")


class UpstreamNode:
    """Calls of the nodes, a bounded number at a time."""

    def __init__(self, nodes: Nodes, metrics: GatewayMetrics) -> None:
        self.addresses = ", ".join(nodes.addresses)
        self._nodes = nodes
        self._metrics = metrics
        self._connected: set[str] = set()
        self._serving = nodes.addresses[0]
        self._places = asyncio.Semaphore(FORWARD_PLACES)

    @property
    def unready(self) -> str | None:
        """The reason why no node can be called, or None."""
        return None if self._connected else f"the node at {self.addresses} is not connected"

    @property
    def serving(self) -> str:
        """The address of the node that serves."""
        return self._serving

    async def query(self, request: bytes, places: asyncio.Semaphore) -> bytes:
        """Return the answer to a ``StoreQueryRequest``; ``places`` are one client's.

        Raises:
            StatusError: No node gave one.
        """

        async def ask(node: ClientNode) -> bytes:
            # Without serializers, requests and responses are bytes.
            call = node.channel.unary_unary(_QUERY, None, None)
            answer: bytes = await call(_NWAKU_RULES + request, metadata=node.metadata)
            if len(self._nodes) > 1:
                _require_served(answer)
            return answer

        async with self._calling("query_failed", places):
            _, answer = await Attempts(self._nodes, _ONE_ROUND).answer(ask)
        return answer

    async def publish(
        self,
        messages: Sequence[tuple[bytes, str]],
        places: asyncio.Semaphore | None = None,
        source: int = PUBLISH_SOURCE_UNSPECIFIED,
    ) -> Sequence[PublishResult]:
        """Publish encoded messages with their pubsub topics, and return the result of each.

        ``places`` are one client's; ``source`` counts where the token has the right `backfill`.

        Raises:
            StatusError: No node gave them.
        """
        entries = [PublishedMessage(message=data, pubsub_topic=topic) for data, topic in messages]
        request = PublishedMessages(messages=entries, source=source).SerializeToString()

        async def call(node: ClientNode) -> PublishResponse:
            publish = node.channel.unary_unary(_PUBLISH, None, PublishResponse.FromString)
            response: PublishResponse = await publish(request, metadata=node.metadata)
            return response

        async with self._calling("publish_failed", places):
            response = await Attempts(self._nodes, _ONE_ROUND).answer_of_one(call)
        if len(response.results) != len(messages):
            raise StatusError(_UNAVAILABLE, "the node answers with another number of results")
        return list(response.results)

    def follow(self, cursor: bytes) -> AsyncGenerator[bytes, None]:
        """Return the encoded pages of new messages after a cursor, or from now on.

        Raises:
            StatusError: The call failed; the next one is made at the next node.
        """
        request = FollowRequest(cursor=cursor, include_data=True)
        return self._stream(_FOLLOW, request.SerializeToString(), "follow_failed")

    async def scan(
        self, pubsub_topic: str, content_topics: Sequence[str], start_ns: int, end_ns: int
    ) -> AsyncGenerator[ScanPage, None]:
        """Yield the hashes and timestamps of all messages of a topic in a range of time.

        Raises:
            StatusError: The call failed.
        """
        request = ScanRequest(
            filter=ContentFilter(pubsub_topic=pubsub_topic, content_topics=content_topics),
            time_start=start_ns,
            time_end=end_ns,
            include_timestamps=True,
            page_size=_SCAN_PAGE,
        ).SerializeToString()
        async with aclosing(self._stream(_SCAN, request, "scan_failed")) as pages:
            async for encoded in pages:
                page = ScanPage.FromString(encoded)
                if len(page.timestamps) != len(page.messages):
                    sentence = "the node is too old to give timestamps: upgrade it"
                    raise StatusError(_UNAVAILABLE, sentence)
                yield page

    async def _stream(self, method: str, request: bytes, event: str) -> AsyncGenerator[bytes, None]:
        try:
            node = await Attempts(self._nodes, _ONE_ROUND).connected()
        except NodeError as error:
            raise self._error_of(error, event) from error
        call = node.channel.unary_stream(method, None, None)(request, metadata=node.metadata)
        try:
            async for page in call:
                yield page
        except grpc.aio.AioRpcError as error:
            failure = node_error(error, node.address)
            if failure.retryable:
                self._nodes.failed(node)
            raise self._error_of(failure, event) from error
        finally:
            call.cancel()

    @asynccontextmanager
    async def _calling(self, event: str, places: asyncio.Semaphore | None) -> AsyncIterator[None]:
        """Make a call when there is a place for it; raise `StatusError` if it fails."""
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S), places or nullcontext(), self._places:
                yield
        except TimeoutError as error:
            raise StatusError(_UNAVAILABLE, "the node did not answer in time") from error
        except NodeError as error:
            raise self._error_of(error, event) from error
        if self._nodes.current.address != self._serving:
            _log.warning("node_changed", node=self._nodes.current.address, before=self._serving)
            self._serving = self._nodes.current.address

    def _error_of(self, error: NodeError, event: str) -> StatusError:
        code = _STATUS_CODES.get(error.code, _UNAVAILABLE)
        if code == _UNAVAILABLE:
            _log.warning(event, node=self.addresses, code=error.code, reason=error.sentence)
        return StatusError(code, error.sentence if code != _UNAVAILABLE else _AWAY)

    async def watch(self) -> None:
        """Keep the connections up, and log when one is lost and found."""
        await asyncio.gather(*map(self._watch, self._nodes.in_order()))

    async def _watch(self, node: ClientNode) -> None:
        known: bool | None = None
        while True:
            state = node.channel.get_state(try_to_connect=True)
            now = state is grpc.ChannelConnectivity.READY
            (self._connected.add if now else self._connected.discard)(node.address)
            self._metrics.node_reachable.set(bool(self._connected))
            failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if now != known and (now or failed):
                known = now
                if now:
                    _log.info("node_connected", node=node.address)
                else:
                    _log.warning("node_unreachable", node=node.address)
            await node.channel.wait_for_state_change(state)


def _require_served(answer: bytes) -> None:
    """Raise `NodeError` for a ``StoreQueryResponse`` that another node may answer better."""
    if len(answer) <= MAX_REFUSAL_BYTES:
        response = StoreQueryResponse.FromString(answer)
        if response.status_code in _TOO_BUSY:
            raise query_error(response.status_code, response.status_desc)
