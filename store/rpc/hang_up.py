"""Closes connections that gRPC serves, which has no call for that itself.

gRPC keeps what it was given for a call until the caller takes it or its connection ends. The socket
is found among those of this process by the other end's address; gRPC finds it closed by the peer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Set
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_DESCRIPTORS: Final = Path("/dev/fd")


def hang_up(connections: Iterable[str]) -> int:
    """Close connections that gRPC calls ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``.

    How many were closed; the others have ended by themselves.
    """
    wanted = {end for end in map(_other_end, connections) if end is not None}
    # As a list: looking opens descriptors.
    return sum(_close(int(each.name), wanted) for each in list(_DESCRIPTORS.iterdir()))


def _other_end(connection: str) -> tuple[str, int] | None:
    kind, _, address = unquote(connection).partition(":")
    host, _, port = address.rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") else None


def _plain(host: str) -> str:
    """A host's address as text, always the same."""
    ip = ip_address(host.partition("%")[0])
    return str(ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else str(ip)


def _close(descriptor: int, wanted: Set[tuple[str, int]]) -> bool:
    """Shut a socket down if its other end is ``wanted``.

    It is looked at through a copy of the descriptor, which nobody else closes meanwhile.
    """
    with contextlib.suppress(OSError):
        copy = os.dup(descriptor)
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            return False
        with found:
            other = found.getpeername()
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if (_plain(other[0]), other[1]) in wanted:
                found.shutdown(socket.SHUT_RDWR)
                return True
    return False
