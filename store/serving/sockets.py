"""The connections of callers: their names, and the open sockets of this process.

gRPC shows a program no connection, and closes none for it. A connection that is shut down here
looks to gRPC as if its caller had gone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from store.observe.logging import get_logger

_LOG = get_logger("store.serving.sockets")

_DESCRIPTORS: Final = Path("/dev/fd")
INLINE_CONNECTIONS: Final = 16
"""The most connections whose bytes are read on the event loop: a thread takes longer."""

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
"""The socket option of TCP's state, None where the system is not Linux."""

_BYTES_RECEIVED: Final = struct.Struct("=128xQ")
"""``tcpi_bytes_received`` of Linux's ``struct tcp_info``, which is extended at its end only."""

Connection = tuple[int, str]
"""The port of a listener, and a name: a caller may connect to two of them from one port."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The host of a caller: its name for accounts and limits, and if it is this machine."""

    name: str
    loopback: bool


@lru_cache(maxsize=4_096)
def remote(address: str) -> Remote:
    """Parse the address that gRPC gives: ``ipv4:HOST:PORT``, ``ipv6:%5BHOST%5D:PORT``, ``unix:``.

    Of IPv6 the first 64 bits count: a host may have all the addresses behind them.
    """
    kind, _, rest = unquote(address).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return Remote(f"host {kind}", kind == "unix")
    host = rest.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        ip = ip_address(host)
    except ValueError:
        return Remote("host unknown", loopback=False)
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return Remote(f"host {ip.ipv4_mapped}", ip.ipv4_mapped.is_loopback)
        if not ip.is_loopback:
            return Remote(f"host {IPv6Address(int(ip) >> 64 << 64)}/64", loopback=False)
    return Remote(f"host {ip}", ip.is_loopback)


def connection_name(host: str, port: int) -> str:
    """Return the name of a connection as gRPC gives it, but without escapes."""
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    mapped = host.removeprefix("::ffff:")
    return f"ipv4:{mapped}:{port}" if "." in mapped else f"ipv6:[{host}]:{port}"


class AcceptedSocket(NamedTuple):
    """A connection over IP: its descriptor, this end's port, and the caller's address and port."""

    descriptor: int
    port: int
    caller: tuple[str, int]

    @property
    def name(self) -> str:
        """The name of the connection."""
        return connection_name(*self.caller)

    def duplicate(self) -> socket.socket:
        """Return a copy of the socket, which stays valid when gRPC closes its own.

        Raises:
            OSError: it is closed, or another connection by now.
        """
        copy = socket.socket(fileno=os.dup(self.descriptor))
        if (copy.getsockname()[1], copy.getpeername()[:2]) != (self.port, self.caller):
            copy.close()
            raise OSError("another connection has the descriptor")
        return copy

    def shut_down(self) -> None:
        """End the connection, unless it has ended by itself."""
        with suppress(OSError), self.duplicate() as copy:
            copy.shutdown(socket.SHUT_RDWR)

    def received_bytes(self) -> int | None:
        """Return the bytes that have come since the connection was made; None: it has ended."""
        assert _TCP_INFO is not None
        with suppress(OSError, struct.error), self.duplicate() as copy:
            info = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_RECEIVED.size)
            return int(_BYTES_RECEIVED.unpack(info)[0])
        return None


def accepted_sockets() -> list[AcceptedSocket]:
    """Return the connections over IP."""
    found = []
    for descriptor in [int(each.name) for each in _DESCRIPTORS.iterdir()]:
        with suppress(OSError):
            opened = socket.socket(fileno=descriptor)
            try:
                if opened.family in (socket.AF_INET, socket.AF_INET6):
                    port, caller = opened.getsockname()[1], opened.getpeername()[:2]
                    found.append(AcceptedSocket(descriptor, port, caller))
            finally:
                opened.detach()
    return found


def hang_up(names: Iterable[str]) -> None:
    """Close connections by the names that gRPC gives them, in a thread: there may be thousands."""
    if wanted := frozenset(map(unquote, names)):
        asyncio.get_running_loop().run_in_executor(None, _shut_down, wanted)


def _shut_down(names: Collection[str]) -> None:
    for each in accepted_sockets():
        if each.name in names:
            each.shut_down()


class ReceivedBytes:
    """The bytes that came over connections since they were made, as the kernel counts them.

    Bytes of TLS, HTTP/2 and headers are among them.
    """

    def __init__(self) -> None:
        self._open: dict[Connection, AcceptedSocket] = {}

    async def count(self, names: Iterable[Connection]) -> dict[Connection, int]:
        """Return the bytes of the open ones of these connections; of none but on Linux."""
        asked = () if _TCP_INFO is None else tuple(names)
        counts = self._count_known(asked) if len(asked) <= INLINE_CONNECTIONS else {}
        return counts if len(counts) == len(asked) else await asyncio.to_thread(self._count, asked)

    def _count(self, names: Sequence[Connection]) -> dict[Connection, int]:
        counts = self._count_known(names)
        if len(counts) < len(names):
            self._open = {(each.port, each.name): each for each in accepted_sockets()}
            counts = self._count_known(names)
        return counts

    def _count_known(self, names: Sequence[Connection]) -> dict[Connection, int]:
        sockets = [(name, self._open.get((name[0], unquote(name[1])))) for name in names]
        counts = [(name, each and each.received_bytes()) for name, each in sockets]
        return {name: number for name, number in counts if number is not None}


class ConnectionLimiter:
    """A limit on the connections of one host to some ports: the newest beyond it are closed.

    gRPC bounds the connections of a listener, not those of a host; all listeners count together.
    """

    def __init__(self, ports: Collection[int], per_host: int) -> None:
        self._ports = frozenset(ports)
        self._per_host = per_host
        self._rounds = 0
        self._seen: dict[AcceptedSocket, int] = {}

    async def enforce(self) -> None:
        """Close connections beyond the limit, in a thread; with few descriptors there are none."""
        if self._seen or sum(1 for _ in os.scandir(_DESCRIPTORS)) > self._per_host:
            await asyncio.to_thread(self.close_newest)

    def close_newest(self) -> None:
        """Close the connections of each host beyond its share, the newest first."""
        self._rounds += 1
        self._seen = {
            each: self._seen.get(each, self._rounds)
            for each in accepted_sockets()
            if each.port in self._ports
        }
        hosts: dict[str, list[AcceptedSocket]] = {}
        for each in sorted(self._seen, key=self._seen.__getitem__):
            hosts.setdefault(remote(each.name).name, []).append(each)
        for host, connections in hosts.items():
            excess = connections[self._per_host :]
            for each in excess:
                each.shut_down()
            if excess:
                _LOG.warning(
                    "connections_closed",
                    host=host,
                    connections=len(connections),
                    reason=f"at most {self._per_host} of one host: a quarter of --max-connections",
                )
