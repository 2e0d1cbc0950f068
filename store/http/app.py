"""The ASGI application of a node: its paths and operations."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from google.protobuf.message import Message
from msgspec import Struct
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from store.domain.access import Right
from store.domain.ports import Services
from store.domain.quota import CallKind
from store.http import api, connect, page, requests, schemas, waku_store
from store.http.bodies import Bodies
from store.http.endpoint import Endpoint, Operation
from store.http.exchange import Exchange
from store.http.failure import HttpError
from store.http.limits import MAX_SMALL_BODY_BYTES
from store.http.openapi import description
from store.http.sites import SiteCheck, Sites
from store.serving.context import NodeContext
from store.serving.methods.coverage import CoverageService
from store.serving.methods.reads import Reads
from storenode.message.limits import MAX_REQUEST_BYTES
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse

API: Final = "/api/v1"
WAKU_STORE: Final = "/store/v3/messages"
OPENAPI: Final = "/openapi.json"


def build_app(
    services: Services,
    node: NodeContext,
    *,
    sites: Sites,
    with_page: bool = False,
) -> ASGIApp:
    """Build the application, which ``sites`` may call; ``with_page`` adds the page at ``/``."""
    bodies, by_path = Bodies(), dict[str, list[Operation]]()
    served = _served(services, node)
    for each in served:
        by_path.setdefault(each.path, []).append(each)
    here = sorted([*by_path, OPENAPI, f"/{connect.SERVICE}/METHOD"])
    by_path |= {each.path: [each] for each in connect.operations(services, node)}
    routes = [
        Route(path, Endpoint(node, bodies, *operations)) for path, operations in by_path.items()
    ]
    document = description(served, node.identity.version)
    text = json.dumps(document, indent=1).encode()
    described = partial(Exchange.respond, body=text)
    routes.append(Route(OPENAPI, requests.OpenEndpoint(described)))
    for path, (name, kind) in page.FILES.items() if with_page else ():
        body = page.content(name)
        shown = partial(Exchange.respond, body=body, content_type=kind, headers=page.HEADERS)
        routes.append(Route(path, requests.OpenEndpoint(shown)))
    sentence = f"nothing is served here: there are {', '.join(here)}"
    nowhere = partial(requests.refuse, failure=HttpError(404, "NOT_FOUND", sentence))
    default = requests.OpenEndpoint(nowhere)
    router = Router(routes, redirect_slashes=False, default=default)
    return SiteCheck(router, sites, node.metrics)


def _served(services: Services, node: NodeContext) -> list[Operation]:
    methods = Reads(services)
    handlers = api.StoreApi(services, methods)
    bound = partial(Operation, refuse=requests.refuse)
    page = partial(bound, right=Right.READ, kind=CallKind.CALL)
    served = [
        Operation(
            "waku_store",
            "GET",
            WAKU_STORE,
            waku_store.WakuStore(methods).messages,
            "A page of messages, as nwaku serves it.",
            waku_store.WakuStoreResponse,
            right=Right.READ,
            kind=CallKind.CALL,
            refuse=waku_store.refuse,
            parameters=waku_store.PARAMETERS,
        ),
        bound(
            "publish",
            "POST",
            f"{API}/messages",
            handlers.publish,
            "Stores a batch; the answer comes when every stored message is durable.",
            store_pb2.PublishResponse,
            schemas.Publish,
            right=Right.PUBLISH,
            kind=CallKind.CALL,
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        page(
            "query",
            "GET",
            f"{API}/messages",
            handlers.query,
            "A page of messages.",
            StoreQueryResponse,
            schemas.Query,
        ),
        page(
            "query_post",
            "POST",
            f"{API}/messages/query",
            handlers.query,
            "A page of messages, for requests that are too long for a URL.",
            StoreQueryResponse,
            schemas.Query,
        ),
        _stream(
            "scan",
            "GET",
            f"{API}/scan",
            methods.scan,
            (schemas.Scan, store_pb2.ScanRequest, store_pb2.ScanPage),
            summary="Every message that matches, oldest first: a line each, and one with the cursor"
            " behind each page.",
        ),
        bound(
            "follow",
            "GET",
            f"{API}/follow",
            handlers.follow,
            "Server-sent events: each message as it is committed, and an event `page` whose ID"
            " is the cursor behind the messages before it.",
            store_pb2.FollowPage,
            schemas.Follow,
            api.EVENTS,
            right=Right.FOLLOW,
            kind=CallKind.STREAM,
            endless=True,
            token_in_url=True,
        ),
        _stream(
            "sds_messages",
            "POST",
            f"{API}/sds/messages",
            methods.sds_messages,
            (schemas.SdsParameters, store_pb2.GetSdsMessagesRequest, store_pb2.SdsMessagesPage),
            summary="SDS messages of a channel, by ID: a line each, and one for each missing one.",
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        _stream(
            "causal_history",
            "POST",
            f"{API}/sds/causal-history",
            methods.causal_history,
            (
                schemas.HistoryParameters,
                store_pb2.GetCausalHistoryRequest,
                store_pb2.CausalHistoryPage,
            ),
            summary="What SDS messages depend on, every parent before its children: a line each,"
            " and one for each that is missing.",
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        page(
            "status",
            "GET",
            f"{API}/status",
            api.send_status,
            "What the node holds.",
            schemas.NodeSummary,
            schemas.NoParameters,
            always=True,
        ),
    ]
    if node.coverage is not None:
        coverage = _stream(
            "coverage",
            "GET",
            f"{API}/coverage",
            CoverageService(node.coverage).coverage,
            (schemas.Steps, store_pb2.GetCoverageRequest, store_pb2.CoveragePage),
            summary="How complete the store is, by hour or day, as far as other stores know: a line"
            " each.",
        )
        served.append(coverage)
    return served


def _stream(
    name: str,
    method: str,
    path: str,
    handler: api.Stream,
    types: tuple[type[Struct], type[Message], type[Message]],
    *,
    summary: str,
    largest_bytes: int = MAX_SMALL_BODY_BYTES,
) -> Operation:
    """Return a read that is answered with lines; ``types`` are those of `api.send_lines`."""
    return Operation(
        name,
        method,
        path,
        partial(api.send_lines, handler, types),
        summary,
        types[2],
        types[0],
        api.LINES,
        right=Right.READ,
        kind=CallKind.STREAM,
        refuse=requests.refuse,
        largest_bytes=largest_bytes,
    )
