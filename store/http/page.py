"""The page at ``/``: its files, as they are in ``web/``, and what a browser may do with them.

It holds no message itself and needs no token: what it shows it asks of ``/api/v1``, with the token
of the one who looks at it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from store.observe.http import STATUS_HEADERS

FILES: Final = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/page.svg": ("page.svg", b"image/svg+xml"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
"""By path."""

HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in STATUS_HEADERS]


def content(name: str) -> bytes:
    """Read a file of the page."""
    return files("store.http").joinpath("web", name).read_bytes()
