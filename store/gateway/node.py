"""The nodes behind the gateway: calls, the feed of new messages, and messages on their way to them.

One of the nodes serves at a time; when it does not, the next one does, as for any client of the
library. Messages are not decoded here. A query gets one field more, by which the node reads it as
nwaku does.
"""

from __future__ import annotations

import asyncio
import collections
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import grpc
from prometheus_client import Counter

from store.gateway import limits
from store.gateway.faults import StatusError
from store.gateway.metrics import GatewayMetrics
from store.gateway.wire import parse, require
from store.observe.logging import get_logger
from storenode.client.nodes import Node as ClientNode
from storenode.client.nodes import Nodes
from storenode.client.retry import Attempts, Retry, stream
from storenode.common.backoff import Backoff
from storenode.connection.errors import NodeError, query_error
from storenode.wire.storenode.internal.v1 import waku_protocols_pb2 as waku
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawEntry, RawMessage, RawScanPage
from storenode.wire.storenode.v1 import store_pb2 as pb
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

_QUERY: Final = "/storenode.v1.Store/Query"
_PUBLISH: Final = "/storenode.v1.Store/Publish"
_FOLLOW: Final = "/storenode.v1.Store/Follow"
_SCAN: Final = "/storenode.v1.Store/Scan"
_SCAN_PAGE: Final = 10_000
_NWAKU_RULES: Final = StoreQueryRequest(nwaku_rules=True).SerializeToString()
"""The field that comes first, so that a truncated request keeps nwaku's rules."""
_BAD_REQUEST, _TOO_MANY_REQUESTS, _UNAVAILABLE = 400, 429, 503
_STATUS_CODES: Final = {
    "INVALID_ARGUMENT": _BAD_REQUEST,
    "OUT_OF_RANGE": _BAD_REQUEST,
    "RESOURCE_EXHAUSTED": _TOO_MANY_REQUESTS,
    "QUERY_429": _TOO_MANY_REQUESTS,
}
_AWAY: Final = "the node behind this gateway cannot be reached: try again later"
"""The sentence for strangers; the operator's log has the node, and why."""

_ONE_ROUND: Final = Retry(attempts=0)
"""A policy of one attempt per node: the client, or the feed, retries."""

_log = get_logger("store.gateway")


class UpstreamNode:
    """Calls of the nodes, a bounded number at a time; ``serving`` is the address in use.

    A call that no node answers, or that the node refuses, raises `StatusError`.
    """

    def __init__(self, nodes: Nodes, metrics: GatewayMetrics) -> None:
        self.addresses = ", ".join(nodes.addresses)
        self._nodes = nodes
        self._metrics = metrics
        self._connected: set[str] = set()
        self.serving = nodes.addresses[0]
        self._places = asyncio.Semaphore(limits.FORWARD_PLACES)

    @property
    def unready(self) -> str | None:
        """The reason why no node can be called, or None."""
        return None if self._connected else f"the node at {self.addresses} is not connected"

    async def query(self, request: bytes, places: asyncio.Semaphore) -> bytes:
        """Return the answer to a ``StoreQueryRequest``; ``places`` are one client's."""

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
        source: int = pb.PUBLISH_SOURCE_UNSPECIFIED,
    ) -> Sequence[pb.PublishResult]:
        """Publish encoded messages with their pubsub topics, and return the result of each.

        ``places`` are one client's; ``source`` counts where the token has the right `backfill`.
        """
        entries = [
            waku.PublishedMessage(message=data, pubsub_topic=topic) for data, topic in messages
        ]
        request = waku.PublishedMessages(messages=entries, source=source).SerializeToString()

        async def call(node: ClientNode) -> pb.PublishResponse:
            publish = node.channel.unary_unary(_PUBLISH, None, pb.PublishResponse.FromString)
            response: pb.PublishResponse = await publish(request, metadata=node.metadata)
            return response

        async with self._calling("publish_failed", places):
            response = await Attempts(self._nodes, _ONE_ROUND).answer_of_one(call)
        if len(response.results) != len(messages):
            raise StatusError(_UNAVAILABLE, "the node answers with another number of results")
        return list(response.results)

    def follow(self, cursor: bytes) -> AsyncGenerator[bytes, None]:
        """Return the encoded pages of new messages after a cursor, or from now on."""
        request = pb.FollowRequest(cursor=cursor, include_data=True)
        return self._stream(_FOLLOW, request.SerializeToString(), "follow_failed")

    async def scan(
        self, pubsub_topic: str, content_topics: Sequence[str], start_ns: int, end_ns: int
    ) -> AsyncGenerator[pb.ScanPage, None]:
        """Yield the hashes and timestamps of all messages of a topic in a range of time."""
        request = pb.ScanRequest(
            filter=pb.ContentFilter(pubsub_topic=pubsub_topic, content_topics=content_topics),
            time_start=start_ns,
            time_end=end_ns,
            include_timestamps=True,
            page_size=_SCAN_PAGE,
        ).SerializeToString()
        async with aclosing(self._stream(_SCAN, request, "scan_failed")) as pages:
            async for encoded in pages:
                yield pb.ScanPage.FromString(encoded)

    async def _stream(self, method: str, request: bytes, event: str) -> AsyncGenerator[bytes, None]:
        def begin(node: ClientNode, _cursor: bytes) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
            return node.channel.unary_stream(method, None, None)(request, metadata=node.metadata)

        try:
            streamed = stream(self._nodes, _ONE_ROUND, None, begin, is_endless=True)
            async with aclosing(streamed) as pages:
                async for page in pages:
                    yield page
        except NodeError as error:
            raise self._error_of(error, event) from error

    @asynccontextmanager
    async def _calling(self, event: str, places: asyncio.Semaphore | None) -> AsyncIterator[None]:
        """Make a call when there is a place for it; raise `StatusError` if it fails."""
        try:
            async with (
                asyncio.timeout(limits.FORWARD_TIMEOUT_S),
                places or nullcontext(),
                self._places,
            ):
                yield
        except TimeoutError as error:
            raise StatusError(_UNAVAILABLE, "the node did not answer in time") from error
        except NodeError as error:
            raise self._error_of(error, event) from error
        if self._nodes.current.address != self.serving:
            _log.warning("node_changed", node=self._nodes.current.address, before=self.serving)
            self.serving = self._nodes.current.address

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
    if len(answer) <= limits.MAX_REFUSAL_BYTES:
        response = StoreQueryResponse.FromString(answer)
        if response.status_code in (_TOO_MANY_REQUESTS, _UNAVAILABLE):
            raise query_error(response.status_code, response.status_desc)


_EMPTY_PAYLOAD: Final = RawMessage(payload=b"").SerializeToString()


@dataclass(frozen=True, slots=True)
class FollowedMessage:
    """A message of the node; ``encoded`` has a field ``payload``, as nwaku requires."""

    message_hash: bytes
    pubsub_topic: str
    content_topic: str
    timestamp_ns: int
    encoded: bytes


def parse_page(page: bytes) -> tuple[list[FollowedMessage], bytes]:
    """Return the messages of a ``FollowPage``, and its cursor; raise ValueError if malformed."""
    parsed = parse(RawScanPage, page)
    return list(map(followed, parsed.messages)), parsed.cursor


def followed(entry: RawEntry) -> FollowedMessage:
    """Return a message of a page; raise ValueError if it is malformed."""
    require(entry, "message", "pubsub_topic")
    found = parse(RawMessage, entry.message)
    encoded = entry.message if found.HasField("payload") else _EMPTY_PAYLOAD + entry.message
    topics = entry.pubsub_topic.decode(), found.content_topic.decode()
    return FollowedMessage(entry.message_hash, *topics, found.timestamp, encoded)


class NodeFeed:
    """A call that follows the node while it has users, and passes new messages to `listeners`."""

    def __init__(self, node: UpstreamNode) -> None:
        self._node = node
        self.listeners: list[Callable[[FollowedMessage], None]] = []
        self._users = 0
        self._wanted = asyncio.Event()
        self._live = asyncio.Event()
        self._cursor = b""

    def acquire(self) -> None:
        """Add a user; `release` must follow."""
        self._users += 1
        self._wanted.set()

    def release(self) -> None:
        """Remove a user; without any the call ends at its next page."""
        self._users -= 1
        assert self._users >= 0, "the feed was released more often than acquired"
        if not self._users:
            self._wanted.clear()

    async def is_live(self) -> bool:
        """Wait until new messages arrive; False if the node cannot be followed."""
        try:
            async with asyncio.timeout(limits.FEED_TIMEOUT_S):
                await self._live.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Follow while messages are wanted, until cancelled."""
        backoff = Backoff(limits.FIRST_NODE_PAUSE_S, limits.LONGEST_NODE_PAUSE_S)
        while True:
            await self._wanted.wait()
            reason = "the node ended the call"
            try:
                await self._follow(backoff)
            except (StatusError, ValueError) as error:
                reason = str(error)
                if isinstance(error, StatusError) and error.status_code == _BAD_REQUEST:
                    self._cursor = b""
            self._live.clear()
            if self._wanted.is_set():
                _log.warning("feed_ended", reason=reason)
                await asyncio.sleep(backoff.take())
            else:
                self._cursor = b""

    async def _follow(self, backoff: Backoff) -> None:
        async with aclosing(self._node.follow(self._cursor)) as pages:
            async for page in pages:
                messages, cursor = parse_page(page)
                self._cursor = cursor or self._cursor
                self._live.set()
                backoff.reset()
                for message in messages:
                    for listener in self.listeners:
                        listener(message)
                if not self._wanted.is_set():
                    return


LINGER_S: Final = 0.02
"""The time that the first message of a batch waits for others: no caller waits for the messages."""

_OUTCOMES: Final = {
    pb.PublishResult.STORED: "stored",
    pb.PublishResult.DUPLICATE: "duplicate",
    pb.PublishResult.EPHEMERAL: "ephemeral",
}


class Spool:
    """A bounded queue in front of `Store.Publish`; with too many, the oldest are dropped.

    Messages wait as long as the node is away. It stores those that have become older than its clock
    drift if the gateway's token has the right `backfill`.
    """

    def __init__(self, node: UpstreamNode, messages: Counter, source: int) -> None:
        """Count ``messages`` by outcome; ``source`` is a `PublishSource`."""
        self._node = node
        self._messages = messages
        self._source = source
        self._waiting: deque[tuple[bytes, str]] = deque()
        self._waiting_bytes = 0
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._note_room()

    def put(self, pubsub_topic: str, encoded: bytes) -> None:
        """Queue an encoded ``WakuMessage``."""
        self._waiting.append((encoded, pubsub_topic))
        self._waiting_bytes += len(encoded)
        while (
            len(self._waiting) > limits.MAX_SPOOL_MESSAGES
            or self._waiting_bytes > limits.MAX_SPOOL_BYTES
        ):
            self._waiting_bytes -= len(self._waiting.popleft()[0])
            self._messages.labels("dropped").inc()
        self._filled.set()
        self._note_room()

    async def wait_for_room(self) -> None:
        """Wait while more than half of what may wait does, so that nothing is dropped."""
        await self._has_room.wait()

    def _note_room(self) -> None:
        is_half_full = (
            len(self._waiting) > limits.MAX_SPOOL_MESSAGES // 2
            or self._waiting_bytes > limits.MAX_SPOOL_BYTES // 2
        )
        (self._has_room.clear if is_half_full else self._has_room.set)()

    async def run(self) -> None:
        """Publish batches until cancelled; a batch that the node did not take is tried again."""
        batch: list[tuple[bytes, str]] = []
        backoff = Backoff(limits.FIRST_NODE_PAUSE_S, limits.LONGEST_NODE_PAUSE_S)
        while True:
            if not batch:
                await self._filled.wait()
                await asyncio.sleep(LINGER_S)
                batch = self._take_batch()
            try:
                await self._publish(batch)
            except StatusError as error:
                _log.warning(
                    "messages_not_published",
                    source=self._source,
                    messages=len(batch),
                    reason=str(error),
                )
                await asyncio.sleep(backoff.take())
            else:
                backoff.reset()
                batch = []

    async def _publish(self, batch: list[tuple[bytes, str]]) -> None:
        """Publish messages; where the node refuses the request, each by itself."""
        try:
            results = await self._node.publish(batch, source=self._source)
        except StatusError as error:
            if error.status_code != _BAD_REQUEST:
                raise
            if len(batch) > 1:
                for each in batch:
                    await self._publish([each])
                return
            self._messages.labels("rejected").inc()
            return
        refused = [each.reason for each in results if each.outcome == pb.PublishResult.REJECTED]
        if refused:
            _log.warning("messages_rejected", messages=len(refused), reason=refused[0])
        outcomes = collections.Counter(_OUTCOMES.get(each.outcome, "rejected") for each in results)
        for outcome, count in outcomes.items():
            self._messages.labels(outcome).inc(count)

    def _take_batch(self) -> list[tuple[bytes, str]]:
        batch: list[tuple[bytes, str]] = []
        size_bytes = 0
        while (
            self._waiting
            and len(batch) < limits.MAX_BATCH_MESSAGES
            and size_bytes < limits.MAX_BATCH_BYTES
        ):
            batch.append(self._waiting.popleft())
            size_bytes += len(batch[-1][0])
        self._waiting_bytes -= size_bytes
        if not self._waiting:
            self._filled.clear()
        self._note_room()
        return batch
