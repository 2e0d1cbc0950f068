"""A request and its response, as ASGI has them, with bounds on bodies in size, time and memory.

A chunk that is sent has left this process, but for `BUFFER_BYTES` of the transport, when
`HttpExchange.send` returns: uvicorn waits for the buffer before the next event, so an empty one
follows a chunk that is larger. What is sent to a caller that has gone is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from email.utils import formatdate
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from store.http import codec
from store.http.connections import BUFFER_BYTES
from store.serving.arrivals import Arrivals, AwaitedRequest
from store.serving.call import request_id
from store.serving.failure import (
    CallerGoneError,
    CallError,
    Code,
    malformed,
    over_limit,
)
from store.serving.sockets import connection_name

if TYPE_CHECKING:
    from store.http.connections import BoundedProtocol

MAX_PARAMETERS: Final = 64
"""Parameters of a URL; a list of more entries goes into a body."""

HEARTBEAT_S: Final = 10.0
"""A follower that is sent nothing else gets a comment this often: proxies and browsers end
connections that are silent for longer."""

JSON: Final = b"application/json"
_RETRY_AFTER: Final = (b"retry-after", b"1")
_UNBUFFERED: Final = [(b"x-accel-buffering", b"no")]
"""Proxies that hold answers back are told not to."""
_OWN_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

STATUS: Final = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.DEADLINE_EXCEEDED: 408,
    Code.OUT_OF_RANGE: 410,
    Code.RESOURCE_EXHAUSTED: 413,
    Code.INTERNAL: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
}
HeaderList = list[tuple[bytes, bytes]]


class HttpError(CallError):
    """A failure of a call, with the status and the headers of its answer."""

    def __init__(
        self, status: int, code: Code, sentence: str, headers: HeaderList | None = None
    ) -> None:
        super().__init__(code, sentence)
        self.status = status
        self.headers = headers or []


def as_http(failure: CallError) -> HttpError:
    """Return the status and the headers of a failure."""
    if isinstance(failure, HttpError):
        return failure
    headers: HeaderList = []
    status = STATUS[failure.code]
    if failure.retry:
        headers.append(_RETRY_AFTER)
        status = 429 if failure.code is Code.RESOURCE_EXHAUSTED else status
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpError(status, failure.code, failure.sentence, headers)


class HttpExchange:
    """A request that is being answered."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.verb: str = scope["method"]
        self.headers = Headers(scope=scope)
        self.caller = connection_name(*scope["client"])
        self.request_id = request_id(self.headers.get("x-request-id", ""))
        self.started = False
        self.complete = False
        self._query: bytes = scope["query_string"]
        self._receive = receive
        self._send = send
        self._connection: BoundedProtocol = scope["state"]["connection"]

    @property
    def content_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def parameters(self) -> Mapping[str, list[str]]:
        """The parameters of the URL, by name.

        Raises:
            CallError: there are too many.
        """
        try:
            text = self._query.decode("latin-1")
            return parse_qs(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
        except ValueError:
            raise malformed(
                f"the URL has more than {MAX_PARAMETERS} parameters: send longer lists in a body"
            ) from None

    async def body(self, arrivals: Arrivals, owner: str, largest_bytes: int) -> bytes:
        """Read the body, which ``owner`` sends.

        Raises:
            CallError: it is too large, has not come in time, or gave way to others.
            CallerGoneError: it has not come in full.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > largest_bytes:
            raise _too_large(int(declared), largest_bytes)

        async def read(request: AwaitedRequest) -> bytes:
            size, parts = 0, list[bytes]()
            while (event := await self._receive())["type"] != "http.disconnect":
                chunk = event.get("body", b"")
                size += len(chunk)
                if size > largest_bytes:
                    raise _too_large(size, largest_bytes)
                arrivals.came(request, len(chunk))
                parts.append(chunk)
                if not event.get("more_body", False):
                    return b"".join(parts)
            raise CallerGoneError

        return await arrivals.receive(read, self.caller, owner, is_measured=False)

    @asynccontextmanager
    async def kept_alive(self, beat: bytes) -> AsyncIterator[None]:
        """Send ``beat`` every `HEARTBEAT_S` beside an answer that may be silent."""

        async def send_beats() -> None:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                if self.started:
                    await self.send(beat, b"")

        task = asyncio.create_task(send_beats())
        try:
            yield
        finally:
            task.cancel()

    async def start(
        self, status: int, content_type: bytes, headers: HeaderList | None = None
    ) -> None:
        """Send the status and the headers."""
        self.started = True
        date = (b"date", formatdate(usegmt=True).encode())
        own = [*_OWN_HEADERS, date, (b"x-request-id", self.request_id.encode())]
        is_receiving = self._connection.is_receiving
        if is_receiving:
            own.append((b"connection", b"close"))
        given = [(b"content-type", content_type), *(headers or ()), *own]
        await self._send({"type": "http.response.start", "status": status, "headers": given})
        if is_receiving:
            self._connection.linger_at_end()

    async def send(self, chunk: bytes, content_type: bytes) -> None:
        """Send a part of the body, and wait until it has left.

        The status goes with the first part, so that what fails before has its own.
        """
        if not self.started:
            await self.start(200, content_type, _UNBUFFERED)
        for part in (chunk, b"") if len(chunk) > BUFFER_BYTES else (chunk,):
            await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def finish(self) -> None:
        """End the body."""
        self.complete = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def respond(
        self,
        body: bytes,
        content_type: bytes = JSON,
        *,
        status: int = 200,
        headers: HeaderList | None = None,
    ) -> None:
        """Send a whole response; JSON ends a line, for callers in a terminal."""
        if content_type == JSON:
            body += b"\n"
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, content_type, [length, *(headers or ())])
        await self.send(body, content_type)
        await self.finish()

    def abort(self) -> None:
        """Close the connection, so that the caller sees that the answer is not complete."""
        self._connection.abort()


class OpenEndpoint:
    """An ASGI application that gives one answer to every caller."""

    def __init__(self, answer: Callable[[HttpExchange], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._answer(HttpExchange(scope, receive, send))


def _too_large(size_bytes: int, largest_bytes: int) -> CallError:
    return over_limit(f"the request has {size_bytes:,} bytes: at most {largest_bytes:,}")


async def refuse(exchange: HttpExchange, failure: HttpError) -> None:
    """Send an error of ``/api/v1``."""
    detail = codec.ErrorDetail(failure.code, failure.sentence, exchange.request_id)
    body = codec.encode(codec.Error(detail))
    await exchange.respond(body, status=failure.status, headers=failure.headers)
