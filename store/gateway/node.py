"""The node behind the gateway: `Store.Query`, whose bytes are not parsed here.

A request gets one field more, by which the node reads it as nwaku would.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from store.gateway.limits import FORWARD_PLACES, FORWARD_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.varints import number_field
from store.observe.logging import get_logger
from storenode.connection.channel import Metadata
from storenode.connection.errors import node_error

_METHOD: Final = "/storenode.v1.Store/Query"
_NWAKU_RULES: Final = number_field(7421, 1)
"""``StoreQueryRequest.nwaku_rules``; it goes first, so that a request that is cut off stays one."""
_STATUS_CODES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
_UNAVAILABLE: Final = 503
_AWAY: Final = "the node behind this gateway cannot be reached: try again later"
"""What a stranger is told; the operator's log says which node, and why."""
_log = get_logger("store.gateway")


class QueryFailed(Exception):
    """The node did not answer; ``status_code`` is one of 13/WAKU2-STORE."""

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
        self._call = channel.unary_unary(_METHOD, None, None)

    async def query(self, request: bytes, places: asyncio.Semaphore) -> bytes:
        """Return the node's answer to a ``StoreQueryRequest``; ``places`` are one client's.

        Raises:
            QueryFailed: It gave none.
        """
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT_S), places, self._places:
                with self._metrics.query_seconds.time():
                    answer: bytes = await self._call(
                        _NWAKU_RULES + request, metadata=self._metadata
                    )
                    return answer
        except TimeoutError as error:
            raise QueryFailed(_UNAVAILABLE, "the node did not answer in time") from error
        except grpc.aio.AioRpcError as error:
            code = _STATUS_CODES.get(error.code(), _UNAVAILABLE)
            if code == _UNAVAILABLE:
                _log.warning("query_failed", node=self.address, code=error.code().name)
            sentence = node_error(error, self.address).sentence
            raise QueryFailed(code, sentence if code != _UNAVAILABLE else _AWAY) from error

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
