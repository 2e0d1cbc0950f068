"""The methods of ``Store`` for clients that speak Connect, such as browsers.

The handlers are those of gRPC (`store.serving.methods`), and messages stay bytes. Source: the
Connect protocol (https://connectrpc.com/docs/protocol). A unary call has the bare message as its
body, and an error is JSON with a status of HTTP. A stream has frames behind a status of 200: flags,
the length, and the message; the last frame has the status of the call as JSON.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from store.http.call import STATUS, Handler, HttpCall, HttpError, HttpExchange, Operation
from store.http.codec import encode
from store.serving.call import Method, StreamMethod, UnaryMethod
from store.serving.failure import CallError, Code, malformed
from store.serving.methods import publish, reads
from storenode.wire.storenode.v1 import store_pb2

SERVICE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
_HEAD_BYTES: Final = 5
"""The flags and the length before each message."""
_COMPRESSED: Final = 0x01
_END: Final = 0x02
_UNARY: Final = "application/proto"
_STREAM: Final = "application/connect+proto"
_WRONG_TYPE: Final = (
    "the message must be protobuf: send the header `content-type: {}`, in Connect's library for"
    " the web by `useBinaryFormat: true`; JSON is served under /api/v1"
)
_STATUSES: Final = STATUS | {
    Code.DEADLINE_EXCEEDED: 504,
    Code.OUT_OF_RANGE: 400,
    Code.RESOURCE_EXHAUSTED: 429,
}
"""The status of each code in a unary call."""


def operations() -> list[Operation]:
    """Return an operation for each method."""
    unary = {publish.PUBLISH: publish.publish, reads.QUERY: reads.query}
    streams = reads.STREAMS
    return [
        *(_operation(each, _UNARY, partial(_answer_unary, unary[each])) for each in unary),
        *(_operation(each, _STREAM, partial(_answer_stream, streams[each])) for each in streams),
    ]


def _operation(served: Method, kind: str, handle: Handler) -> Operation:
    return Operation(
        replace(served, name=f"connect_{served.name}"),
        f"POST /{SERVICE}/{served.name}",
        handle,
        refuse=partial(_refuse, kind),
        in_band=kind == _STREAM,
        content_type=kind,
        wrong_type=_WRONG_TYPE.format(kind),
    )


async def _answer_unary(handle: UnaryMethod, call: HttpCall, message: bytes) -> None:
    if call.headers.get("content-encoding", "identity") != "identity":
        raise CallError(
            Code.UNIMPLEMENTED, "the message has an unknown compression: send it without"
        )
    async with _deadline(call):
        await call.answer(await handle(call, message), _UNARY.encode())


async def _answer_stream(handle: StreamMethod, call: HttpCall, body: bytes) -> None:
    message = _unframe(body)
    del body
    async with _deadline(call):
        await call.send_pages(handle, message, partial(_send_frame, call))
    await _send_end(call, b"{}")


async def _refuse(kind: str, exchange: HttpExchange, failure: HttpError) -> None:
    """Send the error of a request; of a stream it goes behind the pages that were sent."""
    body = encode({"code": failure.code.lower(), "message": failure.sentence})
    # Connect's error also where it is not known which protocol it would be.
    is_known = exchange.content_type == kind and failure.status != 405
    if kind == _UNARY or not is_known:
        status = _STATUSES[failure.code] if is_known else failure.status
        await exchange.respond(body, status=status, headers=failure.headers)
    elif not exchange.complete:
        if not exchange.started:
            await exchange.start(200, _STREAM.encode(), failure.headers)
        await _send_end(exchange, b'{"error":%b}' % body)


@asynccontextmanager
async def _deadline(exchange: HttpExchange) -> AsyncIterator[None]:
    """End the block at the deadline that a caller gives."""
    text = exchange.headers.get("connect-timeout-ms")
    if text is not None and re.fullmatch(r"[0-9]{1,10}", text) is None:
        raise malformed("the header of the timeout cannot be read: send it as the protocol says")
    try:
        async with asyncio.timeout(None if text is None else int(text) / 1e3) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise CallError(
            Code.DEADLINE_EXCEEDED, "the deadline of the call is over: give it more time"
        ) from None


def _unframe(body: bytes) -> bytes:
    """Return the one message of a request."""
    if not body:
        raise CallError(Code.UNIMPLEMENTED, "the request has zero messages: send one")
    flags, size = body[0], int.from_bytes(body[1:_HEAD_BYTES], "big")
    if len(body) < _HEAD_BYTES:
        raise malformed("the request ends in an incomplete envelope: send one whole message")
    if flags & _COMPRESSED:
        raise CallError(
            Code.UNIMPLEMENTED, "the message is compressed: send it without compression"
        )
    if flags:
        raise malformed(f"the request has invalid envelope flags {flags}: send 0")
    if len(body) < _HEAD_BYTES + size:
        raise malformed(
            f"the envelope promised {size} bytes, and {len(body) - _HEAD_BYTES} came: send all"
        )
    if len(body) > _HEAD_BYTES + size:
        raise CallError(Code.UNIMPLEMENTED, "the request has multiple messages: send one")
    return body[_HEAD_BYTES:]


async def _send_frame(exchange: HttpExchange, message: bytes, flags: int = 0) -> None:
    head = bytes([flags]) + len(message).to_bytes(_HEAD_BYTES - 1, "big")
    await exchange.send(head + message, _STREAM.encode())


async def _send_end(exchange: HttpExchange, status: bytes) -> None:
    """Send the status of a call, and end the answer."""
    await _send_frame(exchange, status, _END)
    await exchange.finish()
