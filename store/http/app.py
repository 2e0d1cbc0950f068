"""The ASGI application of a node: its paths and operations."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp

from store.domain.access import Right
from store.domain.ports import Services
from store.domain.quota import CallKind
from store.http import connect, page, reads, requests, schemas, waku_store
from store.http.bodies import Bodies
from store.http.endpoint import Endpoint, Operation
from store.http.exchange import Exchange
from store.http.failure import HttpError
from store.http.openapi import description
from store.http.publish import Publisher
from store.http.sites import SiteCheck, Sites
from store.serving.context import NodeContext
from storenode.message.limits import MAX_REQUEST_BYTES

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
    served = _served(services)
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


def _served(services: Services) -> list[Operation]:
    handlers, lines = reads.Reads(services), (schemas.Stored, schemas.Mark)
    bound = partial(Operation, refuse=requests.refuse)
    page = partial(bound, right=Right.READ, kind=CallKind.CALL)
    stream = partial(bound, right=Right.READ, kind=CallKind.STREAM, answer_type=reads.LINES)
    return [
        Operation(
            "waku_store",
            "GET",
            WAKU_STORE,
            waku_store.WakuStore(services).messages,
            "A page of messages, as nwaku serves it.",
            [waku_store.WakuStoreResponse],
            right=Right.READ,
            kind=CallKind.CALL,
            refuse=waku_store.refuse,
            parameters=waku_store.PARAMETERS,
        ),
        bound(
            "publish",
            "POST",
            f"{API}/messages",
            Publisher(services).publish,
            "Stores a batch; the answer comes when every stored message is durable.",
            [schemas.Results],
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
            [schemas.Page],
            schemas.Query,
        ),
        page(
            "query_post",
            "POST",
            f"{API}/messages/query",
            handlers.query,
            "A page of messages, for requests that are too long for a URL.",
            [schemas.Page],
            schemas.Query,
        ),
        stream(
            "scan",
            "GET",
            f"{API}/scan",
            handlers.scan,
            "Every message that matches, oldest first: a line each, and one with the cursor"
            " behind each page.",
            lines,
            schemas.Scan,
        ),
        stream(
            "coverage",
            "GET",
            f"{API}/coverage",
            handlers.coverage,
            "How complete the store is, by hour or day, as far as other stores know: a line each.",
            [schemas.Step],
            schemas.Steps,
        ),
        bound(
            "follow",
            "GET",
            f"{API}/follow",
            handlers.follow,
            "Server-sent events: each message as it is committed, and an event `page` whose ID"
            " is the cursor behind the messages before it.",
            (schemas.Stored, schemas.PageEnd),
            schemas.Follow,
            reads.EVENTS,
            right=Right.FOLLOW,
            kind=CallKind.STREAM,
            endless=True,
            token_in_url=True,
        ),
        stream(
            "sds_messages",
            "POST",
            f"{API}/sds/messages",
            handlers.sds_messages,
            "SDS messages of a channel, by ID: a line each, and one for each that is missing.",
            lines,
            schemas.SdsLookup,
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        stream(
            "causal_history",
            "POST",
            f"{API}/sds/causal-history",
            handlers.causal_history,
            "What SDS messages depend on, every parent before its children: a line each, and"
            " one for each that is missing.",
            lines,
            schemas.CausalHistory,
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        page(
            "status",
            "GET",
            f"{API}/status",
            reads.status,
            "What the node holds.",
            [schemas.Status],
            schemas.NoParameters,
            always=True,
        ),
    ]
