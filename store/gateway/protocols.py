"""The protocols store query, metadata, identify and ping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from store.gateway.addresses import ListenAddress
from store.gateway.clients import ClientAddress
from store.gateway.connection import Handler
from store.gateway.faults import RefusalError, StatusError, StreamEndedError
from store.gateway.identity import Identity
from store.gateway.limits import MAX_REQUEST_ID_BYTES, SEND_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.streams import Stream
from store.gateway.wire import decode_varint, encode_status
from storenode.wire.storenode.internal.v1.libp2p_pb2 import Identify
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import WakuMetadata

STORE_QUERY: Final = "/vac/waku/store-query/3.0.0"
METADATA: Final = "/vac/waku/metadata/1.0.0"
IDENTIFY: Final = "/ipfs/id/1.0.0"
PING: Final = "/ipfs/ping/1.0.0"

_PING_BYTES: Final = 32
_PROTOCOL_VERSION: Final = "ipfs/0.1.0"
_REQUEST_ID: Final = b"\x0a"
"""The tag of ``StoreQueryRequest.request_id``."""

_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503


class StoreQuery:
    """Passes queries on, and answers those itself that cannot be."""

    def __init__(self, node: UpstreamNode, metrics: GatewayMetrics, max_request_bytes: int) -> None:
        self._node = node
        self._metrics = metrics
        self._max_request_bytes = max_request_bytes

    async def serve(self, stream: Stream) -> None:
        """Serve one query."""
        client = stream.connection.client
        request = await stream.request(self._max_request_bytes)
        answer = await self._answer(request, client)
        try:
            await stream.send_delimited(answer)
        finally:
            client.unsent.give(len(answer))

    async def _answer(self, request: bytes, client: ClientAddress) -> bytes:
        """Return the node's answer or a status of the gateway, counted as unsent."""
        try:
            client.ask(time.monotonic_ns())
            answer = await self._node.query(request, client.queries)
            client.unsent.take(len(answer))
            self._metrics.queries.labels("node").inc()
        except RefusalError as fault:
            self._metrics.refused(fault.reason)
            code = _UNAVAILABLE if fault.reason == "busy" else _TOO_MANY_REQUESTS
            answer = self._failure(request, client, code, str(fault))
        except StatusError as error:
            answer = self._failure(request, client, error.status_code, str(error))
        return answer

    def _failure(
        self, request: bytes, client: ClientAddress, status_code: int, sentence: str
    ) -> bytes:
        """Return a ``StoreQueryResponse`` without messages (13/WAKU2-STORE)."""
        answer = encode_status(_request_id(request), status_code, sentence)
        client.unsent.take(len(answer))
        self._metrics.queries.labels("gateway").inc()
        return answer


def _request_id(request: bytes) -> bytes:
    """Return the first field of a ``StoreQueryRequest``, which may be malformed after it.

    Empty where it cannot be used.
    """
    with suppress(ValueError):
        found = decode_varint(request, 1) if request.startswith(_REQUEST_ID) else None
        if found is not None and found[0] <= min(MAX_REQUEST_ID_BYTES, len(request) - found[1]):
            return request[found[1] :][: found[0]]
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


def encode_metadata(cluster: int, shards: Iterable[int]) -> bytes:
    """Encode the cluster and the shards of the node (66/WAKU2-METADATA)."""
    return WakuMetadata(cluster_id=cluster, shards=sorted(shards)).SerializeToString()


async def serve_pings(stream: Stream) -> None:
    """Send back what comes, 32 bytes at a time, until the client ends it."""
    with suppress(StreamEndedError):
        while True:
            data = await stream.exactly(_PING_BYTES)
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await stream.send(data)
            stream.release()
