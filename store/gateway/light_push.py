"""Light push: a client hands over a message, and the gateway publishes it at the node.

Source: 19/WAKU2-LIGHTPUSH, versions 3.0.0 and 2.0.0-beta1. Statuses are those that nwaku uses and
js-waku expects; a request that cannot be decoded has the request ID ``N/A`` and status 400, as
nwaku has it. A duplicate is a success, since clients publish again what they got no answer to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from store.gateway.connection import WakuConnection
from store.gateway.faults import RefusalError, StatusError
from store.gateway.limits import (
    MAX_PUSH_REQUEST_BYTES,
    MAX_RELAYED_BYTES,
    MAX_REQUEST_ID_BYTES,
    SEND_TIMEOUT_S,
)
from store.gateway.metrics import GatewayMetrics
from store.gateway.multistream import ByteReader
from store.gateway.node import UpstreamNode
from store.gateway.relay import Relay
from store.gateway.streams import Stream
from store.gateway.wire import encode_status, parse, parse_relayable, require
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import (
    LegacyLightPush,
    LegacyPushResponse,
    LightPushRequest,
)
from storenode.wire.storenode.v1.store_pb2 import PublishResult

LIGHT_PUSH: Final = "/vac/waku/lightpush/3.0.0"
LEGACY_LIGHT_PUSH: Final = "/vac/waku/lightpush/2.0.0-beta1"

_UNREADABLE_ID: Final = b"N/A"
_RELAY_PEERS: Final = 1
"""Peers that a response names: js-waku and nwaku take 0 for a failure. The node is the one."""


class PushStatus(IntEnum):
    """The status of a light push (19/WAKU2-LIGHTPUSH, "Examples of possible error codes")."""

    SUCCESS = 200
    BAD_REQUEST = 400
    PAYLOAD_TOO_LARGE = 413
    INVALID_MESSAGE = 420
    UNSUPPORTED_PUBSUB_TOPIC = 421
    TOO_MANY_REQUESTS = 429
    UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A message to publish; ``pubsub_topic`` is None where the request names none."""

    request_id: bytes
    pubsub_topic: str | None
    message: bytes


@dataclass(frozen=True, slots=True)
class PushResponse:
    """The answer to one request; ``sentence`` is empty for a success."""

    request_id: bytes
    status: PushStatus
    sentence: str = ""


def parse_request(data: bytes) -> PushRequest:
    """Parse a ``LightpushRequest``.

    Raises:
        ValueError: It is malformed, or a required field is missing.
    """
    found = parse(LightPushRequest, data)
    require(found, "message")
    parse_relayable(found.message)
    topic = found.pubsub_topic if found.HasField("pubsub_topic") else None
    return PushRequest(_request_id(found), topic, found.message)


def parse_legacy_request(data: bytes) -> PushRequest:
    """Parse a ``PushRPC`` of version 2.0.0-beta1.

    Raises:
        ValueError: It is malformed, or a required field is missing.
    """
    found = parse(LegacyLightPush, data)
    require(found, "request")
    request = found.request
    require(request, "message", "pubsub_topic")
    parse_relayable(request.message)
    return PushRequest(_request_id(found), request.pubsub_topic, request.message)


def encode_response(response: PushResponse) -> bytes:
    """Encode a ``LightpushResponse``."""
    relayed = {"relay_peers": _RELAY_PEERS} if response.status is PushStatus.SUCCESS else {}
    return encode_status(response.request_id, response.status, response.sentence, **relayed)


def encode_legacy_response(response: PushResponse) -> bytes:
    """Encode a ``PushRPC`` with a response."""
    is_success = response.status is PushStatus.SUCCESS
    answer = LegacyPushResponse(is_success=is_success, info=response.sentence or "OK")
    return LegacyLightPush(request_id=response.request_id, response=answer).SerializeToString()


PushVersion = tuple[Callable[[bytes], PushRequest], Callable[[PushResponse], bytes]]
VERSIONS: Final[dict[str, PushVersion]] = {
    LIGHT_PUSH: (parse_request, encode_response),
    LEGACY_LIGHT_PUSH: (parse_legacy_request, encode_legacy_response),
}


class LightPush:
    """Publishes messages of clients at the node, one at a time."""

    def __init__(
        self,
        node: UpstreamNode,
        metrics: GatewayMetrics,
        pubsub_topics: Collection[str],
        relay: Relay | None = None,
    ) -> None:
        self._node = node
        self._metrics = metrics
        self._pubsub_topics = pubsub_topics
        self._relay = relay

    async def serve(
        self, version: PushVersion, stream: Stream, reader: ByteReader, connection: WakuConnection
    ) -> None:
        """Serve one request of a version, which is its parser and its encoder."""
        parse, encode = version
        data = await reader.request(MAX_PUSH_REQUEST_BYTES)
        try:
            request = parse(data)
        except ValueError as error:
            response = PushResponse(_UNREADABLE_ID, PushStatus.BAD_REQUEST, str(error))
        else:
            response = await self._answer(request, connection)
        self._metrics.light_pushes.labels(str(response.status.value)).inc()
        await stream.send_delimited(encode(response), SEND_TIMEOUT_S)

    async def _answer(self, request: PushRequest, connection: WakuConnection) -> PushResponse:
        topic, message = request.pubsub_topic, request.message

        def respond(status: PushStatus, sentence: str = "") -> PushResponse:
            return PushResponse(request.request_id, status, sentence)

        if topic is None or topic not in self._pubsub_topics:
            sentence = "the pubsub topic is missing, or is not one of this gateway's shards"
            return respond(PushStatus.UNSUPPORTED_PUBSUB_TOPIC, sentence)
        if len(message) + len(topic) > MAX_RELAYED_BYTES:
            sentence = f"the message and its topic have more than {MAX_RELAYED_BYTES:,} bytes"
            return respond(PushStatus.PAYLOAD_TOO_LARGE, sentence)
        try:
            connection.client.ask(time.monotonic_ns())
            queries = connection.client.queries
            (result,) = await self._node.publish([(message, topic)], queries)
        except RefusalError as fault:
            self._metrics.refused(fault.reason)
            return respond(PushStatus.TOO_MANY_REQUESTS, str(fault))
        except StatusError as error:
            return respond(_STATUSES.get(error.status_code, PushStatus.UNAVAILABLE), str(error))
        if result.outcome == PublishResult.REJECTED:
            return respond(PushStatus.INVALID_MESSAGE, result.reason)
        if self._relay is not None:
            self._relay.publish(topic, result.message_hash, message)
        return respond(PushStatus.SUCCESS)


_STATUSES: Final = {400: PushStatus.INVALID_MESSAGE, 429: PushStatus.TOO_MANY_REQUESTS}
"""Statuses by that of the failed call of the node."""


def _request_id(request: LightPushRequest | LegacyLightPush) -> bytes:
    require(request, "request_id")
    if len(request.request_id) > MAX_REQUEST_ID_BYTES:
        raise ValueError(f"the request ID has more than {MAX_REQUEST_ID_BYTES:,} bytes")
    return request.request_id
