"""The names by which a listener may be called over HTTP in clear.

A web page can have its own name lead to any address once it is loaded (DNS rebinding). To the
browser it is of the origin of the listener then, so that the header ``Host`` alone distinguishes
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

ANY: Final = "*"
_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:@\[\]]+))(?::[0-9]*)?")


def is_served(host: str, allowed: Collection[str]) -> bool:
    """Return True if a header ``Host`` is an address, ``localhost``, or a name that is allowed.

    `ANY` in ``allowed`` allows all.
    """
    if ANY in allowed:
        return True
    name = name_of(host)
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return name in allowed or _is_address(name)


def name_of(host: str) -> str:
    """Return the name or address of ``HOST`` or ``HOST:PORT``, as compared; else all of it."""
    found = _HOST.fullmatch(host)
    return host if found is None else (found[1] or found[2]).lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
