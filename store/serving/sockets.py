"""The connections of callers, as open sockets of this process.

gRPC shows a program no connection, and closes none for it. One that is shut down here looks to gRPC
as if its caller had gone.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

_DESCRIPTORS: Final = Path("/dev/fd")

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
"""None where the system is not Linux."""

_BYTES_RECEIVED: Final = struct.Struct("=128xQ")
"""``tcpi_bytes_received`` of Linux's ``struct tcp_info``, which is extended at its end only."""


class Accepted(NamedTuple):
    """A connection over IP: its descriptor, this end's port, and the caller's address and port."""

    descriptor: int
    port: int
    caller: tuple[str, int]


def descriptors() -> list[int]:
    """What the process has open, one more included by which it looks."""
    return [int(each.name) for each in _DESCRIPTORS.iterdir()]


def connections(among: Iterable[int]) -> Iterator[Accepted]:
    """Those descriptors that are connections over IP."""
    for descriptor in among:
        with suppress(OSError):
            yield _looked_at(descriptor)


def shut_down(connection: Accepted) -> bool:
    """End a connection; False where it has ended by itself."""
    with suppress(OSError), _copy(connection) as copy:
        if copy.getpeername()[:2] == connection.caller:
            copy.shutdown(socket.SHUT_RDWR)
            return True
    return False


def hang_up(named: Iterable[str]) -> int:
    """Close connections that gRPC calls ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``.

    How many were closed; the others have ended by themselves.
    """
    wanted = {end for end in map(other_end, named) if end is not None}
    return sum(shut_down(each) for each in connections(descriptors()) if end_of(each) in wanted)


def other_end(connection: str) -> tuple[str, int] | None:
    """The caller's address and port in what gRPC calls ``ipv4:HOST:PORT`` or ``ipv6:[HOST]:PORT``;
    None for anything else.
    """
    kind, _, address = unquote(connection).partition(":")
    host, _, port = address.rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") else None


class Arrivals:
    """How much has come over connections since they were made, as the kernel counts it.

    Bytes of TLS, HTTP/2 and headers are among them.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], Accepted] = {}

    def count(self, wanted: Iterable[str]) -> dict[str, int]:
        """Bytes of those connections, named as gRPC does, that are open; none but on Linux."""
        if _TCP_INFO is None:
            return {}
        ends = {name: end for name in wanted if (end := other_end(name)) is not None}
        found = {name: self._received(end) for name, end in ends.items()}
        if None in found.values():
            self._open = {end_of(each): each for each in connections(descriptors())}
            found = {name: self._received(end) for name, end in ends.items()}
        return {name: number for name, number in found.items() if number is not None}

    def _received(self, end: tuple[str, int]) -> int | None:
        connection = self._open.get(end)
        if connection is None:
            return None
        with suppress(OSError, struct.error), _copy(connection) as copy:
            if copy.getpeername()[:2] == connection.caller:
                assert _TCP_INFO is not None
                told = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_RECEIVED.size)
                received: int = _BYTES_RECEIVED.unpack(told)[0]
                return received
        return None


def end_of(connection: Accepted) -> tuple[str, int]:
    """The caller's address and port, written as `other_end` does."""
    return _plain(connection.caller[0]), connection.caller[1]


def _plain(host: str) -> str:
    """A host's address as text, always the same."""
    ip = ip_address(host.partition("%")[0])
    return str(ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else str(ip)


def _copy(connection: Accepted) -> socket.socket:
    """A copy of the descriptor, which stays what it is when gRPC closes its own.

    Raises:
        OSError: it is closed, or something else by now.
    """
    copy = os.dup(connection.descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _looked_at(descriptor: int) -> Accepted:
    """Look at a descriptor without taking it over.

    Raises:
        OSError: it is closed, or no connection over IP.
    """
    found = socket.socket(fileno=descriptor)
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError("not over IP")
        return Accepted(descriptor, found.getsockname()[1], found.getpeername()[:2])
    finally:
        found.detach()
