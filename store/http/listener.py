"""The HTTP server: bound to an address, run by uvicorn in the node's event loop, stopped in order.

uvicorn is used for HTTP/1.1 alone. Signals, logging and the socket are the node's.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from store.http.connections import SEND_TIMEOUT_S, BoundedProtocol
from store.observe.metrics import Metrics
from store.serving.addresses import ListenerAddress, bind_error
from store.serving.tls import TlsFiles, renewing_context

KEEP_ALIVE_S: Final = 75
"""How long a connection may be idle between two requests."""

HANDSHAKE_TIMEOUT_S: Final = 10
"""For TLS."""

BACKLOG: Final = 1_024

PROBE_AFTER_S: Final = 60
"""The kernel asks the other end of a connection that has been silent for this long whether it is
there; without an answer the connection ends."""


class HttpListener:
    """A server that listens; ``address`` has the real port."""

    def __init__(self, bound: socket.socket, address: str, server: _Server) -> None:
        self.address = address
        self._bound = bound
        self._server = server
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to answer."""
        self._serving = asyncio.create_task(self._server.serve([self._bound]), name="http")

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let requests under way end within ``grace_s``, then end them.

        May be called again, and waits then for the first call.
        """
        if self._serving is None:
            self._bound.close()
            return
        self._server.end(grace_s)
        await asyncio.shield(self._serving)


def bind(
    where: ListenerAddress, app: ASGIApp, tls: TlsFiles | None, most: int, metrics: Metrics
) -> HttpListener:
    """Bind an address, which queues connections until the listener is started.

    ``most``: connections at one time.

    Raises:
        BindError: The address is in use, not this machine's, or not allowed.
        TlsError: The certificate cannot be used.
    """
    context = None if tls is None else renewing_context(tls)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.create_server(
            (str(address[0]), int(address[1])), family=family, backlog=BACKLOG
        )
    except OSError as error:
        raise bind_error(where) from error
    bound.setblocking(False)
    _tune(bound)
    for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        # What fails is logged where it is answered; what strangers send is not logged at all.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    port = bound.getsockname()[1]
    return HttpListener(bound, where.with_port(port), _Server(config, most, metrics, context))


def _tune(bound: socket.socket) -> None:
    """Make the kernel send at once, and end a connection whose other end acknowledges nothing.

    Connections have the options of the socket that accepts them. Without the first the second half
    of a small answer would wait 40 ms for the acknowledgement of the first. Of a follower that is
    sent nothing, only probes show that its caller has vanished.
    """
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_S),
        ("TCP_USER_TIMEOUT", int(SEND_TIMEOUT_S * 1_000)),
    ):
        option = getattr(socket, name, None)  # None where the system is not Linux
        if option is not None:
            bound.setsockopt(socket.IPPROTO_TCP, option, value)


class _Server(uvicorn.Server):
    """A server of uvicorn without signals, sockets and logs, which are the node's."""

    def __init__(
        self, config: uvicorn.Config, most: int, metrics: Metrics, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._most = most
        self._metrics = metrics
        self._tls = tls

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the node."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        assert sockets is not None
        self.servers = [
            await asyncio.get_running_loop().create_server(
                lambda: BoundedProtocol(self._most, self._metrics, self.config, self.server_state),
                sock=each,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
                backlog=BACKLOG,
            )
            for each in sockets
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End requests, then connections that do not end by themselves."""
        await super().shutdown(sockets)
        for each in list(self.server_state.connections):
            each.transport.abort()

    def end(self, grace_s: float) -> None:
        """Begin to shut down."""
        self.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self.should_exit = True
