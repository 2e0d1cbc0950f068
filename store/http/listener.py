"""The HTTP listener: bound to an address, served in the node's event loop, stopped in order."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from typing import Final

from store.http.connections import SEND_TIMEOUT_S, HttpConnection, OpenConnections
from store.serving.addresses import ListenerAddress, bind_error
from store.serving.tls import TlsFiles, renewing_context

HANDSHAKE_TIMEOUT_S: Final = 10
"""For TLS."""

PROBE_AFTER_S: Final = 60
"""The kernel asks the other end of a connection that has been silent for this long whether it is
there; without an answer the connection ends."""

BACKLOG: Final = 1_024


@dataclass(slots=True, eq=False)
class HttpListener:
    """A server that listens; ``address`` has the real port."""

    address: str
    _bound: socket.socket
    _connections: OpenConnections
    _tls: ssl.SSLContext | None
    _server: asyncio.Server | None = None
    _stopping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self._connections),
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
            if self._server is not None:
                self._server.close()
            self._bound.close()
            await self._connections.end(grace_s)


def bind(
    where: ListenerAddress, connections: OpenConnections, tls: TlsFiles | None
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
    # Accepted sockets inherit the options of the one that listens.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", PROBE_AFTER_S),
        ("TCP_USER_TIMEOUT", int(SEND_TIMEOUT_S * 1_000)),
    ):
        if hasattr(socket, name):  # on Linux
            bound.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return HttpListener(where.with_port(bound.getsockname()[1]), bound, connections, context)
