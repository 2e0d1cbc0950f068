"""The way of every request through the node: identity, admission, body, handler and status.

Tokens, rights, quotas and budgets are those of gRPC's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from google.protobuf.message import Message
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from store.domain.access import CallDeniedError, Principal
from store.http.exchange import JSON, HttpError, HttpExchange, as_http, refuse
from store.observe.logging import get_logger
from store.serving.call import Call, Method
from store.serving.context import NodeContext
from store.serving.failure import CallError, Code, malformed

_LOG = get_logger("store.http")

_COUNTED_FROM_0: Final = ("200", "500", "503")
"""The codes of alerts: of a count that begins with 1 Prometheus knows no growth."""

TOKEN_PARAMETER: Final = "access_token"  # noqa: S105 - its name
"""The parameter that carries a token where a browser cannot send headers (RFC 6750, 2.3)."""

Handler = Callable[["HttpCall", bytes], Awaitable[None]]
Refuse = Callable[[HttpExchange, HttpError], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path: what the endpoint does with its requests, and how it is described.

    ``served.name`` is that of the metrics. ``route``: the method and the path. ``refuse`` sends an
    error; ``in_band``: also one behind the beginning of an answer. ``summary``, ``types`` (the
    request, and a type of the answer or the message that a page of it is) and ``answer_type`` are
    for the description; ``parameters`` instead of a request, where every parameter is a text.
    ``token_in_url``: browsers send no header. ``content_type``: that of a body; ``wrong_type`` is
    the error for another.
    """

    served: Method
    route: str
    handle: Handler
    summary: str = ""
    types: tuple[type[Message] | None, type[Struct] | type[Message]] = (None, Struct)
    answer_type: bytes = JSON
    _: KW_ONLY
    refuse: Refuse = refuse
    in_band: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    token_in_url: bool = False
    content_type: str = "application/json"
    wrong_type: str = "the body must be JSON: send the header `content-type: application/json`"

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path of the URL."""
        return self.route.partition(" ")[2]


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
        Call.__init__(self, node, operation.served, self.caller)
        self._operation = operation

    def identify(self) -> Principal:
        """Return the bearer of the token, where one is needed."""
        right = self.method.right
        if len(given := self.headers.getlist("authorization")) > 1:
            raise malformed("the header `authorization` is given twice: send it once")
        if not given and self._operation.token_in_url and TOKEN_PARAMETER in self.parameters:
            given = [f"Bearer {self.parameters[TOKEN_PARAMETER][-1]}"]
        token = given[0] if given else None
        assert right is not None, "every operation needs a right"
        try:
            return self.node.access().authorize(token, right, self.remote.name)
        except CallDeniedError as denied:
            # What gRPC calls metadata is a header here.
            raise type(denied)(str(denied).replace("metadata", "header")) from None

    async def read_request(self) -> bytes:
        """Read the body."""
        if self.verb != "POST":
            return b""
        if self.content_type != self._operation.content_type:
            # Pages of other sites may send forms and text without asking the browser.
            raise HttpError(415, Code.INVALID_ARGUMENT, self._operation.wrong_type)
        return await self.body(self.node.arrivals, self.client.name, self.max_request_bytes)

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
            self.abort()  # the caller does not read: it would not read the status either
        elif not self.started or self._operation.in_band:
            await self._operation.refuse(self, found)
        elif not self.complete:
            self.abort()
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


class Endpoint:
    """An ASGI application that answers the requests of one path."""

    def __init__(self, node: NodeContext, *operations: Operation) -> None:
        self._node = node
        self._operations = {each.method: each for each in operations}
        for operation in operations:
            for code in _COUNTED_FROM_0:
                node.metrics.http_requests.labels(operation.served.name, code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        operation = self._operations.get(scope["method"])
        if operation is not None:
            call = HttpCall(self._node, operation, scope, receive, send)
            try:
                await call.run(operation.handle)
            except asyncio.CancelledError:
                # The caller has hung up, or the node ends: to uvicorn, a fault of the application.
                call.abort()
            return
        methods = ", ".join(self._operations)
        sentence = f"the method {scope['method'][:16]} is not served here: use {methods}"
        allowed = [(b"allow", methods.encode())]
        failure = HttpError(405, Code.INVALID_ARGUMENT, sentence, allowed)
        refuse_call = next(iter(self._operations.values())).refuse
        await refuse_call(HttpExchange(scope, receive, send), failure)
