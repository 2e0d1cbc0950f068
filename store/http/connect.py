"""The methods of ``Store`` for clients that speak Connect or gRPC-Web, such as browsers.

The handlers are those of gRPC (`store.serving.methods`), and messages stay bytes. Sources: the
Connect protocol (https://connectrpc.com/docs/protocol) and PROTOCOL-WEB.md of gRPC. A unary call of
Connect has the bare message as its body, and an error is JSON with a status of HTTP. All other
answers are frames, behind a status of 200: flags, the length, and the message; the last frame has
the status of the call, as JSON (Connect) or as trailers (gRPC-Web).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from store.http.codec import encode
from store.http.endpoint import Operation
from store.http.exchange import HttpExchange
from store.http.failure import HttpError
from store.serving.call import Call, Method, StreamMethod, UnaryMethod
from store.serving.failure import CallError, Code, malformed
from store.serving.methods import publish, reads
from storenode.wire.storenode.v1 import store_pb2

SERVICE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
ASKED_HEADERS: Final = (
    *("connect-protocol-version", "connect-timeout-ms"),
    *("grpc-timeout", "x-grpc-web", "x-user-agent"),
)
"""Headers that pages of other origins may send besides, and read."""
SHOWN_HEADERS: Final = ("grpc-status", "grpc-message", "grpc-status-details-bin")

_HEAD_BYTES: Final = 5
"""The flags and the length before each message."""
_COMPRESSED: Final = 0x01
_END: Final = 0x02
_TRAILERS: Final = 0x80
_GRPC_WEB: Final = ("application/grpc-web+proto", "application/grpc-web")
_UNFRAMED: Final = "application/proto"
_UNARY: Final = (_UNFRAMED, *_GRPC_WEB)
_STREAM: Final = ("application/connect+proto", *_GRPC_WEB)
_WRONG_TYPE: Final = (
    "the message must be protobuf: send the header `content-type: {}`, in Connect's library for"
    " the web by `useBinaryFormat: true`; JSON is served under /api/v1"
)

_STATUSES: Final = {
    "OK": (0, 200),
    "INVALID_ARGUMENT": (3, 400),
    "DEADLINE_EXCEEDED": (4, 504),
    "NOT_FOUND": (5, 404),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "ABORTED": (10, 409),
    "OUT_OF_RANGE": (11, 400),
    "UNIMPLEMENTED": (12, 501),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "UNAUTHENTICATED": (16, 401),
}
"""The number of each code in gRPC, and its status in a unary call of Connect."""

_GRPC_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_CONNECT_TIMEOUT: Final = re.compile(r"[0-9]{1,10}")
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNQUOTED: Final = " !\"#$&'()*+,/:;<=>?@[\\]^`{|}~"


class ConnectMethod:
    """A method of the service; one of ``unary`` and ``stream`` is its handler."""

    def __init__(
        self,
        served: Method,
        *,
        unary: UnaryMethod | None = None,
        stream: StreamMethod | None = None,
    ) -> None:
        self._served = served
        self._unary = unary
        self._stream = stream

    def operation(self) -> Operation:
        """Return the operation of the endpoint."""
        types = _STREAM if self._unary is None else _UNARY
        name = f"connect_{self._served.name}"
        return Operation(
            replace(self._served, name=name),
            "POST",
            f"/{SERVICE}/{self._served.name}",
            self.answer,
            refuse=self.refuse,
            in_band=True,
            content_types=types,
            wrong_type=_WRONG_TYPE.format(types[0]),
        )

    async def answer(self, call: Call, exchange: HttpExchange, body: bytes) -> None:
        """Serve a request that has come in full."""
        deadline_s = _read_timeout(exchange)
        message = _read_message(exchange, body)
        size = len(body)
        del body
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                with call.reserve(size):
                    await self._send_answer(call, exchange, message)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise CallError(
                Code.DEADLINE_EXCEEDED, "the deadline of the call is over: give it more time"
            ) from None

    async def _send_answer(self, call: Call, exchange: HttpExchange, message: bytes) -> None:
        if self._unary is not None:
            response = await self._unary(call, message)
            await call.sender.answered(len(response), refusable=self._served.timed)
            if exchange.content_type == _UNFRAMED:
                await exchange.respond(response, _UNFRAMED.encode())
                return
            await _send_frame(exchange, response)
        else:
            assert self._stream is not None
            async with aclosing(self._stream(call, message)) as pages:
                async for page in pages:
                    async with call.sender.sending(len(page)):
                        call.check_rights()
                        await _send_frame(exchange, page)
                    del page  # which would be held while the next one waits
        await _send_end(exchange, None)

    async def refuse(self, exchange: HttpExchange, failure: HttpError) -> None:
        """Send the error of a request, behind the pages that were sent."""
        if exchange.complete:
            return
        types = _STREAM if self._unary is None else _UNARY
        is_known = exchange.content_type in types and failure.status != 405
        if is_known and exchange.content_type != _UNFRAMED:
            await _send_end(exchange, failure)
        elif exchange.started:
            exchange.abort()
        else:
            # Also where it is not known which protocol it would be: Connect's error is plain JSON.
            status = _STATUSES[failure.name][1] if is_known else failure.status
            await exchange.respond(_error(failure), status=status, headers=failure.headers)


def operations() -> list[Operation]:
    """Return an operation for each method."""
    methods = [
        ConnectMethod(publish.PUBLISH, unary=publish.publish),
        ConnectMethod(reads.QUERY, unary=reads.query),
        *(ConnectMethod(method, stream=handle) for method, handle in reads.STREAMS.items()),
    ]
    return [method.operation() for method in methods]


def _unsupported(sentence: str) -> HttpError:
    return HttpError(501, "UNIMPLEMENTED", sentence)


def _read_timeout(exchange: HttpExchange) -> float | None:
    """Return the deadline that a caller gives, in seconds from now."""
    headers = exchange.headers
    if exchange.content_type in _GRPC_WEB:
        text = headers.get("grpc-timeout")
        match = None if text is None else _GRPC_TIMEOUT.fullmatch(text)
        seconds = None if match is None else int(match[1]) * _UNIT_S[match[2]]
    else:
        text = headers.get("connect-timeout-ms")
        match = None if text is None else _CONNECT_TIMEOUT.fullmatch(text)
        seconds = None if match is None else int(match[0]) / 1e3
    if text is not None and match is None:
        raise malformed("the header of the timeout cannot be read: send it as the protocol says")
    return seconds


def _read_message(exchange: HttpExchange, body: bytes) -> bytes:
    """Return the one message of a request."""
    if exchange.content_type == _UNFRAMED:
        if exchange.headers.get("content-encoding", "identity") != "identity":
            raise _unsupported("the message has an unknown compression: send it without")
        return body
    if not body:
        raise _unsupported("the request has zero messages: send one")
    flags, size = body[0], int.from_bytes(body[1:_HEAD_BYTES], "big")
    if len(body) < _HEAD_BYTES:
        raise malformed("the request ends in an incomplete envelope: send one whole message")
    if flags & _COMPRESSED:
        raise _unsupported("the message is compressed: send it without compression")
    if flags:
        raise malformed(f"the request has invalid envelope flags {flags}: send 0")
    if len(body) < _HEAD_BYTES + size:
        raise malformed(
            f"the envelope promised {size} bytes, and {len(body) - _HEAD_BYTES} came: send all"
        )
    if len(body) > _HEAD_BYTES + size:
        raise _unsupported("the request has multiple messages: send one")
    return body[_HEAD_BYTES:]


def _frame(flags: int, message: bytes) -> bytes:
    return bytes([flags]) + len(message).to_bytes(_HEAD_BYTES - 1, "big") + message


async def _send_frame(exchange: HttpExchange, message: bytes, flags: int = 0) -> None:
    if not exchange.started:
        await exchange.start(200, exchange.content_type.encode())
    await exchange.send(_frame(flags, message))


async def _send_end(exchange: HttpExchange, failure: HttpError | None) -> None:
    """Send the status of a call, and end the answer."""
    if not exchange.started and failure is not None:
        await exchange.start(200, exchange.content_type.encode(), failure.headers)
    if exchange.content_type in _GRPC_WEB:
        name = "OK" if failure is None else failure.name
        code, _ = _STATUSES[name]
        text = "" if failure is None else quote(failure.sentence, safe=_UNQUOTED)
        trailers = f"grpc-status: {code}\r\ngrpc-message: {text}\r\n".encode()
        await _send_frame(exchange, trailers, _TRAILERS)
    else:
        end = b"{}" if failure is None else b'{"error":%b}' % _error(failure)
        await _send_frame(exchange, end, _END)
    await exchange.finish()


def _error(failure: HttpError) -> bytes:
    return encode({"code": failure.name.lower(), "message": failure.sentence})
