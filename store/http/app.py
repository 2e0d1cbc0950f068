"""Which path is answered by what: the ASGI application of a node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from store.domain.access import Right
from store.domain.ports import Services
from store.domain.quota import CallKind
from store.http import connect, page, reads, requests, schemas, waku_store
from store.http.bodies import Bodies
from store.http.endpoint import Endpoint, Handler, Operation
from store.http.exchange import JSON, Exchange
from store.http.failure import Header, HttpFailure
from store.http.openapi import Described, description
from store.http.publish import Publisher
from store.http.sites import SiteCheck, Sites
from store.serving.context import NodeContext
from storenode.message.limits import MAX_REQUEST_BYTES

API: Final = "/api/v1"
WAKU_STORE: Final = "/store/v3/messages"
OPENAPI: Final = "/openapi.json"

_LINES: Final = reads.LINES.decode()
_EVENTS: Final = reads.EVENTS.decode()


def build_app(
    services: Services,
    node: NodeContext,
    *,
    sites: Sites,
    with_page: bool = False,
) -> ASGIApp:
    """The application; ``sites`` may call it. ``with_page``: it has a page of its own."""
    bodies, by_path = Bodies(), dict[str, list[Operation]]()
    served = _served(services)
    for path, operation, _ in served:
        by_path.setdefault(path, []).append(operation)
    here = sorted([*by_path, OPENAPI, f"/{connect.SERVICE}/METHOD"])
    by_path |= {path: [each] for path, each in connect.operations(services, node).items()}
    routes = [
        Route(path, Endpoint(node, bodies, *operations)) for path, operations in by_path.items()
    ]
    document = description([(path, each) for path, _, each in served], node.identity.version)
    text = json.dumps(document, indent=1).encode()
    routes.append(Route(OPENAPI, _File(text, JSON, ())))
    for path, (name, content_type) in page.FILES.items() if with_page else ():
        file = _File(page.content(name), content_type, page.HEADERS)
        routes.append(Route(path, file))
    router = Router(routes, redirect_slashes=False, default=_Nowhere(here))
    return SiteCheck(router, sites, node.metrics)


_Served = tuple[str, Operation, Described]
"""A path, how it is served there, and how that is described."""


def _at(
    right: Right,
    kind: CallKind,
    path: str,
    handle: Handler,
    described: Described,
    **more: Any,  # noqa: ANN401 - those of `Operation`, unchanged
) -> _Served:
    refuse = waku_store.refuse if described.text_errors else requests.refuse
    name, method = described.name, described.method
    return path, Operation(name, method, right, kind, handle, refuse, **more), described


def _served(services: Services) -> list[_Served]:
    waku, handlers = waku_store.WakuStore(services), reads.Reads(services)
    lines: tuple[type[Struct], ...] = (schemas.Stored, schemas.Mark)
    page = partial(_at, Right.READ, CallKind.CALL)
    stream = partial(_at, Right.READ, CallKind.STREAM)
    return [
        page(
            WAKU_STORE,
            waku.messages,
            Described(
                "waku_store",
                "GET",
                "A page of messages, as nwaku serves it.",
                [waku_store.WakuStoreResponse],
                parameters=waku_store.PARAMETERS,
                text_errors=True,
            ),
        ),
        _at(
            Right.PUBLISH,
            CallKind.CALL,
            f"{API}/messages",
            Publisher(services).publish,
            Described(
                "publish",
                "POST",
                "Stores a batch; the answer comes when every stored message is durable.",
                [schemas.Results],
                schemas.Publish,
            ),
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        page(
            f"{API}/messages",
            handlers.query,
            Described("query", "GET", "A page of messages.", [schemas.Page], schemas.Query),
        ),
        page(
            f"{API}/messages/query",
            handlers.query,
            Described(
                "query_post",
                "POST",
                "A page of messages, for requests that are too long for a URL.",
                [schemas.Page],
                schemas.Query,
            ),
        ),
        stream(
            f"{API}/scan",
            handlers.scan,
            Described(
                "scan",
                "GET",
                "Every message that matches, oldest first: a line each, and one with the cursor"
                " behind each page.",
                lines,
                schemas.Scan,
                _LINES,
            ),
        ),
        stream(
            f"{API}/coverage",
            handlers.coverage,
            Described(
                "coverage",
                "GET",
                "How complete the store is, by hour or day, as far as other stores know: a line"
                " each.",
                [schemas.Step],
                schemas.Steps,
                _LINES,
            ),
        ),
        _at(
            Right.FOLLOW,
            CallKind.STREAM,
            f"{API}/follow",
            handlers.follow,
            Described(
                "follow",
                "GET",
                "Server-sent events: each message as it is committed, and an event `page` whose ID"
                " is the cursor behind the messages before it.",
                (schemas.Stored, schemas.PageEnd),
                schemas.Follow,
                _EVENTS,
            ),
            endless=True,
            token_in_url=True,
        ),
        stream(
            f"{API}/sds/messages",
            handlers.sds_messages,
            Described(
                "sds_messages",
                "POST",
                "SDS messages of a channel, by ID: a line each, and one for each that is missing.",
                lines,
                schemas.SdsLookup,
                _LINES,
            ),
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        stream(
            f"{API}/sds/causal-history",
            handlers.causal_history,
            Described(
                "causal_history",
                "POST",
                "What SDS messages depend on, every parent before its children: a line each, and"
                " one for each that is missing.",
                lines,
                schemas.CausalHistory,
                _LINES,
            ),
            largest_bytes=MAX_REQUEST_BYTES,
        ),
        page(
            f"{API}/status",
            reads.status,
            Described(
                "status", "GET", "What the node holds.", [schemas.Status], schemas.NoParameters
            ),
            always=True,
        ),
    ]


class _File:
    """Serves what is the same for everybody; it needs no token."""

    def __init__(self, body: bytes, content_type: bytes, headers: Sequence[Header]) -> None:
        self._body = body
        self._content_type = content_type
        self._headers = list(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await requests.answer_anybody(
            exchange, exchange.respond(self._body, self._content_type, headers=self._headers)
        )


class _Nowhere:
    """Answers what has no path here."""

    def __init__(self, paths: Sequence[str]) -> None:
        sentence = f"nothing is served here: there are {', '.join(paths)}"
        self._failure = HttpFailure(404, "NOT_FOUND", sentence)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        await requests.answer_anybody(exchange, requests.refuse(exchange, self._failure))
