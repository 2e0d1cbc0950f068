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

from store.http.connections import BoundedProtocol, OpenConnections
from store.serving.addresses import ListenerAddress, bind_error
from store.serving.tls import TlsFiles, renewing_context

KEEP_ALIVE_S: Final = 75
"""How long a connection may be idle between two requests."""

HANDSHAKE_TIMEOUT_S: Final = 10
"""For TLS."""


BACKLOG: Final = 1_024


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
    where: ListenerAddress, app: ASGIApp, tls: TlsFiles | None, connections: OpenConnections
) -> HttpListener:
    """Bind an address, which queues connections until the listener is started.

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
    return HttpListener(bound, where.with_port(port), _Server(config, connections, context))


class _Server(uvicorn.Server):
    """A server of uvicorn without signals, sockets and logs, which are the node's."""

    def __init__(
        self, config: uvicorn.Config, connections: OpenConnections, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._connections = connections
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
                lambda: BoundedProtocol(self._connections, self.config, self.server_state, {}),
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
        self._connections.abort_all()

    def end(self, grace_s: float) -> None:
        """Begin to shut down."""
        self.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self.should_exit = True
