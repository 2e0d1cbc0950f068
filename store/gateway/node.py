"""The node behind the gateway: `Store.Query`, `Store.Publish` and `Store.Follow`.

Messages are not parsed here. A query gets one field more, by which the node reads it as nwaku
does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

import grpc

from store.gateway.limits import FORWARD_PLACES, FORWARD_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.varints import bytes_field, number_field
from store.observe.logging import get_logger
from storenode.connection.channel import Metadata
from storenode.connection.errors import node_error
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_UNSPECIFIED,
    PublishResponse,
    PublishResult,
)

_QUERY: Final = "/storenode.v1.Store/Query"
_PUBLISH: Final = "/storenode.v1.Store/Publish"
_FOLLOW: Final = "/storenode.v1.Store/Follow"
_NWAKU_RULES: Final = number_field(7421, 1)
"""``StoreQueryRequest.nwaku_rules``; it goes first, so that a request that is cut off stays one."""
_STATUS_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
_UNAVAILABLE: Final = 503
_AWAY: Final = "the node behind this gateway cannot be reached: try again later"
"""The sentence for strangers; the operator's log has the node, and why."""
_log = get_logger("store.gateway")


class NodeCallError(Exception):
    """A call of the node failed; ``status_code`` is one of 13/WAKU2-STORE."""

    def __init__(self, status_code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status_code = status_code


class Node:
    """Calls of one node, a bounded number at a time."""

    def __init__(
        self, address: str, channel: grpc.aio.Channel, metadata: Metadata, metrics: GatewayMetrics
    ) -> None:
        self.address = address
        self._channel = channel
        self._metadata = metadata
        self._metrics = metrics
        self.unready: str | None = f"the node at {address} is not connected"
        self._places = asyncio.Semaphore(FORWARD_PLACES)
        # Without serializers, requests and responses are bytes.
        self._query = channel.unary_unary(_QUERY, None, None)
        self._publish = channel.unary_unary(_PUBLISH, None, PublishResponse.FromString)
        self._follow = channel.unary_stream(_FOLLOW, None, None)

    async def query(self, request: bytes, places: asyncio.Semaphore) -> bytes:
        """Return the node's answer to a ``StoreQueryRequest``; ``places`` are one client's.

        Raises:
            NodeCallError: It gave none.
        """
        async with self._calling("query_failed", places):
            with self._metrics.query_seconds.time():
                answer: bytes = await self._query(_NWAKU_RULES + request, metadata=self._metadata)
        return answer

    async def publish(
        self, message: bytes, pubsub_topic: str, places: asyncio.Semaphore
    ) -> PublishResult:
        """Publish an encoded ``WakuMessage``, and return its result; ``places`` are one client's.

        Raises:
            NodeCallError: The node gave none.
        """
        (result,) = await self.publish_all([(message, pubsub_topic)], places)
        return result

    async def publish_all(
        self,
        messages: Sequence[tuple[bytes, str]],
        places: asyncio.Semaphore | None = None,
        source: int = PUBLISH_SOURCE_UNSPECIFIED,
    ) -> Sequence[PublishResult]:
        """Publish encoded messages with their pubsub topics, and return the result of each.

        ``source`` counts where the gateway's token has the right `backfill`.

        Raises:
            NodeCallError: The node gave none.
        """
        entries = (
            bytes_field(1, data) + bytes_field(2, topic.encode()) for data, topic in messages
        )
        request = b"".join(bytes_field(1, entry) for entry in entries) + number_field(4, source)
        async with self._calling("publish_failed", places):
            response = await self._publish(request, metadata=self._metadata)
        if len(response.results) != len(messages):
            raise NodeCallError(_UNAVAILABLE, "the node answers with another number of results")
        results: Sequence[PublishResult] = response.results
        return results

    async def follow(self, cursor: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the encoded pages of new messages after a cursor, or from now on.

        Raises:
            NodeCallError: The call failed.
        """
        request = number_field(4, 1) + (bytes_field(2, cursor) if cursor else b"")
        call = self._follow(request, metadata=self._metadata)
        try:
            async for page in call:
                yield page
        except grpc.aio.AioRpcError as error:
            raise self._error_of(error, "follow_failed") from error
        finally:
            call.cancel()

    @asynccontextmanager
    async def _calling(self, event: str, places: asyncio.Semaphore | None) -> AsyncIterator[None]:
        """Make a call when there is a place for it; raise `NodeCallError` if it fails."""
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S), places or nullcontext(), self._places:
                yield
        except TimeoutError as error:
            raise NodeCallError(_UNAVAILABLE, "the node did not answer in time") from error
        except grpc.aio.AioRpcError as error:
            raise self._error_of(error, event) from error

    def _error_of(self, error: grpc.aio.AioRpcError, event: str) -> NodeCallError:
        code = _STATUS_CODES.get(error.code(), _UNAVAILABLE)
        if code == _UNAVAILABLE:
            _log.warning(event, node=self.address, code=error.code().name)
        sentence = node_error(error, self.address).sentence
        return NodeCallError(code, sentence if code != _UNAVAILABLE else _AWAY)

    async def watch(self) -> None:
        """Keep the connection up, and say when it is lost and found."""
        connected: bool | None = None
        while True:
            state = self._channel.get_state(try_to_connect=True)
            now = state is grpc.ChannelConnectivity.READY
            self.unready = None if now else f"the node at {self.address} is not connected"
            failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            if now != connected and (now or failed):
                connected = now
                self._metrics.node_reachable.set(now)
                if now:
                    _log.info("node_connected", node=self.address)
                else:
                    _log.warning("node_unreachable", node=self.address)
            await self._channel.wait_for_state_change(state)
