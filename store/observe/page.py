"""The files of the status page, as they are in `web/`, and what a browser may do with them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

PATH: Final = "/status"
DATA_PATH: Final = "/status.json"

_TYPES: Final = {
    "status.html": "text/html; charset=utf-8",
    "status.css": "text/css; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "status.svg": "image/svg+xml",
}

# Nothing but what this listener serves, no script or style inside the page, no frame around it.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)


def asset(path: str) -> tuple[bytes, str] | None:
    """Return content and type of the file behind a path of the page; None: there is none."""
    name = "status.html" if path == PATH else path.removeprefix("/")
    return _read(name) if name in _TYPES and path != "/status.html" else None


@cache
def _read(name: str) -> tuple[bytes, str]:
    return files("store.observe").joinpath("web", name).read_bytes(), _TYPES[name]
