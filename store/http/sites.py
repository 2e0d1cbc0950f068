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

from store.http.connect import ASKED_HEADERS
from store.http.connections import HeaderList, HttpError, HttpExchange
from store.observe.http import ANY, is_served, name_of
from store.serving.failure import Code

CORS_MAX_AGE_S: Final = 600
"""How long a browser may keep what a preflight request has told it."""

_ASKED_HEADERS: Final = ("authorization", "content-type", "last-event-id", "x-request-id")
PREFLIGHT_HEADERS: Final = (
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", ", ".join((*_ASKED_HEADERS, *ASKED_HEADERS)).encode()),
    (b"access-control-max-age", b"%d" % CORS_MAX_AGE_S),
)
"""The answer to a browser that asks what a page of an allowed origin may send."""


@dataclass(frozen=True, slots=True)
class Sites:
    """The web pages and names that the operator allows.

    ``origins``: those whose pages may call. ``hosts``: names by which the node may be called,
    besides addresses and ``localhost``. `ANY` in either allows all.
    """

    origins: Sequence[str] = ()
    hosts: Collection[str] = ()

    def wrong(self, exchange: HttpExchange) -> HttpError | None:
        """Return the error of a request that is refused before its caller is identified."""
        host = exchange.header("host")
        if not is_served(host, self.hosts):
            return HttpError(
                421,
                Code.PERMISSION_DENIED,
                f"this node is not called {name_of(host)[:100]!r}: call it by its address, or start"
                " it with --http-allow-host and this name",
            )
        if self._is_allowed(exchange, host):
            return None
        return HttpError(
            403,
            Code.PERMISSION_DENIED,
            "a web page of another site sent this request: start the node with"
            " --http-allow-origin and the page's origin",
        )

    def _is_allowed(self, exchange: HttpExchange, host: str) -> bool:
        method, origin = exchange.method, exchange.header("origin")
        site = exchange.header("sec-fetch-site")
        if ANY in self.origins or origin in self.origins or site in ("same-origin", "none"):
            return True
        if site:
            is_document = exchange.header("sec-fetch-dest") == "document"
            return method in ("GET", "HEAD") and is_document
        is_own = not origin or origin.partition("://")[2] == host.lower()
        return is_own or method in ("GET", "HEAD", "OPTIONS")

    def cors_headers(self, exchange: HttpExchange) -> HeaderList:
        """Return the headers by which a browser lets pages of the allowed origins read answers."""
        if not self.origins:
            return ()
        vary, origin = (b"vary", b"Origin"), exchange.header("origin")
        if ANY in self.origins:
            shown = ANY
        elif origin in self.origins:
            shown = origin
        else:
            return (vary,)
        return (
            vary,
            (b"access-control-allow-origin", shown.encode("latin-1")),
            (b"access-control-expose-headers", b"retry-after, x-request-id"),
        )
