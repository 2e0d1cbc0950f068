"""The connections of the HTTP listener: their requests, their answers, and the bounds on both.

A connection has one task, which reads a request, has it answered, and reads the next one: what
comes ahead stays with the kernel, but for `UNREAD_BYTES`. The parser (httptools) is fed each part
of a request as it is read, and refuses what is not strictly HTTP/1.1. What it accepts and RFC 9112
lets a server refuse is refused here: what stands in front of the node must read a request as it
does. Header fields and chunks cost calls into Python, so their number is bounded besides their
bytes.

What is sent has left this process, but for `BUFFER_BYTES` of the transport, when
`HttpExchange.send` returns. A caller that takes nothing for `SEND_TIMEOUT_S` is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from email.utils import formatdate
from functools import cached_property
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import parse_qs, unquote

import httptools

from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.serving.arrivals import Arrivals, AwaitedRequest
from store.serving.call import request_id
from store.serving.drain import Endable
from store.serving.failure import CallerGoneError, CallError, Code, malformed, over_limit
from store.serving.sockets import connection_name

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line, headers and trailers, and what frames the chunks of a small body. A connection that
sends more is closed."""

MAX_HEADER_FIELDS: Final = 100
"""Headers and trailers of a request, as Apache has it; browsers behind proxies send some 40."""

MAX_PARAMETERS: Final = 64
"""Parameters of a URL; a list of more entries goes into a body."""

MAX_SMALL_CHUNKS: Final = 1_024
LEAST_CHUNK_BYTES: Final = 1_024
"""Chunks of a body in any size, and how large all further ones are in the mean."""

UNREAD_BYTES: Final = 64 * 1024
"""Bytes that have come and were not read, beyond which no more are taken from the kernel."""

PART_BYTES: Final = 256 * 1024
"""A body is kept in parts of this size until it has come."""

HEAD_TIMEOUT_S: Final = 10
"""From the first byte of a request, or from the connection on, to the end of the head."""

KEEP_ALIVE_S: Final = 75
"""How long a connection may be idle between two requests."""

SEND_TIMEOUT_S: Final = 60.0
"""A caller that takes nothing of an answer for this long is disconnected."""

LINGER_S: Final = 2.0
"""A caller that is answered before it has sent all is given this long to read the answer."""

HEARTBEAT_S: Final = 10.0
"""A follower that is sent nothing else gets a comment this often: proxies and browsers end
connections that are silent for longer."""

BUFFER_BYTES: Final = 16 * 1024
"""What the transport holds of an answer before its sender waits."""

JSON: Final = b"application/json"

HeaderList = Sequence[tuple[bytes, bytes]]
App = Callable[["HttpExchange"], Awaitable[None]]
"""Answers a request."""

_LOG = get_logger("store.http")
_NOT_HTTP: Final = "this is no request of HTTP/1.1, or one that can be read in two ways"
_VERSIONS_AND_HOSTS: Final = (("1.1", 1), ("1.0", 1), ("1.0", 0))
"""How many headers `Host` a request has (RFC 9112, 3.2)."""

_STATUS_LINES: Final = {
    each.value: b"HTTP/1.1 %d %b\r\n" % (each, each.phrase.encode()) for each in HTTPStatus
}
_CLOSE: Final = (b"connection", b"close")
_OWN_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class HttpError(CallError):
    """A failure of a call, with the status and the headers of its answer."""

    def __init__(self, status: int, code: Code, sentence: str, headers: HeaderList = ()) -> None:
        super().__init__(code, sentence)
        self.status = status
        self.headers = headers


class OpenConnections:
    """The open connections, ``most`` of them, whose requests ``app`` answers.

    Further ones are closed at once.
    """

    def __init__(self, app: App, most: int, metrics: Metrics) -> None:
        self.app = app
        self._most = most
        self._metrics = metrics
        self._open: dict[HttpConnection, asyncio.Task[None]] = {}

    def add(self, connection: HttpConnection) -> bool:
        """Serve a connection; return False where there are too many."""
        if len(self._open) >= self._most:
            self.count_refused("full")
            return False
        task = asyncio.create_task(connection.serve(), name="http")
        self._open[connection] = task
        task.add_done_callback(lambda _: self._remove(connection))
        self._metrics.http_connections.set(len(self._open))
        return True

    def _remove(self, connection: HttpConnection) -> None:
        del self._open[connection]
        self._metrics.http_connections.set(len(self._open))

    def count_refused(self, reason: str) -> None:
        """Count a connection that the node ends: `full`, `slow` or `malformed`."""
        self._metrics.http_connections_refused.labels(reason).inc()

    async def end(self, grace_s: float) -> None:
        """Let requests under way end within ``grace_s``, then end them and their connections."""
        for connection in self._open:
            connection.end_after_answer()
        if self._open:
            await asyncio.wait(list(self._open.values()), timeout=grace_s)
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)


class HttpConnection(asyncio.StreamReaderProtocol):
    """A connection, with bounds on what its caller sends.

    ``name`` has the form that gRPC gives names. ``is_whole``: the request has come in full.
    """

    def __init__(self, connections: OpenConnections) -> None:
        self.reader = asyncio.StreamReader(UNREAD_BYTES // 2)
        super().__init__(self.reader)
        self.writer: asyncio.StreamWriter
        self.name = ""
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._exchange: HttpExchange | None = None
        self._is_last = self._has_head = self.is_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many connections."""
        super().connection_made(transport)
        made = cast("asyncio.Transport", transport)
        self.writer = asyncio.StreamWriter(made, self, self.reader, asyncio.get_running_loop())
        caller = made.get_extra_info("peername")
        if caller is None or not self._connections.add(self):
            made.abort()
            return
        self.name = connection_name(*caller[:2])
        made.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._check_ahead()

    def _check_ahead(self) -> None:
        """Disconnect a caller that sends much ahead of its answer.

        It would not be read meanwhile, and the end of the connection not be noticed.
        """
        transport = cast("asyncio.Transport", self.writer.transport)
        if self._exchange is not None and self.is_whole and not transport.is_reading():
            self._connections.count_refused("malformed")
            transport.abort()

    def eof_received(self) -> bool:
        """End the connection: a caller that hangs up sends no more than this."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that is being answered."""
        super().connection_lost(exc)
        if self._exchange is not None:
            self._exchange.lose()

    def end_after_answer(self) -> None:
        """Close the connection when the request that is being answered has been."""
        self._is_last = True
        if self._exchange is None:
            self.writer.close()
        else:
            self._exchange.keep_alive = False

    async def serve(self) -> None:
        """Serve requests, one after the other, until one side ends the connection."""
        try:
            await self._await_head()
            while await self._answer_one():
                async with asyncio.timeout(KEEP_ALIVE_S):
                    first = await self.reader.readexactly(1)
                await self._await_head(first)
            self.writer.close()
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self.writer.wait_closed()
        except HttpError as refused:
            await self._refuse(refused)
        except (CallerGoneError, TimeoutError, OSError, EOFError):
            pass
        except Exception:  # noqa: BLE001 - the caller sees that its connection ends
            _LOG.exception("request_crashed")
        finally:
            self.writer.transport.abort()
            del self._parser  # each would keep the other

    async def _answer_one(self) -> bool:
        """Serve the request whose head has come; return True if others may follow."""
        exchange = self._exchange = self._begin()
        self._check_ahead()
        try:
            await self._connections.app(exchange)
        finally:
            self._exchange = None
        if not exchange.complete:
            raise CallerGoneError
        if not self.is_whole:
            await self._linger()
        return exchange.keep_alive and self.is_whole

    # How a request is read

    async def _await_head(self, part: bytes = b"") -> None:
        """Read the head of a request, of which a part may have come.

        Raises:
            HttpError: it is too large, or malformed.
            TimeoutError: it does not come in time.
        """
        self._has_head = self.is_whole = False
        self._target, self._fields = b"", list[tuple[str, str]]()
        size_bytes = lines = 0
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                while not self._has_head:
                    part += await self._read_until(b"\r\n\r\n")
                    size_bytes, lines = size_bytes + len(part), lines + part.count(b"\n")
                    # Besides the fields, the request line and the last one.
                    if size_bytes > MAX_HEAD_BYTES or lines > MAX_HEADER_FIELDS + 2:
                        raise self._refused(_too_large())
                    self.feed(part)
                    part = b""
        except TimeoutError:
            self._connections.count_refused("slow")
            raise

    async def _read_until(self, end: bytes) -> bytes:
        """Read to an end, or only some bytes before it where it is far."""
        try:
            return await self.reader.readuntil(end)
        except asyncio.LimitOverrunError as error:
            return await self.reader.readexactly(error.consumed)

    def _refused(self, failure: HttpError) -> HttpError:
        self._connections.count_refused("malformed")
        return failure

    def feed(self, data: bytes) -> None:
        """Check a part of a request by the parser.

        Raises:
            HttpError: it is not strictly HTTP/1.1.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_last = True  # what follows is of another protocol
        except httptools.HttpParserError:
            raise self._refused(_not_http()) from None

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; trailers are dropped."""
        if not self._has_head:
            self._fields.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Note that the head has come, with its method and version."""
        self._has_head = True
        self._method = self._parser.get_method().decode("ascii")
        self._version = self._parser.get_http_version()
        self._is_last = self._is_last or not self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Note that the request has come in full."""
        self.is_whole = True

    def _begin(self) -> HttpExchange:
        """Return the request whose head has come.

        Raises:
            HttpError: it can be read in two ways.
        """
        fields, version = self._fields, self._version
        authority, target = _split(self._target)
        hosts = [value for name, value in fields if name == "host"]
        codings = [value.lower() for name, value in fields if name == "transfer-encoding"]
        if (
            (version, len(hosts)) not in _VERSIONS_AND_HOSTS
            or (codings and (codings != ["chunked"] or version == "1.0"))
            or not (authority is None or authority in hosts)
            or not target.startswith("/")
        ):
            raise self._refused(_not_http())
        exchange = HttpExchange(self, self._method, target, fields)
        exchange.is_old = version == "1.0"
        exchange.keep_alive = not (exchange.is_old or self._is_last)
        return exchange

    async def read_chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a body that comes in chunks.

        Raises:
            HttpError: it is malformed, or frames cost far more than they carry.
        """
        chunks, size_bytes, left, self._frame_bytes = 0, 0, 1, 0
        while left:
            line = await self._read_line(size_bytes)
            left = int(line.partition(b";")[0], 16)
            chunks += 1
            if chunks > MAX_SMALL_CHUNKS + size_bytes // LEAST_CHUNK_BYTES:
                sentence = (
                    f"the body has more than {MAX_SMALL_CHUNKS:,} chunks, of less than"
                    f" {LEAST_CHUNK_BYTES:,} bytes in the mean: send larger ones"
                )
                raise self._refused(HttpError(400, Code.INVALID_ARGUMENT, sentence))
            size_bytes += left
            if left:
                async for part in self.read_exactly(left):
                    yield part
                self.feed(await self.reader.readexactly(2))
        fields = 0
        while await self._read_line(size_bytes) != b"\r\n":
            fields += 1
            if fields > MAX_HEADER_FIELDS - len(self._fields):
                raise self._refused(_too_large())

    async def _read_line(self, size_bytes: int) -> bytes:
        """Read a line that frames a body, of which ``size_bytes`` have come."""
        line = await self._read_until(b"\r\n")
        self._frame_bytes += len(line)
        if not line.endswith(b"\r\n") or self._frame_bytes > MAX_HEAD_BYTES + size_bytes:
            raise self._refused(_too_large())
        self.feed(line)
        return line

    async def read_exactly(self, size_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield so many bytes, as they come."""
        while size_bytes:
            part = await self.reader.read(min(size_bytes, UNREAD_BYTES))
            if not part:
                raise CallerGoneError
            size_bytes -= len(part)
            self.feed(part)
            yield part

    # How it ends

    async def _refuse(self, refused: HttpError) -> None:
        """Refuse what has come, and end the connection."""
        body = f"{refused.sentence}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            _CLOSE,
        ]
        self.writer.write(_head(refused.status, headers) + body)
        await self._linger()

    async def _linger(self) -> None:
        """Send the end, and drop what comes until the caller closes, for a while.

        Closing at once would have the kernel take back an answer that the caller has not read.
        """
        if self.writer.can_write_eof():
            self.writer.write_eof()
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER_S):
                while await self.reader.read(UNREAD_BYTES):
                    pass
        self.writer.transport.abort()


class HttpExchange:
    """A request and its answer.

    ``path`` is decoded. ``keep_alive``: the connection goes on afterwards. ``is_old``: of HTTP/1.0.
    ``is_gone``: the caller has hung up. ``started``,
    ``complete``: the answer has begun, and ended. ``shared``: headers of every answer to a caller
    of this origin.
    """

    def __init__(
        self,
        connection: HttpConnection,
        method: str,
        target: str,
        fields: Sequence[tuple[str, str]],
    ) -> None:
        path, _, self._query = target.partition("?")
        self.method = method
        self.path = unquote(path)
        self.connection = connection.name
        self.keep_alive = self.is_old = False
        self.is_gone = self.started = self.complete = False
        self.shared: HeaderList = ()
        self._connection = connection
        self._fields = fields
        self.request_id = request_id(self.header("x-request-id"))
        self._head = b""
        self._is_chunked = False
        self._watched: Endable | None = None

    def header(self, name: str, default: str = "") -> str:
        """Return the value of the first header of a name."""
        return next(iter(self.headers(name)), default)

    def headers(self, name: str) -> list[str]:
        """Return the values of all headers of a name."""
        return [value for each, value in self._fields if each == name]

    @property
    def content_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    @cached_property
    def parameters(self) -> Mapping[str, list[str]]:
        """The parameters of the URL, by name.

        Raises:
            CallError: there are too many.
        """
        try:
            return parse_qs(self._query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            raise malformed(
                f"the URL has more than {MAX_PARAMETERS} parameters: send longer lists in a body"
            ) from None

    # What comes

    def lose(self) -> None:
        """Note that the caller has hung up."""
        self.is_gone = True
        if self._watched is not None and not self.complete:
            self._watched.end(CallerGoneError())

    async def body(self, arrivals: Arrivals, owner: str, largest_bytes: int) -> bytes:
        """Read the body, which ``owner`` sends.

        Raises:
            CallError: it is malformed or too large, has not come in time, or gave way to others.
            CallerGoneError: it has not come in full.
        """
        connection, declared = self._connection, self.header("content-length")
        if connection.is_whole:
            return b""
        if declared:
            _check_size(int(declared), largest_bytes)
            coming = connection.read_exactly(int(declared))
        else:
            coming = connection.read_chunks()
        if self.header("expect").lower() == "100-continue":
            connection.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        size, parts, last = 0, list[bytes](), bytearray()
        try:
            with AwaitedRequest(arrivals, self.connection, owner, is_measured=False) as block:
                async with aclosing(coming):
                    async for part in coming:
                        size += len(part)
                        _check_size(size, largest_bytes)
                        block.came(len(part))
                        last += part
                        if len(last) > PART_BYTES:
                            # One array that grows would leave as much again in pieces.
                            parts.append(bytes(last))
                            last.clear()
        except (EOFError, OSError):
            raise CallerGoneError from None
        assert self._connection.is_whole, "the parser and the length of the body disagree"
        return b"".join((*parts, last))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the block until the caller hangs up.

        Raises:
            CallerGoneError: it did.
        """
        if self.is_gone:
            raise CallerGoneError
        with Endable() as block:
            self._watched = block
            try:
                yield
            finally:
                self._watched = None

    # What is sent

    def start(
        self, status: int, content_type: bytes, headers: HeaderList = (), size: int | None = None
    ) -> None:
        """Begin the answer, whose head is sent with the first part of the body.

        ``size``: that of the whole body, if it is known; without it, the body is sent in chunks.
        """
        self.started = True
        self.keep_alive = self.keep_alive and self._connection.is_whole
        own = [(b"content-type", content_type), *headers, *_OWN_HEADERS, *self.shared]
        own.append((b"x-request-id", self.request_id.encode()))
        if size is not None:
            own.append((b"content-length", b"%d" % size))
        elif not self.is_old:
            self._is_chunked = True
            own.append((b"transfer-encoding", b"chunked"))
        if not self.keep_alive:
            own.append(_CLOSE)
        self._head = _head(status, own)

    async def send(self, chunk: bytes) -> None:
        """Send a part of the body, and wait until it has left.

        Raises:
            CallerGoneError: it does not.
        """
        if self._is_chunked and chunk:
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        await self._write(chunk)

    async def finish(self) -> None:
        """End the body."""
        self.complete = True
        await self._write(b"0\r\n\r\n" if self._is_chunked else b"")

    async def respond(
        self, body: bytes, content_type: bytes = JSON, status: int = 200, headers: HeaderList = ()
    ) -> None:
        """Send a whole answer; JSON ends a line, for callers in a terminal."""
        if content_type == JSON:
            body += b"\n"
        self.start(status, content_type, headers, len(body))
        self.complete = True
        await self._write(b"" if self.method == "HEAD" else body)

    @asynccontextmanager
    async def kept_alive(self, beat: bytes) -> AsyncIterator[None]:
        """Send ``beat`` every `HEARTBEAT_S` beside an answer that may be silent."""

        async def send_beats() -> None:
            with suppress(CallerGoneError):
                while True:
                    await asyncio.sleep(HEARTBEAT_S)
                    if self.started:
                        await self.send(beat)
            self.abort()

        task = asyncio.create_task(send_beats())
        try:
            yield
        finally:
            task.cancel()

    def abort(self) -> None:
        """Close the connection, so that the caller sees that the answer is not complete."""
        self._connection.writer.transport.abort()

    async def _write(self, data: bytes) -> None:
        writer = self._connection.writer
        if self.is_gone or writer.is_closing():
            raise CallerGoneError
        head, self._head = self._head, b""
        writer.write(head + data if head else data)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, OSError):
            raise CallerGoneError from None


def _head(status: int, headers: HeaderList) -> bytes:
    lines = [b"%b: %b\r\n" % each for each in headers]
    date = formatdate(usegmt=True).encode()
    return b"%bdate: %b\r\n%b\r\n" % (_STATUS_LINES[status], date, b"".join(lines))


def _split(target: bytes) -> tuple[str | None, str]:
    """Return the host and port of a request target in absolute form, and the path and query."""
    text = target.decode("latin-1")
    if text.startswith("/") or "://" not in text:
        return None, text
    authority, slash, rest = text.partition("://")[2].partition("/")
    return authority, slash + rest


def _not_http() -> HttpError:
    return HttpError(400, Code.INVALID_ARGUMENT, _NOT_HTTP)


def _too_large() -> HttpError:
    return HttpError(
        431,
        Code.RESOURCE_EXHAUSTED,
        f"a request has at most {MAX_HEAD_BYTES:,} bytes and {MAX_HEADER_FIELDS} fields beside its"
        " body: send fewer headers, or parameters in a body",
    )


def _check_size(size_bytes: int, largest_bytes: int) -> None:
    if size_bytes > largest_bytes:
        raise over_limit(f"the request has {size_bytes:,} bytes: at most {largest_bytes:,}")
