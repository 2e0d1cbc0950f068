"""The page at ``/``: its files, as they are in ``web/``, and what a browser may do with them.

It holds no message itself and needs no token: what it shows it asks of ``/api/v1``, with the token
of whoever looks at it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

FILES: Final = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page.svg": ("page.svg", b"image/svg+xml"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
"""By path."""

# Nothing but what this listener serves, no script or style inside the page, no frame around it.
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = [
    (b"content-security-policy", _POLICY),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
]


def content(name: str) -> bytes:
    """What a file holds."""
    return files("store.http").joinpath("web", name).read_bytes()
