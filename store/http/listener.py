"""The HTTP listener: bound to an address, served in the node's event loop, stopped in order.

Connections are uvicorn's, for HTTP/1.1 alone, with bounds on what comes over them. Its server,
which wakes ten times a second, is not used. httptools parses heads and chunks in C. Each header
field and each chunk still costs a call into Python, so their number is bounded besides their bytes.
What llhttp accepts and RFC 9112 lets a server refuse is refused here: what stands in front of the
node must read a request as it does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from store.observe.metrics import Metrics
from store.serving.addresses import ListenerAddress, bind_error
from store.serving.tls import TlsFiles, renewing_context

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line, headers and trailers, and what frames the chunks of a small body. A connection that
sends more is closed. All connections together hold as much of unfinished heads at most."""

MAX_HEADER_FIELDS: Final = 100
"""Headers and trailers of a request, as Apache has it; browsers behind proxies send some 40."""

MAX_SMALL_CHUNKS: Final = 1_024
LEAST_CHUNK_BYTES: Final = 1_024
"""Chunks of a body in any size, and how large all further ones are in the mean."""

MAX_PIPELINED_REQUESTS: Final = 16
"""Requests that are sent before the answer to the one before them."""

LINGER_S: Final = 2.0
"""A caller that is answered before it has sent all is given this long to read the answer."""

HEAD_TIMEOUT_S: Final = 10
"""The time limit of TLS, and of a request's head, from its first byte or the connection on."""

SEND_TIMEOUT_S: Final = 60.0
"""A caller that takes nothing of an answer for this long is disconnected."""

BUFFER_BYTES: Final = 16 * 1024
"""The bytes of an answer that the transport buffers before its sender waits."""

_NOT_HTTP: Final = "this is no request of HTTP/1.1, or one that can be read in two ways"
_TOO_LARGE: Final = (
    f"a request has at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADER_FIELDS} fields beside its"
    " body: send fewer headers, or parameters in a body"
)
_MANY_CHUNKS: Final = (
    f"the body has more than {MAX_SMALL_CHUNKS:,} chunks, of less than {LEAST_CHUNK_BYTES:,} bytes"
    " in the mean: send larger ones"
)
_VERSIONS_AND_HOSTS: Final = (("1.1", 1), ("1.0", 1), ("1.0", 0))
"""The allowed pairs of version and number of `Host` headers (RFC 9112, 3.2)."""

KEEP_ALIVE_S: Final = 75
"""The time that a connection may be idle between two requests."""

BACKLOG: Final = 1_024

PROBE_AFTER_S: Final = 60
"""The kernel asks the other end of a connection that has been silent for this long whether it is
there; without an answer the connection ends."""

PAUSE_S: Final = 0.05
"""The interval at which a stopping listener checks whether its connections have ended."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection: uvicorn's protocol, with bounds on what its caller sends, and how it reads.

    There are ``most`` at the same time; further ones are closed at once. Its application finds it
    in the scope's state, as ``connection``, and is cancelled when the caller hangs up.
    """

    def __init__(
        self, most: int, metrics: Metrics, config: Config, server_state: ServerState
    ) -> None:
        super().__init__(config, server_state, {"connection": self})
        self._most = most
        self._metrics = metrics
        self._stalled: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal = _NOT_HTTP
        self._running: RequestResponseCycle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_lingering = False
        self._begin_count()

    @property
    def is_receiving(self) -> bool:
        """True while the body of the request that is being answered has not come in full."""
        return self._running is not None and self._running.more_body

    def send_plain(self, size_bytes: int = 0) -> None:
        """Send the head or a part of an answer to HTTP/1.0, which has no chunks (RFC 9112, 6.1)."""
        if self._running is not None:
            self._running.chunked_encoding = False
            self._running.expected_content_length += size_bytes

    def abort(self) -> None:
        """Close the connection without sending what is left for it."""
        if not self._is_lingering:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > self._most or self.client is None:
            self._count_refused("full")
            transport.abort()
            return
        self._metrics.http_connections.set(len(self.connections))
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and notify the request that is being answered; uvicorn notifies the newest one."""
        self._stop_waiting()
        self._end_stall()
        super().connection_lost(exc)
        self._metrics.http_connections.set(len(self.connections))
        self._disconnect()
        # Else the scope of the request and this would keep each other.
        self.app_state, self._running, self._task = {}, None, None

    def data_received(self, data: bytes) -> None:
        """Parse what has come; a head that has begun must end in time."""
        if not self._is_lingering:
            self._received_bytes += len(data)
            super().data_received(data)
            self._check()

    def pause_writing(self) -> None:
        """Make the sender wait for the caller, which must take something in time."""
        super().pause_writing()
        self._stalled = self.loop.call_later(SEND_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Let the sender continue."""
        self._end_stall()
        super().resume_writing()

    # What the parser finds; what these raise becomes `send_400_response`

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; trailers are counted and dropped."""
        self._fields += 1
        if self._fields > MAX_HEADER_FIELDS:
            self._refuse(_TOO_LARGE)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the request can be read in two ways."""
        self._in_head = False
        version = self.parser.get_http_version()
        authority = self.url.partition(b"://")[2].partition(b"/")[0]  # of a target in absolute form
        hosts = [value for name, value in self.headers if name == b"host"]
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        if (
            (version, len(hosts)) not in _VERSIONS_AND_HOSTS
            or (codings and (codings != [b"chunked"] or version == "1.0"))
            or not (self.url.startswith(b"/") or authority in hosts)
            or len(self.pipeline) >= MAX_PIPELINED_REQUESTS
        ):
            self._refuse(_NOT_HTTP)
        super().on_headers_complete()
        # uvicorn stops reading where a request waits, and would not notice that its caller goes.
        self.flow.resume_reading()
        if self.parser.should_upgrade():
            # The parser drops what follows.
            self.cycle.keep_alive = False

    def on_chunk_header(self) -> None:
        """Count a chunk, unless there are many small ones."""
        self._chunks += 1
        if self._chunks > MAX_SMALL_CHUNKS + self._body_bytes // LEAST_CHUNK_BYTES:
            self._refuse(_MANY_CHUNKS)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which is read of a POST alone."""
        self._body_bytes += len(body)
        if self.scope["method"] == "POST":
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; its counters are then those of the next one."""
        super().on_message_complete()
        self._begin_count()

    def send_400_response(self, _msg: str) -> None:
        """Refuse what has come, and end the connection; an answer that has begun is broken off."""
        self._count_refused("malformed")
        running = self._running
        self._disconnect()
        if running is not None and not running.response_complete:
            is_own = running is self.cycle and running.more_body
            if running.response_started or not is_own:
                self.transport.abort()
                return
        is_large, body = self._refusal is _TOO_LARGE, f"{self._refusal}\n".encode()
        status = b"431 Request Header Fields Too Large" if is_large else b"400 Bad Request"
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (status, len(body), body)
        )
        self._linger()

    def on_response_complete(self) -> None:
        """Let the connection idle, or continue with the next request that has come already."""
        self._stop_waiting()
        if self._running is not None:
            self._running.body.clear()  # what came of it before it was refused
        if self.is_receiving and not self.transport.is_closing():
            self._linger()
        else:
            super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        # As uvicorn does, which keeps no task by its request.
        self._running, self._task = cycle, self.loop.create_task(cycle.run_asgi(app))
        self._task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._task)

    def _disconnect(self) -> None:
        if self._running is not None and self._task is not None:
            self._running.disconnected = True
            self._running.body.clear()
            if not self._running.response_complete:
                self._task.cancel()

    def _begin_count(self) -> None:
        self._in_head = True
        self._received_bytes = self._body_bytes = self._fields = self._chunks = 0

    def _refuse(self, refusal: str) -> NoReturn:
        self._refusal = refusal
        raise ValueError

    # How it waits and ends

    def _check(self) -> None:
        if self._is_lingering:
            return
        if self._received_bytes > MAX_HEAD_BYTES + 2 * self._body_bytes:
            self._refusal = _TOO_LARGE
            self.send_400_response("")
        elif self._running is not None and not self._running.response_complete:
            self._stop_waiting()
        elif self._deadline is None:
            self._await_head()

    def linger_at_end(self) -> None:
        """Keep the connection for a moment after the answer, whose headers said that it closes."""
        if self._running is not None:
            self._running.keep_alive = True

    def _linger(self) -> None:
        """Send the end, and drop what comes until the caller closes.

        Closing at once would have the kernel take back an answer that the caller has not read.
        """
        self._is_lingering = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._stop_waiting()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self._close_slow)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_slow(self) -> None:
        self._count_refused("slow")
        self.transport.abort()

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def _count_refused(self, reason: str) -> None:
        self._metrics.http_connections_refused.labels(reason).inc()


@dataclass(eq=False)
class HttpListener:
    """A server that listens; ``address`` has the real port.

    ``state`` has its open connections, which ``connect`` makes, and its requests under way.
    """

    address: str
    bound: socket.socket
    state: ServerState
    connect: Callable[[], BoundedProtocol]
    tls: ssl.SSLContext | None
    _server: asyncio.Server | None = None
    _stopping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Begin to answer."""
        self._server = await asyncio.get_running_loop().create_server(
            self.connect,
            sock=self.bound,
            ssl=self.tls,
            ssl_handshake_timeout=None if self.tls is None else HEAD_TIMEOUT_S,
            backlog=BACKLOG,
        )

    async def stop(self, grace_s: float) -> None:
        """Accept nothing new, let requests under way end within ``grace_s``, then end them.

        May be called again, and waits then for the first call.
        """
        async with self._stopping:
            (self._server or self.bound).close()
            for connection in self.state.connections.copy():
                connection.shutdown()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    while self.state.connections or self.state.tasks:  # noqa: ASYNC110 - uvicorn's
                        await asyncio.sleep(PAUSE_S)
            for task in self.state.tasks:
                task.cancel()
            for connection in self.state.connections.copy():
                connection.transport.abort()


def bind(
    where: ListenerAddress, app: ASGIApp, tls: TlsFiles | None, most: int, metrics: Metrics
) -> HttpListener:
    """Bind an address, which queues connections until the listener is started.

    ``most``: connections at the same time.

    Raises:
        BindError: The address is in use, not this machine's, or not allowed.
        TlsError: The certificate cannot be used.
    """
    context = None if tls is None else renewing_context(tls)
    try:
        family, _, _, _, host = socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.create_server((str(host[0]), int(host[1])), family=family, backlog=BACKLOG)
    except OSError as error:
        raise bind_error(where) from error
    bound.setblocking(False)
    _tune(bound)
    config = Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        # What fails is logged where it is answered; what strangers send is not logged at all.
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    state = ServerState()
    address = where.with_port(bound.getsockname()[1])
    connect = partial(BoundedProtocol, most, metrics, config, state)
    return HttpListener(address, bound, state, connect, context)


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
