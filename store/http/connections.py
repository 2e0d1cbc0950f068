"""The connections of the HTTP listener, and the bounds on what comes over them.

httptools parses heads and chunks in C. Each header field and each chunk still costs a call into
Python, so their number is bounded besides their bytes. What llhttp accepts and RFC 9112 lets a
server refuse is refused here: what stands in front of the node must read a request as it does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from store.observe.metrics import Metrics

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
"""From the first byte of a request, or from the connection on, to the end of the head."""

SEND_TIMEOUT_S: Final = 60.0
"""A caller that takes nothing of an answer for this long is disconnected."""

BUFFER_BYTES: Final = 16 * 1024
"""What the transport holds of an answer before its sender waits."""

_NOT_HTTP: Final = "this is no request of HTTP/1.1, or one that can be read in two ways"
_VERSIONS_AND_HOSTS: Final = (("1.1", 1), ("1.0", 1), ("1.0", 0))
"""How many headers `Host` a request has (RFC 9112, 3.2)."""


class _RefusedError(Exception):
    """The reason for which a request is refused before the application sees it."""

    def __init__(self, status: bytes = b"400 Bad Request", sentence: str = _NOT_HTTP) -> None:
        super().__init__(sentence)
        self.status = status


class BoundedProtocol(HttpToolsProtocol):
    """A connection: uvicorn's protocol, with bounds on what its caller sends, and how it reads.

    There are ``most`` at one time; further ones are closed at once. Its application finds it in
    the scope's state, as ``connection``, and is cancelled when the caller hangs up.
    """

    def __init__(
        self, most: int, metrics: Metrics, config: Config, server_state: ServerState
    ) -> None:
        super().__init__(config, server_state, {"connection": self})
        self._most = most
        self._metrics = metrics
        self._stalled: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._refusal = _RefusedError()
        self._running: RequestResponseCycle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_lingering = False
        self._begin_count()

    @property
    def is_receiving(self) -> bool:
        """True while the body of the request that is being answered has not come in full."""
        return self._running is not None and self._running.more_body

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
        """Let the sender go on."""
        self._end_stall()
        super().resume_writing()

    # What the parser finds; what these raise becomes `send_400_response`

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; trailers are counted and dropped."""
        self._fields += 1
        if self._fields > MAX_HEADER_FIELDS:
            self._refuse(_too_large())
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the request can be read in two ways."""
        self._in_head = False
        version = self.parser.get_http_version()
        hosts = [value for name, value in self.headers if name == b"host"]
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if (
            len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            > MAX_HEAD_BYTES
        ):
            self._refuse(_too_large())
        if (
            (version, len(hosts)) not in _VERSIONS_AND_HOSTS
            or (codings and (codings != [b"chunked"] or version == "1.0"))
            or not (self.url.startswith(b"/") or _authority(self.url) in hosts)
            or len(self.pipeline) >= MAX_PIPELINED_REQUESTS
        ):
            self._refuse(_RefusedError())
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
            sentence = (
                f"the body has more than {MAX_SMALL_CHUNKS:,} chunks, of less than"
                f" {LEAST_CHUNK_BYTES:,} bytes in the mean: send larger ones"
            )
            self._refuse(_RefusedError(sentence=sentence))

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, which is read of a POST alone."""
        self._body_bytes += len(body)
        if self.scope["method"] == "POST":
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; what is counted is that of the next one."""
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
        body = f"{self._refusal}\n".encode()
        self.transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (self._refusal.status, len(body), body)
        )
        self._linger()

    def on_response_complete(self) -> None:
        """Let the connection idle, or go on with the next request that has come already."""
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

    def _refuse(self, refusal: _RefusedError) -> NoReturn:
        self._refusal = refusal
        raise refusal

    # How it waits and ends

    def _check(self) -> None:
        if self._is_lingering:
            return
        if self._received_bytes > MAX_HEAD_BYTES + 2 * self._body_bytes:
            self._refusal = _too_large()
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
            self._stalled = None

    def _count_refused(self, reason: str) -> None:
        self._metrics.http_connections_refused.labels(reason).inc()


def _authority(url: bytes) -> bytes:
    """Return the host and port of a request target in absolute form."""
    return url.partition(b"://")[2].partition(b"/")[0]


def _too_large() -> _RefusedError:
    return _RefusedError(
        b"431 Request Header Fields Too Large",
        f"a request has at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADER_FIELDS} fields beside its"
        " body: send fewer headers, or parameters in a body",
    )
