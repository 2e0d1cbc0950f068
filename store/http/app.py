"""The ASGI application of a node: its paths and operations."""

from __future__ import annotations

import json
from functools import partial
from importlib.resources import files
from typing import Final

from google.protobuf.message import Message
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from store.domain.access import Right
from store.domain.quota import CallKind
from store.http import api, connect, waku_store
from store.http.endpoint import Endpoint, Operation
from store.http.exchange import HttpExchange, OpenEndpoint, refuse
from store.http.failure import HttpError
from store.http.limits import MAX_UNFINISHED_BODIES
from store.http.openapi import description
from store.http.sites import SiteCheck, Sites
from store.observe.http import STATUS_HEADERS
from store.serving.call import Method, StreamMethod
from store.serving.context import NodeContext
from store.serving.failure import Code
from store.serving.methods import reads
from store.serving.methods.coverage import coverage
from store.serving.queue import RequestSlots
from storenode.message.limits import MAX_REQUEST_BYTES
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

API: Final = "/api/v1"
WAKU_STORE: Final = "/store/v3/messages"
OPENAPI: Final = "/openapi.json"

_HTML: Final = b"text/html; charset=utf-8"
_CSS: Final = b"text/css; charset=utf-8"
_SCRIPT: Final = b"text/javascript; charset=utf-8"
VIEWER: Final = {
    "/docs": ("docs.html", _HTML),
    "/docs.js": ("docs.js", _SCRIPT),
    "/page.css": ("page.css", _CSS),
    "/page.svg": ("page.svg", b"image/svg+xml"),
}
"""The viewer of the API description."""
PAGE: Final = {
    "/": ("page.html", _HTML),
    "/page.js": ("page.js", _SCRIPT),
    "/sds.js": ("sds.js", _SCRIPT),
}
"""The page of messages, which asks ``/api/v1`` with the token of its reader."""

_PAGE_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in STATUS_HEADERS]


def build_app(node: NodeContext, *, sites: Sites, with_page: bool = False) -> ASGIApp:
    """Build the application, which ``sites`` may call; ``with_page`` adds the page at ``/``."""
    slots, by_path = RequestSlots(MAX_UNFINISHED_BODIES), dict[str, list[Operation]]()
    served = _operations()
    for each in served:
        by_path.setdefault(each.path, []).append(each)
    here = sorted([*by_path, OPENAPI, "/docs", f"/{connect.SERVICE}/METHOD"])
    by_path |= {each.path: [each] for each in connect.operations()}
    routes = [
        Route(path, Endpoint(node, slots, *operations)) for path, operations in by_path.items()
    ]
    text = json.dumps(description(served, node.identity.version), indent=1).encode()
    routes.append(Route(OPENAPI, OpenEndpoint(partial(HttpExchange.respond, body=text))))
    for path, (name, kind) in (VIEWER | (PAGE if with_page else {})).items():
        body = files("store.http").joinpath("web", name).read_bytes()
        shown = partial(HttpExchange.respond, body=body, content_type=kind, headers=_PAGE_HEADERS)
        routes.append(Route(path, OpenEndpoint(shown)))
    sentence = f"no such path: there are {', '.join(here)}"
    nowhere = partial(refuse, failure=HttpError(404, Code.NOT_FOUND, sentence))
    router = Router(routes, redirect_slashes=False, default=OpenEndpoint(nowhere))
    return SiteCheck(router, sites, node.metrics)


def _operations() -> list[Operation]:
    publish = Method("publish", Right.PUBLISH, CallKind.CALL, max_request_bytes=MAX_REQUEST_BYTES)
    return [
        Operation(
            _read("waku_store"),
            "GET",
            WAKU_STORE,
            waku_store.messages,
            "A page of messages, as nwaku serves it.",
            waku_store.WakuStoreResponse,
            refuse=waku_store.refuse,
            parameters=waku_store.PARAMETERS,
        ),
        Operation(
            publish,
            "POST",
            f"{API}/messages",
            api.publish,
            "Stores a batch; the answer comes when every stored message is durable.",
            store_pb2.PublishResponse,
            store_pb2.PublishRequest,
        ),
        Operation(
            _read("query"),
            "GET",
            f"{API}/messages",
            api.query,
            "A page of messages.",
            StoreQueryResponse,
            StoreQueryRequest,
        ),
        Operation(
            _read("query_post"),
            "POST",
            f"{API}/messages/query",
            api.query,
            "A page of messages, for requests that are too long for a URL.",
            StoreQueryResponse,
            StoreQueryRequest,
        ),
        _lines(
            _read("scan", CallKind.STREAM),
            "GET",
            f"{API}/scan",
            reads.scan,
            (store_pb2.ScanRequest, store_pb2.ScanPage),
            summary="Every message that matches, oldest first: a line each, and one with the cursor"
            " behind each page.",
        ),
        Operation(
            Method("follow", Right.FOLLOW, CallKind.STREAM, endless=True),
            "GET",
            f"{API}/follow",
            api.follow,
            "Server-sent events: each message as it is committed, and an event `page` whose ID"
            " is the cursor behind the messages before it.",
            store_pb2.FollowPage,
            store_pb2.FollowRequest,
            api.EVENTS,
            token_in_url=True,
        ),
        _lines(
            _read("sds_messages", CallKind.STREAM, MAX_REQUEST_BYTES),
            "POST",
            f"{API}/sds/messages",
            reads.sds_messages,
            (store_pb2.GetSdsMessagesRequest, store_pb2.SdsMessagesPage),
            summary="SDS messages of a channel, by ID: a line each, and one for each missing one.",
        ),
        _lines(
            _read("causal_history", CallKind.STREAM, MAX_REQUEST_BYTES),
            "POST",
            f"{API}/sds/causal-history",
            reads.causal_history,
            (store_pb2.GetCausalHistoryRequest, store_pb2.CausalHistoryPage),
            summary="What SDS messages depend on, every parent before its children: a line each,"
            " and one for each that is missing.",
        ),
        Operation(
            Method("status", Right.READ, CallKind.CALL, always=True),
            "GET",
            f"{API}/status",
            api.send_status,
            "What the node holds.",
            api.NodeSummary,
        ),
        _lines(
            _read("coverage", CallKind.STREAM),
            "GET",
            f"{API}/coverage",
            coverage,
            (store_pb2.GetCoverageRequest, store_pb2.CoveragePage),
            summary="How complete the store is, by hour or day, as far as other stores know: a line"
            " each.",
        ),
    ]


def _read(name: str, kind: CallKind = CallKind.CALL, size_bytes: int | None = None) -> Method:
    method = Method(name, Right.READ, kind)
    return Method(name, Right.READ, kind, max_request_bytes=size_bytes or method.max_request_bytes)


def _lines(
    served: Method,
    method: str,
    path: str,
    handler: StreamMethod,
    types: tuple[type[Message], type[Message]],
    *,
    summary: str,
) -> Operation:
    """Return a read that is answered with lines; ``types`` are those of `api.send_lines`."""
    handle = partial(api.send_lines, handler, types)
    return Operation(served, method, path, handle, summary, types[1], types[0], api.LINES)
