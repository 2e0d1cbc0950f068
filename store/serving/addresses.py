"""Addresses that listeners are bound to, and why one cannot be."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass


class BindError(Exception):
    """An address that cannot be listened on; one sentence that names the option."""


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """The value of an option; ``host`` is a name or an IP address without brackets."""

    option: str
    host: str
    port: int

    def with_port(self, port: int) -> str:
        """Return HOST:PORT, with brackets around an IPv6 address."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def __str__(self) -> str:
        return self.with_port(self.port)


def require_free(where: ListenerAddress) -> None:
    """Find out, before anything is started, whether an address can be bound.

    Raises:
        BindError: It cannot.
    """
    if where.port and _obstacle(where.host, where.port):
        raise bind_error(where)


def bind_error(where: ListenerAddress) -> BindError:
    """Explain why an address cannot be bound; the reason is found by trying with a plain socket."""
    reason = _obstacle(where.host, where.port) or "it was in use a moment ago"
    return BindError(
        f"{where.option} {where} cannot be listened on ({reason}): stop what uses it, or"
        f" give another address."
    )


def _obstacle(host: str, port: int) -> str | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        return error.strerror or str(error)
    with contextlib.closing(socket.socket(family, kind, protocol)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return None
