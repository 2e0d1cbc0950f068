"""The handlers of ``/api/v1``: those of gRPC, with JSON, lines of JSON, and server-sent events.

A stream holds one page: the next is read when the caller has taken the last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError

from store.domain.query import NOT_FOUND, TOO_MANY_REQUESTS, UNAVAILABLE
from store.http import codec
from store.http.codec import Digits, encode, to_json, to_lines, to_message
from store.http.endpoint import TOKEN_PARAMETER, HttpCall
from store.messages.frames import end_of_entry
from store.serving.call import Call, StreamMethod
from store.serving.failure import CallError, Code, malformed, over_limit
from store.serving.methods.publish import publish as store_batch
from store.serving.methods.reads import follow as follow_pages
from store.serving.methods.reads import query as serve_query
from storenode.message.limits import MAX_BATCH_MESSAGES, MAX_CAUSAL_KNOWN_IDS
from storenode.wire.storenode.v1.store_pb2 import (
    FollowPage,
    FollowRequest,
    PublishRequest,
    PublishResponse,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

COUNTED_BODY_BYTES: Final = 1024 * 1024
MAX_QUOTES: Final = 64 * MAX_CAUSAL_KNOWN_IDS
"""A larger body has its quotation marks counted before it is decoded: 64 for each entry of the
longest list that a request may have. A message with all its fields has 32."""

MAX_QUOTED_CHARS: Final = 200
"""What an error says of a request that its type refuses."""

SHARED_FRAMES: Final = 256
MAX_SHARED_FRAMES_BYTES: Final = 4 * 1024
"""Pages that are kept as JSON, since many followers are sent the same, and their largest size."""

LINES: Final = b"application/x-ndjson"
EVENTS: Final = b"text/event-stream"

_CODES: Final = {
    NOT_FOUND: Code.NOT_FOUND,
    TOO_MANY_REQUESTS: Code.RESOURCE_EXHAUSTED,
    UNAVAILABLE: Code.UNAVAILABLE,
}
_HEARTBEAT: Final = b": still here\n\n"
_MESSAGES_TAG: Final = b"\x0a"
"""The tag before each entry of ``FollowPage.messages``."""


class NodeSummary(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The node. All but `ready` is for callers that may read every topic."""

    ready: bool
    version: str | UnsetType = UNSET
    node_id: str | UnsetType = UNSET
    store_id: str | UnsetType = UNSET
    messages: int | UnsetType = UNSET
    oldest_timestamp: Digits | UnsetType = UNSET
    newest_timestamp: Digits | UnsetType = UNSET


def read(kind: type[Message] | None, call: HttpCall, body: bytes) -> Struct:
    """Read a request from the body of a POST or from the parameters of a GET.

    Raises:
        CallError: it is not as the schema says, or has far more parts than the limits allow.
    """
    try:
        if call.verb == "POST":
            _check_parts(body)
            return codec.decode(kind, body)
        given = {**call.parameters}
        given.pop(TOKEN_PARAMETER, None)
        return codec.from_parameters(codec.request_type(kind), given)
    except ValidationError as error:
        # It may quote a name or a value that is as long as the body.
        raise malformed(f"the request is wrong: {str(error)[:MAX_QUOTED_CHARS]}") from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"the body is no JSON: {error}") from None


def _check_parts(body: bytes) -> None:
    """Refuse a large body that would become millions of objects; every part of one is quoted."""
    if len(body) > COUNTED_BODY_BYTES and body.count(b'"') > MAX_QUOTES:
        raise over_limit(
            f"the body has more than {MAX_QUOTES:,} quotation marks: send fewer entries in one"
            " request"
        )


async def publish(call: HttpCall, body: bytes) -> None:
    """Store a batch; answer when all of it that is accepted is durable."""
    asked: Any = read(PublishRequest, call, body)
    # One too many is enough to be refused.
    del body, asked.messages[MAX_BATCH_MESSAGES + 1 :]
    request = to_message(PublishRequest, asked)
    del asked
    response = PublishResponse.FromString(await store_batch(call, request))
    await call.answer(encode(to_json(response)))


async def query(call: HttpCall, body: bytes) -> None:
    """Send one page."""
    request = to_message(StoreQueryRequest, read(StoreQueryRequest, call, body))
    await call.answer(encode(to_json(await query_page(call, request))))


async def follow(call: HttpCall, body: bytes) -> None:
    """Send messages as they are committed, as events."""
    asked: Any = read(FollowRequest, call, body)
    asked.cursor = call.headers.get("last-event-id") or asked.cursor
    request = to_message(FollowRequest, asked)
    async with call.kept_alive(_HEARTBEAT):
        await call.send_pages(follow_pages, request, lambda page: call.send(page, EVENTS), _events)


async def send_lines(
    method: StreamMethod,
    types: tuple[type[Message], type[Message]],
    call: HttpCall,
    body: bytes,
) -> None:
    """Send the pages of a method as lines; ``types``: its request and a page."""
    request, page = types

    def encode_lines(data: bytes) -> bytes:
        return b"".join([encode(line) + b"\n" for line in to_lines(page.FromString(data))])

    encoded = to_message(request, read(request, call, body))
    await call.send_pages(method, encoded, lambda page: call.send(page, LINES), encode_lines)
    await call.send(b"", LINES)
    await call.finish()


async def query_page(call: Call, request: bytes) -> StoreQueryResponse:
    """Return the answer of ``Query``.

    Raises:
        CallError: it is an error.
    """
    response = StoreQueryResponse.FromString(await serve_query(call, request))
    if response.status_code != 200:
        status = response.status_code
        is_later = status in (TOO_MANY_REQUESTS, UNAVAILABLE)
        code = _CODES.get(status, Code.INVALID_ARGUMENT)
        raise CallError(code, response.status_desc, retry=is_later)
    return response


async def send_status(call: HttpCall, body: bytes) -> None:
    """Send the state of the node; what it holds is for callers that may read all of it."""
    read(None, call, body)
    found = NodeSummary(ready=call.node.health().ready)
    if call.client.topics.unrestricted:
        identity = call.node.identity
        found.version, found.node_id = identity.version, identity.node_id
        found.store_id = identity.store_id
        if found.ready:
            state = await call.node.state()
            found.messages = state.messages
            found.oldest_timestamp = str(state.oldest_timestamp)
            found.newest_timestamp = str(state.newest_timestamp)
    await call.respond(encode(found))


def _events(page: bytes) -> bytes:
    size = 0
    while page[size : size + 1] == _MESSAGES_TAG:
        size = end_of_entry(page, size)
    end = FollowPage.FromString(page[size:])
    messages = (_small_messages if size <= MAX_SHARED_FRAMES_BYTES else _messages)(page[:size])
    cursor = to_json(end)["cursor"].encode()
    return messages + b"event: page\nid: %b\ndata: %b\n\n" % (cursor, encode({"live": end.live}))


def _messages(frames: bytes) -> bytes:
    messages = FollowPage.FromString(frames).messages
    return b"".join([b"data: " + encode(to_json(each)) + b"\n\n" for each in messages])


_small_messages: Final = lru_cache(SHARED_FRAMES)(_messages)
"""A new message goes to many followers at one time."""
