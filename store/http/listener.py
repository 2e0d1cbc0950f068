"""The HTTP server: bound to an address, served in the node's event loop, stopped in order.

Connections are uvicorn's, for HTTP/1.1 alone. Its server, which wakes ten times a second, is not
used.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

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


PAUSE_S: Final = 0.05
"""How often a listener that stops looks whether its connections have ended."""


class HttpListener:
    """A server that listens; ``address`` has the real port.

    ``state`` has its open connections, which ``connect`` makes, and its requests under way.
    """

    def __init__(
        self,
        bound: socket.socket,
        address: str,
        state: ServerState,
        connect: Callable[[], BoundedProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address = address
        self._bound = bound
        self._state = state
        self._connect = connect
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._stopping = asyncio.Lock()

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            sock=self._bound,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
            backlog=BACKLOG,
        )

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let requests under way end within ``grace_s``, then end them.

        May be called again, and waits then for the first call.
        """
        async with self._stopping:
            (self._server or self._bound).close()
            for connection in self._state.connections.copy():
                connection.shutdown()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn's
                        await asyncio.sleep(PAUSE_S)
            for task in self._state.tasks:
                task.cancel()
            for connection in self._state.connections.copy():
                connection.transport.abort()


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
    config = Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    state = ServerState()
    return HttpListener(
        bound,
        where.with_port(bound.getsockname()[1]),
        state,
        lambda: BoundedProtocol(most, metrics, config, state),
        context,
    )


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
