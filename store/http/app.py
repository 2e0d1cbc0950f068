"""The ASGI application of a node: its paths and operations."""

from __future__ import annotations

import json
from dataclasses import replace
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
from store.http.exchange import HttpError, HttpExchange, OpenEndpoint, refuse
from store.http.openapi import description
from store.http.sites import SiteCheck, Sites
from store.observe.http import STATUS_HEADERS
from store.serving.call import Method
from store.serving.context import NodeContext
from store.serving.failure import Code
from store.serving.methods import reads
from store.serving.methods.publish import PUBLISH
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

API: Final = "/api/v1"
WAKU_STORE: Final = "/store/v3/messages"
OPENAPI: Final = "/openapi.json"

_HTML: Final = b"text/html; charset=utf-8"
_CSS: Final = b"text/css; charset=utf-8"
_SCRIPT: Final = b"text/javascript; charset=utf-8"
_FILES: Final = {
    "/": ("page.html", _HTML),
    "/page.js": ("page.js", _SCRIPT),
    "/sds.js": ("sds.js", _SCRIPT),
    "/docs": ("docs.html", _HTML),
    "/docs.js": ("docs.js", _SCRIPT),
    "/page.css": ("page.css", _CSS),
    "/page.svg": ("page.svg", b"image/svg+xml"),
}
"""The page of messages, which asks ``/api/v1`` with the token of its reader, and the viewer of the
API description."""

_PAGE_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in STATUS_HEADERS]


def build_app(node: NodeContext, sites: Sites) -> ASGIApp:
    """Build the application, which ``sites`` may call."""
    by_path = dict[str, list[Operation]]()
    served = _operations()
    for each in served:
        by_path.setdefault(each.path, []).append(each)
    here = sorted([*by_path, OPENAPI, "/docs", f"/{connect.SERVICE}/METHOD"])
    by_path |= {each.path: [each] for each in connect.operations()}
    routes = [Route(path, Endpoint(node, *operations)) for path, operations in by_path.items()]
    text = json.dumps(description(served, node.identity.version), indent=1).encode()
    routes.append(Route(OPENAPI, OpenEndpoint(partial(HttpExchange.respond, body=text))))
    for path, (name, kind) in _FILES.items():
        body = files("store.http").joinpath("web", name).read_bytes()
        shown = partial(HttpExchange.respond, body=body, content_type=kind, headers=_PAGE_HEADERS)
        routes.append(Route(path, OpenEndpoint(shown)))
    sentence = f"no such path: there are {', '.join(here)}"
    nowhere = partial(refuse, failure=HttpError(404, Code.NOT_FOUND, sentence))
    router = Router(routes, redirect_slashes=False, default=OpenEndpoint(nowhere))
    return SiteCheck(router, sites, node.metrics)


def _operations() -> list[Operation]:
    page = StoreQueryRequest, StoreQueryResponse
    return [
        Operation(
            _read("waku_store"),
            f"GET {WAKU_STORE}",
            waku_store.messages,
            "A page of messages, as nwaku serves it.",
            (None, waku_store.WakuStoreResponse),
            refuse=waku_store.refuse,
            parameters=waku_store.PARAMETERS,
        ),
        Operation(
            replace(PUBLISH, name="publish"),
            f"POST {API}/messages",
            api.publish,
            "Stores a batch; the answer comes when every stored message is durable.",
            (store_pb2.PublishRequest, store_pb2.PublishResponse),
        ),
        Operation(_read("query"), f"GET {API}/messages", api.query, "A page of messages.", page),
        Operation(
            _read("query_post"),
            f"POST {API}/messages/query",
            api.query,
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
            api.follow,
            "Server-sent events: each message as it is committed, and an event `page` whose ID"
            " is the cursor behind the messages before it.",
            (store_pb2.FollowRequest, store_pb2.FollowPage),
            api.EVENTS,
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
            api.send_status,
            "What the node holds.",
            (None, api.NodeSummary),
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
    """Return a read that is answered with lines."""
    handle = partial(api.send_lines, reads.STREAMS[served], types)
    return Operation(replace(served, name=name), route, handle, summary, types, api.LINES)
