"""Services that answer a request on a stream of its own: store query, light push, and small ones.

Light push: a client hands over a message, and the gateway publishes it at the node. Its statuses
are those that nwaku uses and js-waku expects; a request that cannot be decoded has the request ID
``N/A`` and status 400, as nwaku has it. A duplicate is a success, since clients publish again what
they got no answer to.

Source: 13/WAKU2-STORE; 19/WAKU2-LIGHTPUSH, versions 3.0.0 and 2.0.0-beta1; 66/WAKU2-METADATA;
libp2p, "identify" and "ping".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from store.gateway import limits
from store.gateway.addresses import ListenAddress
from store.gateway.clients import ClientAddress
from store.gateway.connection import Handler, Stream
from store.gateway.faults import RefusalError, StatusError, StreamEndedError
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.noise import Identity
from store.gateway.relay import Relay
from store.gateway.wire import (
    UNREADABLE_ID,
    decode_varint,
    encode_status,
    parse,
    parse_relayable,
    require,
)
from storenode.wire.storenode.internal.v1.libp2p_pb2 import Identify
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import (
    FilterRequest,
    LegacyLightPush,
    LegacyPushResponse,
    LightPushRequest,
)
from storenode.wire.storenode.v1.store_pb2 import PublishResult

STORE_QUERY: Final = "/vac/waku/store-query/3.0.0"
LIGHT_PUSH: Final = "/vac/waku/lightpush/3.0.0"
LEGACY_LIGHT_PUSH: Final = "/vac/waku/lightpush/2.0.0-beta1"
METADATA: Final = "/vac/waku/metadata/1.0.0"
IDENTIFY: Final = "/ipfs/id/1.0.0"
PING: Final = "/ipfs/ping/1.0.0"

SUCCESS: Final = 200
_BAD_REQUEST, _TOO_LARGE, _INVALID_MESSAGE, _OTHER_TOPIC = 400, 413, 420, 421
_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503

_PING_BYTES: Final = 32
_PROTOCOL_VERSION: Final = "ipfs/0.1.0"
_QUERY_ID: Final = b"\x0a"
"""The tag of ``StoreQueryRequest.request_id``."""

FAILURES: Final = (RefusalError, StatusError, ValueError)


def status_of(error: Exception, metrics: GatewayMetrics) -> tuple[int, str]:
    """Return the status and the sentence for one of `FAILURES`, and count a refusal."""
    if isinstance(error, RefusalError):
        metrics.refused(error.reason)
        return _UNAVAILABLE if error.reason == "busy" else _TOO_MANY_REQUESTS, str(error)
    return getattr(error, "status_code", _BAD_REQUEST), str(error)


def required_id(request: FilterRequest | LightPushRequest | LegacyLightPush) -> bytes:
    """Return the ID of a request; raise ValueError if it is absent or too long."""
    if not request.HasField("request_id") or len(request.request_id) > limits.MAX_REQUEST_ID_BYTES:
        sentence = f"a request ID of at most {limits.MAX_REQUEST_ID_BYTES:,} bytes is required"
        raise ValueError(sentence)
    return request.request_id


class StoreQuery:
    """Passes queries on, and answers those itself that cannot be."""

    def __init__(self, node: UpstreamNode, metrics: GatewayMetrics, max_request_bytes: int) -> None:
        self._node = node
        self._metrics = metrics
        self._max_request_bytes = max_request_bytes

    async def serve(self, stream: Stream) -> None:
        """Serve one query: the answer is the node's, or a status (13/WAKU2-STORE)."""
        client, answered_by = stream.connection.client, "node"
        request = await stream.request(self._max_request_bytes)
        try:
            client.ask(time.monotonic_ns())
            answer = await self._node.query(request, client.queries)
            client.unsent.take(len(answer))
        except FAILURES as error:
            answer = encode_status(_query_id(request), *status_of(error, self._metrics))
            client.unsent.take(len(answer))
            answered_by = "gateway"
        self._metrics.queries.labels(answered_by).inc()
        try:
            await stream.send_delimited(answer)
        finally:
            client.unsent.give(len(answer))


def _query_id(request: bytes) -> bytes:
    """Return the first field of a ``StoreQueryRequest``, which may be malformed after it.

    Empty where it cannot be used.
    """
    with suppress(ValueError):
        found = decode_varint(request, 1) if request.startswith(_QUERY_ID) else None
        if found is not None:
            size, start = found
            if size <= min(limits.MAX_REQUEST_ID_BYTES, len(request) - start):
                return request[start : start + size]
    return b""


def fixed_response(response: bytes, max_request_bytes: int | None = None) -> Handler:
    """Return a handler that answers any request, or none that is read, with the same bytes."""

    async def serve(stream: Stream) -> None:
        if max_request_bytes is not None:
            await stream.request(max_request_bytes)
        await stream.send_delimited(response)

    return serve


def encode_identify(
    identity: Identity, listens: Sequence[ListenAddress], version: str, protocols: Sequence[str]
) -> bytes:
    """Encode the response of the identify protocol."""
    return Identify(
        public_key=identity.public_key,
        listen_addresses=[each.encoded() for each in listens],
        protocols=protocols,
        protocol_version=_PROTOCOL_VERSION,
        agent_version=f"storenode/{version}",
    ).SerializeToString()


async def serve_pings(stream: Stream) -> None:
    """Send back what comes, 32 bytes at a time, until the client ends it."""
    with suppress(StreamEndedError):
        while True:
            data = await stream.exactly(_PING_BYTES)
            async with asyncio.timeout(limits.SEND_TIMEOUT_S):
                await stream.send(data)
            stream.release()


_NODE_STATUSES: Final = {400: _INVALID_MESSAGE, 429: _TOO_MANY_REQUESTS}
"""Statuses of light push by that of the failed call of the node."""

PushedMessage = tuple[bytes, str, bytes]
"""The request ID, the pubsub topic, which is empty where the request names none, and a message."""


def parse_request(data: bytes) -> PushedMessage:
    """Parse a ``LightpushRequest``; raise ValueError if it is malformed or lacks a field."""
    found = parse(LightPushRequest, data)
    require(found, "message")
    parse_relayable(found.message)
    return required_id(found), found.pubsub_topic, found.message


def parse_legacy_request(data: bytes) -> PushedMessage:
    """Parse a ``PushRPC`` of version 2.0.0-beta1; raise ValueError as `parse_request`."""
    found = parse(LegacyLightPush, data)
    require(found, "request")
    require(found.request, "message", "pubsub_topic")
    parse_relayable(found.request.message)
    return required_id(found), found.request.pubsub_topic, found.request.message


def encode_response(request_id: bytes, status_code: int, sentence: str) -> bytes:
    """Encode a ``LightpushResponse``; ``sentence`` is empty for a success."""
    # js-waku and nwaku take 0 peers for a failure; the node is the one.
    relayed = {"relay_peers": 1} if status_code == SUCCESS else {}
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
        data = await stream.request(limits.MAX_REQUEST_BYTES)
        request_id, status_code, sentence = UNREADABLE_ID, SUCCESS, ""
        try:
            request_id, topic, message = parse(data)
            await self._publish(topic, message, stream.connection.client)
        except FAILURES as error:
            status_code, sentence = status_of(error, self._metrics)
        self._metrics.light_pushes.labels(str(status_code)).inc()
        await stream.send_delimited(encode(request_id, status_code, sentence))

    async def _publish(self, topic: str, message: bytes, client: ClientAddress) -> None:
        """Publish a message; raise one of `FAILURES` if it is not accepted."""
        if topic not in self._pubsub_topics:
            sentence = "the pubsub topic is missing, or is not one of this gateway's shards"
            raise StatusError(_OTHER_TOPIC, sentence)
        if len(message) + len(topic) > limits.MAX_RELAYED_BYTES:
            sentence = f"message and topic have more than {limits.MAX_RELAYED_BYTES:,} bytes"
            raise StatusError(_TOO_LARGE, sentence)
        client.ask(time.monotonic_ns())
        try:
            (result,) = await self._node.publish([(message, topic)], client.queries)
        except StatusError as error:
            status_code = _NODE_STATUSES.get(error.status_code, _UNAVAILABLE)
            raise StatusError(status_code, str(error)) from error
        if result.outcome == PublishResult.REJECTED:
            raise StatusError(_INVALID_MESSAGE, result.reason)
        # A stored message that comes again was sent before; a stranger must not repeat it.
        if self._relay is not None and result.outcome != PublishResult.DUPLICATE:
            self._relay.publish(topic, result.message_hash, message)
