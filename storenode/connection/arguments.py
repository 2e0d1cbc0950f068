"""Checks of arguments that several calls take."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from ipaddress import IPv6Address, ip_address
from typing import Final, ParamSpec, TypeVar

from storenode.common.errors import ArgumentError
from storenode.message.limits import MAX_CACHED_TOPICS
from storenode.message.topics import is_content_topic

_P = ParamSpec("_P")
_T = TypeVar("_T")

_MAX_PORT: Final = 65_535
_ADDRESS: Final = re.compile(r"(?:\[(?P<ip6>.+)\]|(?P<host>[^][:\s\0]+)):(?P<port>[0-9]{1,5})")
_log = logging.getLogger("storenode")


def is_loopback(host: str) -> bool:
    """Return True if the host can only be this machine: ``localhost`` or a loopback address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT`` or ``[IPV6]:PORT`` into host and port, which is 0 to 65535.

    Raises:
        ValueError: It is neither.
    """
    match = _ADDRESS.fullmatch(text)
    with suppress(ValueError):
        if match is not None and int(match["port"]) <= _MAX_PORT:
            host = match["host"] or str(IPv6Address(match["ip6"]))
            return host.encode("idna").decode(), int(match["port"])  # as a resolver encodes it
    raise ValueError(
        f"{text!r} is not HOST:PORT: write an address such as 127.0.0.1:7420 or [::1]:7420"
    )


def check_bytes(name: str, value: object, hint: str) -> None:
    """Refuse an argument that is not bytes; ``hint`` says how to make them of a text."""
    if not isinstance(value, bytes):
        advice = f": use {hint}" if isinstance(value, str) else ""
        raise ArgumentError(f"The {name} is {type(value).__name__}, not bytes{advice}.")


def check_text(name: str, value: object) -> None:
    """Refuse an argument that is no text, or one that UTF-8 cannot carry."""
    if not isinstance(value, str):
        raise ArgumentError(f"The {name} {value!r} is {type(value).__name__}, not str.")
    if not value.isascii() and value != value.encode(errors="ignore").decode():
        raise ArgumentError(f"The {name} {value!r} holds what UTF-8 cannot carry.")


def check_kind(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Refuse an argument of another type; ``wanted`` says what to give."""
    if not isinstance(value, kinds):
        raise ArgumentError(f"{name} is {value!r}: give {wanted}.")


def refusing(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that builds a request, and refuses what does not fit a field of it."""

    @wraps(call)
    def checked(*values: _P.args, **options: _P.kwargs) -> _T:
        try:
            return call(*values, **options)
        except ArgumentError:
            raise
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"An argument of {call.__name__} does not fit: {error}.") from None

    return checked


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def check_content_topic(topic: str) -> None:
    """Refuse a topic that is no text; log a warning, once, if Waku nodes cannot place it."""
    check_text("content topic", topic)
    if topic and not is_content_topic(topic):
        _log.warning(
            "The content topic %r is not of the form /APPLICATION/VERSION/NAME/ENCODING, by which "
            "Waku nodes choose a shard: check that it is the one meant.",
            topic,
        )
