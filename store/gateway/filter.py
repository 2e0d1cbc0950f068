"""Filter: clients subscribe to content topics, and the gateway pushes messages to them.

Source: 12/WAKU2-FILTER, version 2.0.0-beta1; statuses are nwaku's. A subscription belongs to a
connection. It ends with the connection, five minutes after its last request, and when the client
does not take what is pushed. js-waku pings, and subscribes again when a ping is answered with 404.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from store.gateway import limits
from store.gateway.connection import SendQueue, Stream, WakuConnection
from store.gateway.faults import StatusError
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import FollowedMessage, NodeFeed
from store.gateway.services import FAILURES, required_id, status_of
from store.gateway.wire import UNREADABLE_ID, delimited, encode_status, parse
from storenode.message.limits import MAX_TOPIC_BYTES, NS_PER_S
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import FilterPush, FilterRequest

FILTER_SUBSCRIBE: Final = "/vac/waku/filter-subscribe/2.0.0-beta1"
FILTER_PUSH: Final = "/vac/waku/filter-push/2.0.0-beta1"

_SUBSCRIPTION_NS: Final = int(limits.SUBSCRIPTION_TIMEOUT_S * NS_PER_S)
_NO_SUBSCRIPTION: Final = "peer has no subscriptions"

Criterion = tuple[str, str]
"""A pubsub topic and a content topic."""

PING, SUBSCRIBE, UNSUBSCRIBE, UNSUBSCRIBE_ALL = range(4)
"""Kinds of requests (``filter_subscribe_type``)."""


def named_criteria(request: FilterRequest) -> set[Criterion]:
    """Return the criteria that a request names; raise ValueError for none, or too many."""
    if not request.HasField("pubsub_topic") or not request.content_topics:
        raise ValueError("name the pubsub topic and the content topics")
    if len(request.content_topics) > limits.MAX_REQUESTED_TOPICS:
        raise ValueError(f"more than {limits.MAX_REQUESTED_TOPICS} content topics")
    if any(len(each.encode()) > MAX_TOPIC_BYTES for each in request.content_topics):
        raise ValueError(f"a content topic has more than {MAX_TOPIC_BYTES:,} bytes")
    return {(request.pubsub_topic, each) for each in request.content_topics}


def encode_push(message: FollowedMessage) -> bytes:
    """Encode a ``MessagePush``."""
    push = FilterPush(message=message.encoded, pubsub_topic=message.pubsub_topic)
    return push.SerializeToString()


class FilterSubscriber(SendQueue):
    """A connection with subscriptions, and the frames that wait to be pushed to it."""

    expires_ns = 0

    def __init__(
        self, connection: WakuConnection, metrics: GatewayMetrics, on_end: Callable[[], None]
    ) -> None:
        super().__init__(connection, FILTER_PUSH, limits.MAX_QUEUED_PUSHES, metrics, on_end)
        self.criteria: set[Criterion] = set()


class Filter:
    """The subscriptions of all connections."""

    def __init__(
        self, feed: NodeFeed, metrics: GatewayMetrics, pubsub_topics: frozenset[str]
    ) -> None:
        feed.listeners.append(self.deliver)
        self._feed = feed
        self._metrics = metrics
        self._pubsub_topics = pubsub_topics
        self._subscribers: dict[WakuConnection, FilterSubscriber] = {}
        self._index: dict[Criterion, dict[FilterSubscriber, None]] = {}
        self._criteria = 0

    def __len__(self) -> int:
        """Count the subscribers."""
        return len(self._subscribers)

    async def serve(self, stream: Stream) -> None:
        """Read one request and send the response."""
        data = await stream.request(limits.MAX_REQUEST_BYTES)
        await stream.send_delimited(await self._answer(data, stream.connection))

    def deliver(self, message: FollowedMessage) -> None:
        """Queue a new message for all who subscribed to its topics."""
        if not self._index or message.timestamp_ns < time.time_ns() - limits.MAX_PUSH_AGE_NS:
            return
        criterion = message.pubsub_topic, message.content_topic
        frame = None
        for subscriber in self._index.get(criterion, ()):
            frame = frame or delimited(encode_push(message))
            queued = subscriber.put(frame)
            (self._metrics.filter_pushes if queued else self._metrics.filter_drops).inc()

    def expire(self, now_ns: int) -> None:
        """End the subscriptions of connections that have sent no request for too long."""
        for subscriber in list(self._subscribers.values()):
            if subscriber.expires_ns <= now_ns:
                self._remove(subscriber)

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        indexed = {(each, criterion) for criterion, named in self._index.items() for each in named}
        own = {
            (each, criterion) for each in self._subscribers.values() for criterion in each.criteria
        }
        assert indexed == own
        assert self._criteria == len(own) <= limits.MAX_CRITERIA
        assert all(self._index.values())
        assert all(each.criteria for each in self._subscribers.values())

    async def _answer(self, data: bytes, connection: WakuConnection) -> bytes:
        request_id = UNREADABLE_ID
        try:
            request = parse(FilterRequest, data)
            request_id = required_id(request)
            connection.client.ask(time.monotonic_ns())
            if request.kind == SUBSCRIBE:
                await self._subscribe_live(request, connection)
            else:
                self.handle(request, connection, time.monotonic_ns())
        except FAILURES as error:
            code, sentence = status_of(error, self._metrics)
            return encode_status(request_id, code, f"{HTTPStatus(code).name}: {sentence}")
        return encode_status(request_id, 200, "OK")

    async def _subscribe_live(self, request: FilterRequest, connection: WakuConnection) -> None:
        """Subscribe when new messages arrive: what is published after the answer is pushed."""
        self._feed.acquire()
        try:
            if not await self._feed.is_live():
                raise StatusError(503, "the node cannot be followed")
            self.handle(request, connection, time.monotonic_ns())
        finally:
            self._feed.release()

    def handle(self, request: FilterRequest, connection: WakuConnection, now_ns: int) -> None:
        """Apply a request; raise StatusError or ValueError if it is refused."""
        subscriber = self._subscribers.get(connection)
        if request.kind == SUBSCRIBE:
            subscriber = self._subscribe(named_criteria(request), connection)
        elif subscriber is None:
            raise StatusError(404, _NO_SUBSCRIPTION)
        subscriber.expires_ns = now_ns + _SUBSCRIPTION_NS
        if request.kind == UNSUBSCRIBE:
            self._unsubscribe(subscriber, named_criteria(request))
        elif request.kind == UNSUBSCRIBE_ALL:
            self._remove(subscriber)
        elif request.kind not in (PING, SUBSCRIBE):
            raise ValueError(f"unknown type {request.kind}")

    def _subscribe(self, criteria: set[Criterion], connection: WakuConnection) -> FilterSubscriber:
        if any(pubsub_topic not in self._pubsub_topics for pubsub_topic, _ in criteria):
            raise ValueError("the pubsub topic is not one of this gateway's shards")
        subscriber, client = self._subscribers.get(connection), connection.client
        new = criteria if subscriber is None else criteria - subscriber.criteria
        known = 0 if subscriber is None else len(subscriber.criteria)
        if (
            known + len(new) > limits.MAX_SUBSCRIBER_CRITERIA
            or client.criteria + len(new) > limits.MAX_CLIENT_CRITERIA
            or self._criteria + len(new) > limits.MAX_CRITERIA
        ):
            raise StatusError(503, "too many content topics")
        if subscriber is None:
            subscriber = added = FilterSubscriber(
                connection, self._metrics, lambda: self._remove(added)
            )
            self._subscribers[connection] = subscriber
            self._feed.acquire()
            self._metrics.filter_subscribers.set(len(self))
        subscriber.criteria |= new
        client.criteria += len(new)
        self._criteria += len(new)
        for criterion in new:
            self._index.setdefault(criterion, {})[subscriber] = None
        return subscriber

    def _unsubscribe(self, subscriber: FilterSubscriber, criteria: set[Criterion]) -> None:
        common = criteria & subscriber.criteria
        if not common:
            raise StatusError(404, _NO_SUBSCRIPTION)
        self._drop(subscriber, common)
        if not subscriber.criteria:
            self._remove(subscriber)

    def _drop(self, subscriber: FilterSubscriber, criteria: set[Criterion]) -> None:
        for criterion in criteria:
            named = self._index[criterion]
            del named[subscriber]
            if not named:
                del self._index[criterion]
        subscriber.criteria -= criteria
        subscriber.connection.client.criteria -= len(criteria)
        self._criteria -= len(criteria)

    def _remove(self, subscriber: FilterSubscriber) -> None:
        if self._subscribers.get(subscriber.connection) is not subscriber:
            return
        del self._subscribers[subscriber.connection]
        self._feed.release()
        self._drop(subscriber, set(subscriber.criteria))
        self._metrics.filter_subscribers.set(len(self))
        subscriber.stop()
