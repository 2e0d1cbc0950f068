"""Checks of web pages: by the name that they call the node by, and by their own origin.

A browser sends requests for any page that it shows, also to nodes that only its own machine can
reach. Two rules keep other sites out, and CORS lets in those that the operator names:

1. The header ``Host`` must be an address, ``localhost``, or a name that is allowed. A page whose
   own name was made to lead to the node (DNS rebinding) is of the node's origin to the browser, so
   that only this name distinguishes it.
2. A request must be of the node's own origin, of one that is allowed, or of no browser.
   ``Sec-Fetch-Site`` is believed first, since no page can set it; of another site, it lets a page
   be opened and nothing else be read, such as an image, whose cost is the node's. Browsers send it
   to HTTPS and loopback alone: without it, the ``Origin`` of a request with a body is compared with
   ``Host``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from store.http.call import HttpError, HttpExchange, refuse
from store.observe.http import ANY, is_served, name_of
from store.observe.metrics import Metrics
from store.serving.failure import Code

_ASKED_HEADERS: Final = "authorization content-type last-event-id x-request-id"
_ASKED_BY_CONNECT: Final = "connect-protocol-version connect-timeout-ms"


@dataclass(frozen=True, slots=True)
class Sites:
    """The web pages and names that the operator allows.

    ``origins``: those whose pages may call. ``hosts``: names by which the node may be called,
    besides addresses and ``localhost``. `ANY` in either allows all.
    """

    origins: Sequence[str] = ()
    hosts: Collection[str] = ()

    def wrong(self, method: str, headers: Headers) -> HttpError | None:
        """Return the error of a request that is refused before its caller is identified."""
        host = headers.get("host", "")
        if not is_served(host, self.hosts):
            return HttpError(
                421,
                Code.PERMISSION_DENIED,
                f"this node is not called {name_of(host)[:100]!r}: call it by its address, or start"
                " it with --http-allow-host and this name",
            )
        if self._is_allowed(method, host, headers):
            return None
        return HttpError(
            403,
            Code.PERMISSION_DENIED,
            "a web page of another site sent this request: start the node with"
            " --http-allow-origin and the page's origin",
        )

    def _is_allowed(self, method: str, host: str, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self.origins or origin in self.origins or site in ("same-origin", "none"):
            return True
        if site is not None:
            return method in ("GET", "HEAD") and headers.get("sec-fetch-dest") == "document"
        is_own = origin is None or origin.partition("://")[2] == host.lower()
        return is_own or method in ("GET", "HEAD", "OPTIONS")


def check_sites(app: ASGIApp, sites: Sites, metrics: Metrics) -> ASGIApp:
    """Return an application that refuses other sites, and adds the headers of CORS to the rest."""
    if sites.origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(sites.origins),
            allow_methods=["GET", "POST"],
            allow_headers=f"{_ASKED_HEADERS} {_ASKED_BY_CONNECT}".split(),
            expose_headers=["retry-after", "x-request-id"],
            max_age=600,
        )

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if failure := sites.wrong(scope["method"], Headers(scope=scope)):
            metrics.http_requests.labels("refused", str(failure.status)).inc()
            await refuse(HttpExchange(scope, receive, send), failure)
        else:
            await app(scope, receive, send)

    return serve
