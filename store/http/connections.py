"""Connections of the listener: how many there are, and how long they may keep the node waiting.

uvicorn's protocol bounds neither the time in which a request's head comes in nor, by closing
them, the number of connections.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from store.http.limits import BUFFER_BYTES, HEAD_TIMEOUT_S, PROBE_AFTER_S, SEND_TIMEOUT_S
from store.observe.metrics import Metrics

_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)
_PROBE_AFTER: Final[int | None] = getattr(socket, "TCP_KEEPIDLE", None)
"""None where the system is not Linux."""


class Connections:
    """The open connections, ``most`` of them; further ones are closed at once."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.most = most
        self._metrics = metrics
        self._open: dict[tuple[str, int], BoundedProtocol] = {}

    def opened(self, protocol: BoundedProtocol) -> bool:
        """Count a connection; False where there are too many."""
        if len(self._open) >= self.most or protocol.client is None:
            self._metrics.http_connections_refused.labels("full").inc()
            return False
        self._open[protocol.client] = protocol
        self._metrics.http_connections.set(len(self._open))
        return True

    def closed(self, protocol: BoundedProtocol) -> None:
        """Count its end."""
        if protocol.client is not None and self._open.get(protocol.client) is protocol:
            del self._open[protocol.client]
            self._metrics.http_connections.set(len(self._open))

    def late(self) -> None:
        """Count one that was closed since no request came in time."""
        self._metrics.http_connections_refused.labels("slow").inc()

    def abort(self, client: tuple[str, int]) -> None:
        """Close a connection without sending what is left for it."""
        protocol = self._open.get(client)
        if protocol is not None:
            protocol.transport.abort()

    def abort_all(self) -> None:
        """Close all of them."""
        for protocol in list(self._open.values()):
            protocol.transport.abort()


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol for one connection, with its times."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._bounds = connections
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many."""
        super().connection_made(transport)
        if not self._bounds.opened(self):
            transport.abort()
            return
        _tune(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        self._bounds.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; a head that has begun must end in time."""
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._stop_waiting()
        elif self._head is None:
            self._await_head()

    def on_response_complete(self) -> None:
        """Let the connection idle, or go on with the next request that has come already."""
        self._stop_waiting()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_TIMEOUT_S, self._too_late)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _too_late(self) -> None:
        self._bounds.late()
        self.transport.abort()


def _tune(transport: asyncio.Transport) -> None:
    """Have the kernel send at once, and end a connection whose other end acknowledges nothing.

    asyncio asks for the first only where a socket names its protocol, which accepted ones do not:
    the second half of a small answer would wait 40 ms for the acknowledgement of the first.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _PROBE_AFTER is not None:
        # Of a follower that is sent nothing, nothing else tells that its caller has vanished.
        connection.setsockopt(socket.IPPROTO_TCP, _PROBE_AFTER, PROBE_AFTER_S)
    if _USER_TIMEOUT is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(SEND_TIMEOUT_S * 1_000))
