"""Light push: a client hands over a message, and the gateway publishes it at the node.

Source: 19/WAKU2-LIGHTPUSH, versions 3.0.0 and 2.0.0-beta1. Statuses are those that nwaku uses and
js-waku expects; a request that cannot be decoded has the request ID ``N/A`` and status 400, as
nwaku has it. A duplicate is a success, since clients publish again what they got no answer to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from store.gateway.clients import ClientAddress
from store.gateway.faults import RefusalError, StatusError
from store.gateway.limits import MAX_RELAYED_BYTES, MAX_REQUEST_BYTES, MAX_REQUEST_ID_BYTES
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.relay import Relay
from store.gateway.streams import Stream
from store.gateway.wire import UNREADABLE_ID, encode_status, parse, parse_relayable, require
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import (
    LegacyLightPush,
    LegacyPushResponse,
    LightPushRequest,
)
from storenode.wire.storenode.v1.store_pb2 import PublishResult

LIGHT_PUSH: Final = "/vac/waku/lightpush/3.0.0"
LEGACY_LIGHT_PUSH: Final = "/vac/waku/lightpush/2.0.0-beta1"

SUCCESS: Final = 200
_BAD_REQUEST, _TOO_LARGE, _INVALID_MESSAGE, _OTHER_TOPIC = 400, 413, 420, 421
_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503
_STATUSES: Final = {400: _INVALID_MESSAGE, 429: _TOO_MANY_REQUESTS}
"""Statuses by that of the failed call of the node."""

_RELAY_PEERS: Final = 1
"""Peers that a response names: js-waku and nwaku take 0 for a failure. The node is the one."""

PushedMessage = tuple[bytes, str, bytes]
"""The request ID, the pubsub topic, which is empty where the request names none, and a message."""


def parse_request(data: bytes) -> PushedMessage:
    """Parse a ``LightpushRequest``.

    Raises:
        ValueError: It is malformed, or a required field is missing.
    """
    found = parse(LightPushRequest, data)
    require(found, "message")
    parse_relayable(found.message)
    return _request_id(found), found.pubsub_topic, found.message


def parse_legacy_request(data: bytes) -> PushedMessage:
    """Parse a ``PushRPC`` of version 2.0.0-beta1.

    Raises:
        ValueError: It is malformed, or a required field is missing.
    """
    found = parse(LegacyLightPush, data)
    require(found, "request")
    require(found.request, "message", "pubsub_topic")
    parse_relayable(found.request.message)
    return _request_id(found), found.request.pubsub_topic, found.request.message


def encode_response(request_id: bytes, status_code: int, sentence: str) -> bytes:
    """Encode a ``LightpushResponse``; ``sentence`` is empty for a success."""
    relayed = {"relay_peers": _RELAY_PEERS} if status_code == SUCCESS else {}
    return encode_status(request_id, status_code, sentence, **relayed)


def encode_legacy_response(request_id: bytes, status_code: int, sentence: str) -> bytes:
    """Encode a ``PushRPC`` with a response."""
    answer = LegacyPushResponse(is_success=status_code == SUCCESS, info=sentence or "OK")
    return LegacyLightPush(request_id=request_id, response=answer).SerializeToString()


PushVersion = tuple[Callable[[bytes], PushedMessage], Callable[[bytes, int, str], bytes]]
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

    async def serve(self, version: PushVersion, stream: Stream) -> None:
        """Serve one request of a version, which is its parser and its encoder."""
        parse, encode = version
        data = await stream.request(MAX_REQUEST_BYTES)
        request_id, status_code, sentence = UNREADABLE_ID, SUCCESS, ""
        try:
            request_id, topic, message = parse(data)
            await self._publish(topic, message, stream.connection.client)
        except ValueError as error:
            status_code, sentence = _BAD_REQUEST, str(error)
        except RefusalError as fault:
            self._metrics.refused(fault.reason)
            status_code, sentence = _TOO_MANY_REQUESTS, str(fault)
        except StatusError as error:
            status_code, sentence = error.status_code, str(error)
        self._metrics.light_pushes.labels(str(status_code)).inc()
        await stream.send_delimited(encode(request_id, status_code, sentence))

    async def _publish(self, topic: str, message: bytes, client: ClientAddress) -> None:
        """Publish a message.

        Raises:
            StatusError: It, or its topic, is not accepted, or the node does not answer.
            RefusalError: The address sends too many.
        """
        if topic not in self._pubsub_topics:
            sentence = "the pubsub topic is missing, or is not one of this gateway's shards"
            raise StatusError(_OTHER_TOPIC, sentence)
        if len(message) + len(topic) > MAX_RELAYED_BYTES:
            sentence = f"the message and its topic have more than {MAX_RELAYED_BYTES:,} bytes"
            raise StatusError(_TOO_LARGE, sentence)
        client.ask(time.monotonic_ns())
        try:
            (result,) = await self._node.publish([(message, topic)], client.queries)
        except StatusError as error:
            status_code = _STATUSES.get(error.status_code, _UNAVAILABLE)
            raise StatusError(status_code, str(error)) from error
        if result.outcome == PublishResult.REJECTED:
            raise StatusError(_INVALID_MESSAGE, result.reason)
        if self._relay is not None:
            self._relay.publish(topic, result.message_hash, message)


def _request_id(request: LightPushRequest | LegacyLightPush) -> bytes:
    require(request, "request_id")
    if len(request.request_id) > MAX_REQUEST_ID_BYTES:
        raise ValueError(f"the request ID has more than {MAX_REQUEST_ID_BYTES:,} bytes")
    return request.request_id
