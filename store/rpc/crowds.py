"""Connections of one host: of more than its share the newest are closed.

gRPC bounds the connections of a listener, not those of a host, and shows a program no connection
without a call. The process's own open sockets say who is connected, so they are looked through.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

from store.observe.logging import get_logger
from store.rpc.identity import remote

_LOG = get_logger("store.rpc.crowds")
_DESCRIPTORS: Final = Path("/dev/fd")


class _Accepted(NamedTuple):
    """A connection: its descriptor, and the address and port of the caller."""

    descriptor: int
    caller: tuple[str, int]


class Crowds:
    """Looks at connections to some ports now and then, and closes those past ``per_host``."""

    def __init__(self, ports: Collection[int], per_host: int) -> None:
        self._ports = frozenset(ports)
        self._per_host = per_host
        self._looks = 0
        self._seen: dict[_Accepted, int] = {}

    async def look(self) -> None:
        """Do it once, beside the event loop."""
        await asyncio.to_thread(self.close_newest)

    def close_newest(self) -> None:
        """Close what hosts have beyond their share, the newest first."""
        self._looks += 1
        self._seen = {each: self._seen.get(each, self._looks) for each in self._accepted()}
        hosts: dict[str, list[_Accepted]] = {}
        for each in sorted(self._seen, key=self._seen.__getitem__):
            hosts.setdefault(_host(each), []).append(each)
        for host, connections in hosts.items():
            excess = connections[self._per_host :]
            for each in excess:
                _shut_down(each)
            if excess:
                _LOG.warning(
                    "connections_closed",
                    host=host,
                    connections=len(connections),
                    reason=f"at most {self._per_host} of one host: --max-connections-per-host",
                )

    def _accepted(self) -> Iterator[_Accepted]:
        names = [each.name for each in _DESCRIPTORS.iterdir()]
        if len(names) <= self._per_host:
            return
        for name in names:
            with suppress(OSError, ValueError):
                descriptor = int(name)
                local, caller = _ends(descriptor)
                if local[1] in self._ports:
                    yield _Accepted(descriptor, caller)


def _ends(descriptor: int) -> tuple[tuple[str, int], tuple[str, int]]:
    """The addresses of a connection's two ends.

    Raises:
        OSError: The descriptor is closed, or no connection over IP.
    """
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError("not over IP")
        return connection.getsockname()[:2], connection.getpeername()[:2]
    finally:
        connection.detach()


def _host(connection: _Accepted) -> str:
    host, port = connection.caller
    return remote(f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}").name


def _shut_down(connection: _Accepted) -> None:
    """End a connection under gRPC, which sees that its caller has gone."""
    # A copy of the descriptor stays what it is when gRPC closes its own.
    with suppress(OSError), closing(socket.socket(fileno=os.dup(connection.descriptor))) as copy:
        if copy.getpeername()[:2] == connection.caller:
            copy.shutdown(socket.SHUT_RDWR)
