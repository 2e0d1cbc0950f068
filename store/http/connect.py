"""The methods of ``Store`` for clients that speak Connect or gRPC-Web, such as browsers.

Connect's own library reads and writes both protocols. It is given a codec that leaves messages as
the bytes that they are, so that the handlers are those of gRPC (`store.serving.methods`). An
application of it answers one request, which `store.http.endpoint` has identified, charged and read;
the library reads an empty message in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, Final, cast

from connectrpc import code as connect
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from starlette.types import Message, Receive

from store.domain.ports import Services
from store.http.endpoint import Operation, translate
from store.http.exchange import CallerGoneError, Exchange
from store.http.failure import HttpError
from store.http.schemas import encode
from store.serving.call import Call
from store.serving.context import NodeContext
from store.serving.failure import CallFailure, Code, malformed
from store.serving.methods import table
from store.serving.methods.coverage import CoverageService
from store.serving.methods.publish import Publisher
from store.serving.methods.reads import LargeReads, Reads
from store.serving.methods.table import Method
from storenode.wire.storenode.v1 import store_pb2

SERVICE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
ASKED_HEADERS: Final = (
    *("connect-protocol-version", "connect-timeout-ms"),
    *("grpc-timeout", "x-grpc-web", "x-user-agent"),
)
"""What pages of other origins may send besides, and read."""
SHOWN_HEADERS: Final = ("grpc-status", "grpc-message", "grpc-status-details-bin")

MAX_SHOWN_BYTES: Final = 4 * 1024
"""What the library is given of a body that is not one whole message, to say what is wrong."""

_HEAD_BYTES: Final = 5
"""Before each message: flags and its length."""
_NOT_WHOLE: Final = "the request is not one whole message as its protocol says: send one"
_GRPC_WEB: Final = ("application/grpc-web+proto", "application/grpc-web")
_UNFRAMED: Final = "application/proto"
_UNARY: Final = (_UNFRAMED, *_GRPC_WEB)
_STREAM: Final = ("application/connect+proto", *_GRPC_WEB)
_WRONG_TYPE: Final = (
    "the message must be protobuf: send the header `content-type: {}`, in Connect's library for"
    " the web by `useBinaryFormat: true`; JSON is served under /api/v1"
)

_Unary = Callable[[Call, bytes], Awaitable[bytes]]
_Stream = Callable[[Call, bytes], AsyncGenerator[bytes, None]]
_Context = RequestContext[bytes, bytes]


class _Bytes:
    """A codec that leaves messages encoded; handlers decode what they need of them."""

    def name(self) -> str:
        return "proto"

    def encode(self, message: bytes) -> bytes:
        return message

    def decode(self, data: bytes | bytearray, _message_class: type[bytes]) -> bytes:
        return bytes(data)


_CODECS: Final = (_Bytes(),)


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of the service; one of ``unary`` and ``stream`` is its handler.

    ``large``: what its large requests take room of.
    """

    served: Method
    large: LargeReads | None
    unary: _Unary | None = None
    stream: _Stream | None = None

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.served.name}"

    def room(self, size_bytes: int) -> AbstractContextManager[None]:
        return nullcontext() if self.large is None else self.large.room(size_bytes)

    @property
    def content_types(self) -> Sequence[str]:
        """The types of its requests."""
        return _STREAM if self.unary is None else _UNARY

    async def answer(self, call: Call, exchange: Exchange, body: bytes) -> None:
        """Answer a request that has come in full.

        Raises:
            Exception: what the answer has failed by, which the caller has been told.
        """
        await _Answer(self, exchange, call=call).to(body)

    async def refuse(self, exchange: Exchange, failure: HttpError) -> None:
        """Tell the caller that a request is not answered."""
        if failure.status == 405 or exchange.content_type not in self.content_types:
            # Of which protocol it would be is not known: Connect's error is plain JSON.
            body = encode({"code": failure.name.lower(), "message": failure.sentence})
            await exchange.respond(body, status=failure.status, headers=failure.headers)
            return
        await _Answer(self, exchange, refusal=failure).to(b"")


class _Application(ConnectASGIApplication[None]):
    path = SERVICE


class _Answer:
    """The answer to one request, which is refused or handled."""

    def __init__(
        self,
        method: _Method,
        exchange: Exchange,
        *,
        call: Call | None = None,
        refusal: HttpError | None = None,
    ) -> None:
        self._method = method
        self._exchange = exchange
        self._call = call
        self._refusal = refusal
        self._message: bytes | None = None
        self._size_bytes = 0
        self._failure: Exception | None = None
        self._ended = False

    def _endpoint(self, _service: None) -> Mapping[str, Any]:
        method = self._method
        unary = method.unary is not None
        known = MethodInfo(
            name=method.served.name,
            service_name=SERVICE,
            input=bytes,
            output=bytes,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=StreamType.UNARY if unary else StreamType.SERVER_STREAM,
        )
        if unary:
            return {method.path: Endpoint.unary(known, self._unary)}
        return {method.path: Endpoint.server_stream(known, self._stream)}

    async def to(self, body: bytes) -> None:
        """Answer; raises as `_Method.answer`."""
        given, kind = self._exchange.scope, self._exchange.content_type
        # The library takes headers as UTF-8, and a caller may send any bytes. Of content types it
        # knows some in lower case and without parameters only.
        headers = [
            (name, value.decode("latin-1").encode())
            for name, value in given["headers"]
            if name != b"content-type"
        ]
        headers.append((b"content-type", kind.encode()))
        scope = {**given, "path": self._method.path, "root_path": "", "headers": headers}
        self._message, stand_in = _split(body, framed=not kind.startswith(_UNFRAMED))
        self._size_bytes = len(body)
        application = _Application(
            service=None,
            endpoints=self._endpoint,
            interceptors=(self,),
            read_max_bytes=None,  # it has been checked
            compressions=(),
            codecs=_CODECS,
        )
        receive = cast("Any", _received(stand_in))
        try:
            await application(cast("Any", scope), receive, cast("Any", self._send))
        except ConnectError as error:
            # Too late to be told, such as a deadline that is over while the answer leaves.
            raise _of_library(error) from None
        if self._refusal is not None or self._ended:
            return
        failure, self._failure = self._failure, None
        try:
            raise failure or malformed(_NOT_WHOLE)
        finally:
            del failure  # its traceback has this frame: each would keep the other, and the request

    async def on_start(self, context: _Context) -> None:
        """Refuse before the body is read: a metadata interceptor of the library."""
        if self._refusal is not None:
            for name, value in self._refusal.headers:
                context.response_headers.add(name.decode(), value.decode())
            raise _as_error(self._refusal)

    async def on_end(self, _token: None, _context: _Context, error: Exception | None) -> None:
        """Keep why the library itself has ended the call."""
        if self._failure is None and isinstance(error, ConnectError):
            self._failure = _of_library(error)

    async def _unary(self, _stand_in: bytes, _context: _Context) -> bytes:
        # What fails is raised behind the handler, since the library keeps the error's frames until
        # the garbage collector finds them: they must not have the request.
        method, call = self._method, self._call
        assert method.unary is not None
        assert call is not None
        try:
            with method.room(self._size_bytes):
                response = await method.unary(call, self._take())
            await call.outlet.answered(len(response), refusable=method.large is not None)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            told = self._told(error)
        else:
            self._ended = True
            return response
        raise told

    async def _stream(self, _stand_in: bytes, _context: _Context) -> AsyncIterator[bytes]:
        method, call = self._method, self._call
        assert method.stream is not None
        assert call is not None
        # Here too, so that the caller is told why: outside, the library says that it has hung up.
        draining = call.node.drain.endless() if method.served.endless else nullcontext()
        try:
            with method.room(self._size_bytes), draining:
                async with aclosing(method.stream(call, self._take())) as pages:
                    async for page in pages:
                        async with call.outlet.sending(len(page)):
                            call.check_rights()
                            yield page
                        del page  # which would be held while the next one waits
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            told = self._told(error)
        else:
            self._ended = True
            return
        raise told

    def _take(self) -> bytes:
        message, self._message = self._message, None
        if message is None:
            raise malformed(_NOT_WHOLE)
        return message

    def _told(self, error: Exception) -> ConnectError:
        self._failure = error
        return _as_error(translate(error, self._exchange.request_id)[0])

    async def _send(self, event: Message) -> None:
        if self._call is not None and self._call.outlet.ended_s is not None:
            # The caller does not read: it would not read the status either.
            raise CallerGoneError
        await self._exchange.pass_on(event)


def operations(services: Services, node: NodeContext) -> list[Operation]:
    """Return an operation for each method that the node serves."""
    large, reads = LargeReads(), Reads(services)
    found = [
        _Method(table.PUBLISH, None, unary=Publisher(services).publish),
        _Method(table.QUERY, large, unary=reads.query),
        _Method(table.SCAN, large, stream=reads.scan),
        _Method(table.FOLLOW, large, stream=reads.follow),
        _Method(table.SDS_MESSAGES, large, stream=reads.sds_messages),
        _Method(table.CAUSAL_HISTORY, large, stream=reads.causal_history),
    ]
    if node.coverage is not None:
        found.append(_Method(table.COVERAGE, large, stream=CoverageService(node.coverage).coverage))
    return [_operation(method) for method in found]


def _operation(method: _Method) -> Operation:
    served, types = method.served, method.content_types
    assert served.right is not None, "the methods of Store need a right"
    return Operation(
        f"connect_{served.name}",
        "POST",
        method.path,
        method.answer,
        right=served.right,
        kind=served.kind,
        refuse=method.refuse,
        endless=served.endless,
        largest_bytes=served.max_request_bytes,
        content_types=types,
        wrong_type=_WRONG_TYPE.format(types[0]),
    )


def _split(body: bytes, *, framed: bool) -> tuple[bytes | None, bytes]:
    """Return the message of a request, and what the library reads in its place.

    The library copies what it reads, and would keep it. No message: the library refuses the body,
    of which it is given the beginning.
    """
    if not framed:
        return body, b""
    if body[:1] == b"\0" and int.from_bytes(body[1:_HEAD_BYTES], "big") == len(body) - _HEAD_BYTES:
        return body[_HEAD_BYTES:], bytes(_HEAD_BYTES)
    return None, body[:MAX_SHOWN_BYTES]


def _received(body: bytes) -> Receive:
    """Return a receiver of the body and nothing else; `Exchange.watched` notices a hang-up."""
    events = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for event in events:
            return event
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return receive


def _as_error(failure: HttpError) -> ConnectError:
    return ConnectError(connect.Code(failure.name.lower()), failure.sentence)


def _of_library(error: ConnectError) -> CallFailure:
    name = error.code.value.upper()
    code = Code[name] if name in Code.__members__ else Code.INVALID_ARGUMENT
    return CallFailure(code, error.message)
