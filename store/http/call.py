"""Requests over HTTP: identity by headers, bodies within bounds, answers and their status.

The way of a request is that of every call (`store.serving.call`), with the same tokens, rights,
quotas and budgets as gRPC's. A chunk that is sent has left this process, but for `BUFFER_BYTES` of
the transport, when `HttpExchange.send` returns: uvicorn waits for the buffer before the next event,
so an empty one follows a chunk that is larger. What is sent to a caller that has gone is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from email.utils import formatdate
from functools import cached_property
from typing import Final
from urllib.parse import parse_qs

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from store.domain.access import CallDeniedError, Principal
from store.http.codec import Error, ErrorDetail, Kind, encode
from store.http.listener import BUFFER_BYTES, BoundedProtocol
from store.observe.logging import get_logger
from store.serving.arrivals import COUNTED, AwaitedRequest
from store.serving.call import Call, Method, request_id
from store.serving.context import NodeContext
from store.serving.failure import CallerGoneError, CallError, Code, malformed
from store.serving.sockets import connection_name

_LOG = get_logger("store.http")

MAX_PARAMETERS: Final = 64
"""Parameters of a URL; a list of more entries goes into a body."""

TOKEN_PARAMETER: Final = "access_token"  # noqa: S105 - its name
"""The parameter that carries a token where a browser cannot send headers (RFC 6750, 2.3)."""

JSON: Final = b"application/json"
_UNBUFFERED: Final = [(b"x-accel-buffering", b"no")]  # to proxies that hold answers back
_OWN_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_COUNTED_FROM_0: Final = ("200", "500", "503")
"""The codes of alerts, counted from 0: Prometheus sees no growth of a count that begins with 1."""

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
HeaderList = Sequence[tuple[bytes, bytes]]


class HttpError(CallError):
    """A failure of a call, with the status and the headers of its answer."""

    def __init__(self, status: int, code: Code, sentence: str, headers: HeaderList = ()) -> None:
        super().__init__(code, sentence)
        self.status = status
        self.headers = headers


def as_http(failure: CallError) -> HttpError:
    """Return the status and the headers of a failure."""
    if isinstance(failure, HttpError):
        return failure
    headers = [(b"retry-after", b"1")] if failure.retry else []
    status = STATUS[failure.code]
    if status == 401:
        headers = [(b"www-authenticate", b"Bearer")]
    elif status == 413 and failure.retry:
        status = 429
    return HttpError(status, failure.code, failure.sentence, headers)


class HttpExchange:
    """A request that is being answered over ``protocol``, as ASGI has it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.verb: str = scope["method"]
        self.headers = Headers(scope=scope)
        self.request_id = request_id(self.headers.get("x-request-id", ""))
        self.started = self.complete = False
        self._is_old = scope["http_version"] == "1.0"
        self._query: bytes = scope["query_string"]
        self._receive = receive
        self._send = send
        self.protocol: BoundedProtocol = scope["state"]["connection"]

    @property
    def content_type(self) -> str:
        """The type of the body, in lower case and without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def parameters(self) -> Mapping[str, list[str]]:
        """The parameters of the URL, by name.

        Raises:
            CallError: there are too many, or one is no UTF-8.
        """
        try:
            query = self._query.decode()
            return parse_qs(query, True, errors="strict", max_num_fields=MAX_PARAMETERS)
        except UnicodeError:
            raise malformed("a parameter of the URL is not UTF-8: encode it so") from None
        except ValueError:
            raise malformed(
                f"the URL has more than {MAX_PARAMETERS} parameters: send longer lists in a body"
            ) from None

    async def start(self, status: int, content_type: bytes, headers: HeaderList = ()) -> None:
        """Send the status and the headers."""
        self.started = True
        date = (b"date", formatdate(usegmt=True).encode())
        own = [*_OWN_HEADERS, date, (b"x-request-id", self.request_id.encode())]
        is_receiving = self.protocol.is_receiving
        if is_receiving:
            own.append((b"connection", b"close"))
        given = [(b"content-type", content_type), *headers, *own]
        if self._is_old:
            self.protocol.send_plain()
        await self._send({"type": "http.response.start", "status": status, "headers": given})
        if is_receiving:
            self.protocol.linger_at_end()

    async def send(self, chunk: bytes, content_type: bytes) -> None:
        """Send a part of the body, and wait until it has left.

        The status goes with the first part, so that what fails before has its own.
        """
        if not self.started:
            await self.start(200, content_type, _UNBUFFERED)
        for part in (chunk, b"") if len(chunk) > BUFFER_BYTES else (chunk,):
            if self._is_old:
                self.protocol.send_plain(len(part))
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
        headers: HeaderList = (),
    ) -> None:
        """Send a whole response in parts of a buffer; JSON ends a line, for those in a terminal."""
        if content_type == JSON:
            body += b"\n"
        await self.start(status, content_type, [(b"content-length", b"%d" % len(body)), *headers])
        for start in range(0, len(body), BUFFER_BYTES):
            await self.send(body[start : start + BUFFER_BYTES], content_type)
        await self.finish()


Refuse = Callable[[HttpExchange, HttpError], Awaitable[None]]
Handler = Callable[["HttpCall", bytes], Awaitable[None]]


async def refuse(exchange: HttpExchange, failure: HttpError) -> None:
    """Send an error of ``/api/v1``."""
    body = encode(Error(ErrorDetail(failure.code, failure.sentence, exchange.request_id)))
    await exchange.respond(body, status=failure.status, headers=failure.headers)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path: what is done with its requests, and how it is described.

    ``served.name`` is that of the metrics. ``route``: the method of HTTP and the path. ``refuse``
    sends an error; ``in_band``: also one behind the beginning of an answer. ``summary``, ``types``
    (the request, and the answer or the message that a page of it is) and ``answer_type`` are for
    the description. ``token_in_url``: browsers send no header. ``content_type``: that of a body;
    ``wrong_type`` is the error for another.
    """

    served: Method
    route: str
    handle: Handler
    summary: str = ""
    types: tuple[Kind, Kind] = (Struct, Struct)
    answer_type: bytes = JSON
    _: KW_ONLY
    refuse: Refuse = refuse
    in_band: bool = False
    token_in_url: bool = False
    content_type: str = "application/json"
    wrong_type: str = "the body must be JSON: send the header `content-type: application/json`"


class HttpCall(HttpExchange, Call):
    """A call over HTTP, whose caller is identified by the headers.

    A caller that hangs up is counted as 499, as proxies do; nothing is sent.
    """

    log_events = ("request_failed", "request_crashed")
    ok, gone = "200", "499"

    def __init__(
        self, node: NodeContext, operation: Operation, scope: Scope, receive: Receive, send: Send
    ) -> None:
        HttpExchange.__init__(self, scope, receive, send)
        Call.__init__(self, node, operation.served, connection_name(*scope["client"]))
        self._operation = operation

    def identify(self) -> Principal:
        """Return the bearer of the token, where one is needed."""
        right = self.method.right
        if len(given := self.headers.getlist("authorization")) > 1:
            raise malformed("the header `authorization` is given twice: send it once")
        if not given and self._operation.token_in_url and TOKEN_PARAMETER in self.parameters:
            given = [f"Bearer {self.parameters[TOKEN_PARAMETER][-1]}"]
        assert right is not None, "every operation needs a right"
        token = given[0] if given else None
        try:
            return self.node.access().authorize(token, right, self.remote.name)
        except CallDeniedError as denied:
            # What gRPC calls metadata is a header here.
            raise type(denied)(str(denied).replace("metadata", "header")) from None

    async def read_request(self) -> bytes:
        """Read the body.

        Raises:
            CallError: it is of another type, too large, late, or gave way to others.
            CallerGoneError: it has not come in full.
        """
        if self.verb != "POST":
            return b""
        if self.content_type != self._operation.content_type:
            # Pages of other sites may send forms and text without asking the browser.
            raise HttpError(415, Code.INVALID_ARGUMENT, self._operation.wrong_type)
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_request_bytes:
            raise self.too_large(int(declared))
        return await self.node.arrivals.receive(
            self._read_body, (COUNTED, str(id(self))), self.client.name
        )

    async def _read_body(self, request: AwaitedRequest) -> bytes:
        size, parts = 0, list[bytes]()
        while (event := await self._receive())["type"] != "http.disconnect":
            chunk = event.get("body", b"")
            size += len(chunk)
            if size > self.max_request_bytes:
                raise self.too_large(size)
            await self.node.arrivals.came(request, len(chunk))
            parts.append(chunk)
            if not event.get("more_body", False):
                return b"".join(parts)
        raise CallerGoneError

    async def answer(self, body: bytes, content_type: bytes = JSON) -> None:
        """Send a whole answer, which is counted."""
        with self.sender as sender:
            sender.answered(len(body), refusable=self.method.timed)
            await self.respond(body, content_type)

    async def refuse(self, failure: CallError, crash: Exception | None) -> tuple[str, None]:
        """Send an error; an answer that has begun is broken off: no caller takes it as whole."""
        found = as_http(failure)
        self.report(_LOG, found, crash, operation=self.method.name, status=found.status)
        if self.counted is not None and self.counted.ended_s is not None:
            self.protocol.abort()  # the caller does not read: it would not read the status either
        elif not self.started or self._operation.in_band:
            await self._operation.refuse(self, found)
        elif not self.complete:
            self.protocol.abort()
        return str(found.status), None

    def count(self, code: str, seconds: float) -> None:
        """Count the end of the call."""
        name, metrics = self.method.name, self.node.metrics
        if self.counted is not None:
            self.counted.close()
        metrics.http_requests.labels(name, code).inc()
        if not self.method.endless:
            metrics.http_seconds.labels(name).observe(seconds)
        _LOG.debug("request_ended", operation=name, code=code, seconds=seconds)


def endpoint(node: NodeContext, operations: Mapping[str, Operation]) -> ASGIApp:
    """Return an application that answers the requests of one path, by their methods of HTTP."""
    allowed = ", ".join(operations)
    for operation in operations.values():
        for code in _COUNTED_FROM_0:
            node.metrics.http_requests.labels(operation.served.name, code)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if (operation := operations.get(scope["method"])) is None:
            sentence = f"the method {scope['method'][:16]} is not served here: use {allowed}"
            headers = [(b"allow", allowed.encode())]
            failure = HttpError(405, Code.INVALID_ARGUMENT, sentence, headers)
            refuse_call = next(iter(operations.values())).refuse
            await refuse_call(HttpExchange(scope, receive, send), failure)
            return
        call = HttpCall(node, operation, scope, receive, send)
        try:
            await call.run(operation.handle)
        except asyncio.CancelledError:
            # The caller has hung up, or the node ends: to uvicorn, a fault of the application.
            call.protocol.abort()

    return serve
