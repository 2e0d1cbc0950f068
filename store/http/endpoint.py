"""The way of every request through the node: identity, limits, handler, status and metrics.

In this order: identity and right, quota, readiness, the body, the handler; then the status, one log
line for a failure, and the metrics. Tokens, rights, quotas and budgets are those of gRPC's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from google.protobuf.message import Message
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from store.domain.access import Client, Denied, Right
from store.domain.quota import CallKind
from store.http.bodies import Bodies
from store.http.exchange import JSON, CallerGoneError, Exchange
from store.http.failure import HttpError, as_status, bad_request
from store.http.limits import MAX_SMALL_BODY_BYTES
from store.observe.logging import get_logger, request_context
from store.serving.call import REQUEST_IDS, Call, is_request_id
from store.serving.context import NodeContext
from store.serving.failure import Code, foreseen, unforeseen
from store.serving.remote import remote
from store.serving.unsent import Outlet

_LOG = get_logger("store.http")
_NS_PER_S: Final = 1e9
_SERVICE: Final = "http"
_GONE: Final = "499"
"""Of a request whose caller hung up, as proxies count it; nothing is sent."""

_COUNTED_FROM_0: Final = ("200", "500", "503")
"""What alerts go by: of a count that begins with 1 Prometheus knows no growth."""

Handler = Callable[[Call, Exchange, bytes], Awaitable[None]]
Refuse = Callable[[Exchange, HttpError], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path: what the endpoint does with its requests, and how it is described.

    ``name`` is that of the metrics. ``right``: what a caller needs. ``refuse`` sends an error.
    ``summary``, ``answer`` (a type, or the message that a page of it is), ``request`` and
    ``answer_type`` are for the description; ``parameters`` instead of ``request``, where every
    parameter is a text. ``endless``: it goes on until one side ends it. ``token_in_url``: browsers
    cannot give it a header. ``always``: it is served although the node is not ready.
    ``content_types``: those of a body; ``wrong_type`` says what to send instead of another.
    """

    name: str
    method: str
    path: str
    handle: Handler
    summary: str = ""
    answer: type[Struct] | type[Message] = Struct
    request: type[Struct] | None = None
    answer_type: bytes = JSON
    _: KW_ONLY
    right: Right
    kind: CallKind
    refuse: Refuse
    parameters: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False
    token_in_url: bool = False
    always: bool = False
    largest_bytes: int = MAX_SMALL_BODY_BYTES
    content_types: Sequence[str] = ("application/json",)
    wrong_type: str = "the body must be JSON: send the header `content-type: application/json`"


class Endpoint:
    """An ASGI application that answers the requests of one path."""

    def __init__(self, node: NodeContext, bodies: Bodies, *operations: Operation) -> None:
        self._node = node
        self._bodies = bodies
        self._operations = {each.method: each for each in operations}
        self._first = operations[0]
        for operation in operations:
            for code in _COUNTED_FROM_0:
                node.metrics.http_requests.labels(operation.name, code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        exchange = Exchange(scope, receive, send)
        given = exchange.headers.get("x-request-id", "")
        exchange.request_id = given if is_request_id(given) else next(REQUEST_IDS)
        operation = self._operations.get(exchange.method)
        if operation is None:
            await _refuse_method(exchange, self._first, list(self._operations))
            return
        await self._serve(operation, exchange)

    async def _serve(self, operation: Operation, exchange: Exchange) -> None:
        node, began_ns, code = self._node, self._node.monotonic_ns(), _GONE
        request_context(request_id=exchange.request_id)
        caller: list[str] = []
        try:
            async with self._open(operation, exchange) as call:
                caller.append(call.client.name)
                code = "200"
                await self._answer(operation, exchange, call)
        except CallerGoneError:
            code = _GONE
            exchange.abort()
        except asyncio.CancelledError:
            # The node ends. To uvicorn, the error would be one of the application.
            code = _GONE
            exchange.abort()
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            failure, known = translate(error, exchange.request_id)
            code = str(failure.status)
            _report(operation, caller, failure, None if known else error)
            await _fail(exchange, operation, failure)
            del failure  # its traceback has this frame: each would keep the other
        finally:
            seconds = (node.monotonic_ns() - began_ns) / _NS_PER_S
            node.metrics.http_requests.labels(operation.name, code).inc()
            if not operation.endless:
                node.metrics.http_seconds.labels(operation.name).observe(seconds)
            _LOG.debug("request_ended", operation=operation.name, code=code, seconds=seconds)

    async def _answer(self, operation: Operation, exchange: Exchange, call: Call) -> None:
        call.check_ready()
        body = b""
        if operation.method == "POST":
            if exchange.content_type not in operation.content_types:
                # Pages of other sites may send forms and text without asking the browser.
                raise HttpError(415, Code.INVALID_ARGUMENT, operation.wrong_type)
            largest = min(call.client.limits.request_bytes, call.largest_bytes)
            body = await exchange.body(self._bodies, largest)
        call.charge(len(body), counted=True)
        async with exchange.watched():
            with ExitStack() as around:
                around.enter_context(self._traced(operation, exchange))
                if operation.endless:
                    around.enter_context(self._node.drain.endless())
                around.enter_context(call.outlet.ending())
                await operation.handle(call, exchange, body)

    def _traced(self, operation: Operation, exchange: Exchange) -> AbstractContextManager[None]:
        tracing = self._node.tracing
        if tracing is None or operation.endless:
            return nullcontext()
        names = ("traceparent", "tracestate")
        carrier = {name: exchange.headers[name] for name in names if name in exchange.headers}
        return tracing.serving(_SERVICE, operation.name, carrier, system="http")

    @asynccontextmanager
    async def _open(self, operation: Operation, exchange: Exchange) -> AsyncIterator[Call]:
        node = self._node
        access = node.tokens.access

        def identify() -> Client:
            return self._identify(operation, exchange)

        client = identify()
        now_ns = node.monotonic_ns()
        account = node.quota.account(client.name, client.limits, now_ns, named=client.named)
        account.begin(operation.kind, now_ns)
        outlet = Outlet(node.unsent, client.name, exchange.caller)
        try:
            yield Call(
                node,
                client,
                account,
                outlet,
                access,
                identify,
                largest_bytes=operation.largest_bytes,
                always=operation.always,
            )
        finally:
            account.end(operation.kind)
            outlet.close()

    def _identify(self, operation: Operation, exchange: Exchange) -> Client:
        given = exchange.headers.getlist("authorization")
        if len(given) > 1:
            raise bad_request("the header `authorization` is given twice: send it once")
        token = given[0] if given else None
        if token is None and operation.token_in_url and "access_token" in exchange.parameters:
            token = f"Bearer {exchange.parameters['access_token'][-1]}"
        origin = remote(exchange.caller).name
        try:
            return self._node.tokens.access.authorize(token, operation.right, origin)
        except Denied as denied:
            # What gRPC calls metadata is a header here.
            raise type(denied)(str(denied).replace("metadata", "header")) from None


def translate(error: Exception, request_id: str) -> tuple[HttpError, bool]:
    """Return the status for an error, and True if the error was expected."""
    if isinstance(error, HttpError):
        return error, True
    failure = foreseen(error)
    if failure is not None:
        return as_status(failure), True
    return as_status(unforeseen(request_id)), False


async def _fail(exchange: Exchange, operation: Operation, failure: HttpError) -> None:
    """Send an error; an answer that has begun is broken off: no caller takes it as whole."""
    if exchange.started:
        if not exchange.complete:
            exchange.abort()
        return
    try:
        await operation.refuse(exchange, failure)
    except (CallerGoneError, asyncio.CancelledError):
        exchange.abort()


async def _refuse_method(exchange: Exchange, operation: Operation, allowed: list[str]) -> None:
    methods = ", ".join(allowed)
    failure = HttpError(
        405,
        Code.INVALID_ARGUMENT,
        f"the method {exchange.method[:16]} is not served here: use {methods}",
        [(b"allow", methods.encode())],
    )
    await _fail(exchange, operation, failure)


def _report(
    operation: Operation, caller: list[str], failure: HttpError, error: Exception | None
) -> None:
    fields = {
        "operation": operation.name,
        "client": caller[0] if caller else None,
        "status": failure.status,
        "reason": failure.sentence,
    }
    if error is None:
        _LOG.warning("request_failed", **fields)
    else:
        _LOG.error("request_crashed", exc_info=error, **fields)
