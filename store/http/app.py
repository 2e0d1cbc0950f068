"""The ASGI application of a node, and the handlers of ``/api/v1``.

They are those of gRPC, with JSON, lines of JSON, and server-sent events. A stream holds one page:
the next is read when the caller has taken the last.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import UNSET, DecodeError, Struct, UnsetType, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from store.domain.access import Right
from store.domain.quota import CallKind
from store.http import codec, connect, waku_store
from store.http.call import (
    TOKEN_PARAMETER,
    HttpCall,
    HttpError,
    HttpExchange,
    Operation,
    endpoint,
    refuse,
)
from store.http.codec import Digits, Kind, encode, to_json, to_lines, to_message
from store.http.openapi import description
from store.http.sites import Sites, check_sites
from store.observe.http import STATUS_HEADERS
from store.serving.call import Method
from store.serving.context import NodeContext
from store.serving.failure import Code, malformed, over_limit
from store.serving.methods import publish as publishing
from store.serving.methods import reads
from store.serving.methods.decode import COUNTED_REQUEST_BYTES
from storenode.message.limits import MAX_BATCH_MESSAGES, MAX_CAUSAL_KNOWN_IDS
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

API: Final = "/api/v1"
OPENAPI: Final = "/openapi.json"

MAX_QUOTES: Final = 64 * MAX_CAUSAL_KNOWN_IDS
"""Quotation marks of a body above `COUNTED_REQUEST_BYTES`: 64 for each entry of the longest list
that a request may have. A message with all its fields has 32."""

MAX_QUOTED_CHARS: Final = 200
"""The number of characters of a wrongly typed request that an error quotes."""

HEARTBEAT_S: Final = 10.0
"""A follower that is sent nothing else gets a comment this often: proxies and browsers end
connections that are silent for longer."""

LINES: Final = b"application/x-ndjson"
EVENTS: Final = b"text/event-stream"

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FILES: Final = {
    "/": "page.html",
    "/docs": "docs.html",
    **{f"/{name}": name for name in ("page.js", "sds.js", "docs.js", "page.css", "page.svg")},
}
"""The page of messages, which asks ``/api/v1`` with the token of its reader, and the viewer of the
API description."""

_PAGE_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in STATUS_HEADERS]
_HEARTBEAT: Final = b": still here\n\n"


def build_app(node: NodeContext, sites: Sites) -> ASGIApp:
    """Build the application, which ``sites`` may call."""
    described, paths = _operations(), {OPENAPI, "/docs", f"/{connect.SERVICE}/METHOD"}
    operations = dict[str, dict[str, Operation]]()
    for each in (*described, *connect.operations()):
        verb, path = each.route.split()
        operations.setdefault(path, {})[verb] = each
    paths |= {each.route.split()[1] for each in described}
    routes = {path: endpoint(node, by_verb) for path, by_verb in operations.items()}
    text = json.dumps(description(described, node.identity.version), indent=1).encode()
    answers = {OPENAPI: partial(HttpExchange.respond, body=text)}
    for path, name in _FILES.items():
        kind = _TYPES.get(name.rpartition(".")[2], "image/svg+xml")
        content_type = f"{kind}; charset=utf-8".encode()
        body = files("store.http").joinpath("web", name).read_bytes()
        answers[path] = partial(
            HttpExchange.respond, body=body, content_type=content_type, headers=_PAGE_HEADERS
        )
    sentence = f"no such path: there are {', '.join(sorted(paths))}"
    nowhere = partial(refuse, failure=HttpError(404, Code.NOT_FOUND, sentence))

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if (served := routes.get(scope["path"])) is not None:
            await served(scope, receive, send)
        else:
            await answers.get(scope["path"], nowhere)(HttpExchange(scope, receive, send))

    return check_sites(route, sites, node.metrics)


class NodeSummary(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The node. All but `ready` is for callers that may read every topic."""

    ready: bool
    version: str | UnsetType = UNSET
    node_id: str | UnsetType = UNSET
    store_id: str | UnsetType = UNSET
    messages: int | UnsetType = UNSET
    oldest_timestamp: Digits | UnsetType = UNSET
    newest_timestamp: Digits | UnsetType = UNSET


def _operations() -> list[Operation]:
    """Return the operations that are described here; Connect describes its own."""
    page = StoreQueryRequest, StoreQueryResponse
    return [
        Operation(
            _read("waku_store"),
            "GET /store/v3/messages",
            waku_store.messages,
            "A page of messages, as nwaku serves it.",
            (waku_store.WakuParameters, waku_store.WakuStoreResponse),
            refuse=waku_store.refuse,
        ),
        Operation(
            replace(publishing.PUBLISH, name="publish"),
            f"POST {API}/messages",
            publish,
            "Stores a batch; the answer comes when every stored message is durable.",
            (store_pb2.PublishRequest, store_pb2.PublishResponse),
        ),
        Operation(_read("query"), f"GET {API}/messages", query, "A page of messages.", page),
        Operation(
            _read("query_post"),
            f"POST {API}/messages/query",
            query,
            "A page of messages, for requests that are too long for a URL.",
            page,
        ),
        _lines(
            reads.SCAN,
            "scan",
            f"GET {API}/scan",
            (store_pb2.ScanRequest, store_pb2.ScanPage),
            "Every message that matches, oldest first: a line each, and one with the cursor"
            " behind each page.",
        ),
        Operation(
            replace(reads.FOLLOW, name="follow"),
            f"GET {API}/follow",
            follow,
            "Server-sent events: each message as it is committed, and an event `page` whose ID"
            " is the cursor behind the messages before it.",
            (store_pb2.FollowRequest, store_pb2.FollowPage),
            EVENTS,
            token_in_url=True,
        ),
        _lines(
            reads.SDS_MESSAGES,
            "sds_messages",
            f"POST {API}/sds/messages",
            (store_pb2.GetSdsMessagesRequest, store_pb2.SdsMessagesPage),
            "SDS messages of a channel, by ID: a line each, and one for each missing one.",
        ),
        _lines(
            reads.CAUSAL_HISTORY,
            "causal_history",
            f"POST {API}/sds/causal-history",
            (store_pb2.GetCausalHistoryRequest, store_pb2.CausalHistoryPage),
            "What SDS messages depend on, every parent before its children: a line each,"
            " and one for each that is missing.",
        ),
        Operation(
            _read("status", always=True),
            f"GET {API}/status",
            send_status,
            "What the node holds.",
            (codec.NoParameters, NodeSummary),
        ),
        _lines(
            reads.COVERAGE,
            "coverage",
            f"GET {API}/coverage",
            (store_pb2.GetCoverageRequest, store_pb2.CoveragePage),
            "How complete the store is, by hour or day, as far as other stores know: a line each.",
        ),
    ]


def _read(name: str, *, always: bool = False) -> Method:
    return Method(name, Right.READ, CallKind.CALL, always=always, timed=True)


def _lines(
    served: Method,
    name: str,
    route: str,
    types: tuple[type[Message], type[Message]],
    summary: str,
) -> Operation:
    """Return a read whose pages are sent as lines; ``types``: its request and a page."""
    request, page = types

    def encode_lines(data: bytes) -> bytes:
        return b"".join([encode(line) + b"\n" for line in to_lines(page.FromString(data))])

    async def send_lines(call: HttpCall, body: bytes) -> None:
        encoded = to_message(request, read(request, call, body))
        method = reads.STREAMS[served]
        await call.send_pages(method, encoded, lambda page: call.send(page, LINES), encode_lines)
        await call.send(b"", LINES)
        await call.finish()

    return Operation(replace(served, name=name), route, send_lines, summary, types, LINES)


def read(kind: Kind, call: HttpCall, body: bytes) -> Struct:
    """Read a request from the body of a POST or from the parameters of a GET.

    Raises:
        CallError: it is not as the schema says, or has far more parts than the limits allow.
    """
    try:
        if call.verb == "POST":
            # Every part of a request is quoted: a large body may become millions of objects.
            if len(body) > COUNTED_REQUEST_BYTES and body.count(b'"') > MAX_QUOTES:
                raise over_limit(
                    f"the body has more than {MAX_QUOTES:,} quotation marks: send fewer entries in"
                    " one request"
                )
            return codec.decode(kind, body)
        given = {**call.parameters}
        given.pop(TOKEN_PARAMETER, None)
        return codec.from_parameters(kind, given)
    except ValidationError as error:
        # It may quote a name or a value that is as long as the body.
        raise malformed(f"the request is wrong: {str(error)[:MAX_QUOTED_CHARS]}") from None
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"the body is no JSON: {error}") from None


async def publish(call: HttpCall, body: bytes) -> None:
    """Store a batch; answer when all of it that is accepted is durable."""
    asked: Any = read(store_pb2.PublishRequest, call, body)
    # One too many is enough to be refused.
    del body, asked.messages[MAX_BATCH_MESSAGES + 1 :]
    request = to_message(store_pb2.PublishRequest, asked)
    del asked
    response = store_pb2.PublishResponse.FromString(await publishing.publish(call, request))
    await call.answer(encode(to_json(response)))


async def query(call: HttpCall, body: bytes) -> None:
    """Send one page."""
    request = to_message(StoreQueryRequest, read(StoreQueryRequest, call, body))
    found = await reads.answer_query(call, StoreQueryRequest.FromString(request))
    await call.answer(encode(to_json(StoreQueryResponse.FromString(found))))


async def follow(call: HttpCall, body: bytes) -> None:
    """Send messages as they are committed, as events."""
    asked: Any = read(store_pb2.FollowRequest, call, body)
    asked.cursor = call.headers.get("last-event-id") or asked.cursor
    request = to_message(store_pb2.FollowRequest, asked)
    heart = asyncio.create_task(_beat(call))
    try:
        await call.send_pages(reads.follow, request, lambda page: call.send(page, EVENTS), _events)
    finally:
        heart.cancel()


async def send_status(call: HttpCall, body: bytes) -> None:
    """Send the state of the node, with its messages' figures to callers that may read all."""
    read(codec.NoParameters, call, body)
    found = NodeSummary(ready=call.node.health.ready)
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


async def _beat(call: HttpCall) -> None:
    """Send a comment every `HEARTBEAT_S` beside events, of which there may be none."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        if call.started:
            await call.send(_HEARTBEAT, EVENTS)


def _events(data: bytes) -> bytes:
    page = store_pb2.FollowPage.FromString(data)
    events = [b"data: " + encode(to_json(each)) + b"\n\n" for each in page.messages]
    cursor, live = codec.cursor_of(page.cursor).encode(), encode({"live": page.live})
    return b"".join(events) + b"event: page\nid: %b\ndata: %b\n\n" % (cursor, live)
