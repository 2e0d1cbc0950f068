"""Addresses to listen on, as multiaddrs: TCP, WebSocket, WebSocket over TLS."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from store.serving.sockets import connection_name, remote
from storenode.message.varint import varint

_CODES: Final = {"ip4": 4, "tcp": 6, "ip6": 41, "tls": 448, "ws": 477}
_MAX_PORT: Final = 65_535
_PEER_HOSTS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")
_ENDINGS: Final = {(): (), ("ws",): ("ws",), ("wss",): ("tls", "ws"), ("tls", "ws"): ("tls", "ws")}
"""The suffixes that may follow the port, and their meanings."""

_EXAMPLE: Final = "write one such as /ip4/0.0.0.0/tcp/60000 or /ip4/0.0.0.0/tcp/8000/ws"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on; ``over_tcp`` is one of ``()``, ``("ws",)`` and ``("tls", "ws")``."""

    host: str
    port: int
    over_tcp: tuple[str, ...]

    def __str__(self) -> str:
        family = "ip6" if ":" in self.host else "ip4"
        return "/".join(("", family, self.host, "tcp", str(self.port), *self.over_tcp))

    def encoded(self) -> bytes:
        """Encode the multiaddr in binary."""
        ip = ipaddress.ip_address(self.host)
        parts = [varint(_CODES[f"ip{ip.version}"]), ip.packed]
        parts += [varint(_CODES["tcp"]), self.port.to_bytes(2, "big")]
        return b"".join((*parts, *(varint(_CODES[each]) for each in self.over_tcp)))


def parse_listen_address(text: str) -> ListenAddress:
    """Parse a multiaddr; raise ValueError for none, or one of a transport that is not served."""
    parts = text.strip().rstrip("/").split("/")
    if len(parts) < 5 or parts[0] or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        raise ValueError(f"{text!r} is not a multiaddr of TCP: {_EXAMPLE}")
    ending = tuple(parts[5:])
    if ending not in _ENDINGS:
        raise ValueError(f"{text!r} names a transport that the gateway does not have: {_EXAMPLE}")
    try:
        # A zone is no part of a multiaddr.
        family = ipaddress.IPv4Address if parts[1] == "ip4" else ipaddress.IPv6Address
        ip = family(parts[2].replace("%", " "))
    except ValueError as error:
        raise ValueError(f"{parts[2]!r} in {text!r} is no address of {parts[1]}") from error
    if not (parts[4].isascii() and parts[4].isdigit()) or int(parts[4]) > _MAX_PORT:
        raise ValueError(f"the port of {text!r} is not a number from 0 to {_MAX_PORT}")
    return ListenAddress(str(ip), int(parts[4]), _ENDINGS[ending])


@dataclass(frozen=True, slots=True)
class PeerMultiaddr:
    """The address and the peer ID of a libp2p peer that listens for TCP.

    ``host`` is empty for a peer that connects by itself.
    """

    host: str
    port: int
    peer_id: str

    def __str__(self) -> str:
        if not self.host:
            return f"/p2p/{self.peer_id}"
        return f"{self.host}:{self.port}/p2p/{self.peer_id}"


def parse_peer_address(text: str, *, may_be_id: bool = False) -> PeerMultiaddr:
    """Parse the multiaddr of a peer, which may be its ID alone if ``may_be_id``.

    Raises:
        ValueError: It is malformed, or names a transport other than TCP.
    """
    match text.strip().rstrip("/").split("/"):
        case ["", kind, host, "tcp", port, "p2p", key] if kind in _PEER_HOSTS and key.isalnum():
            with suppress(ValueError):
                host.encode("idna") if kind.startswith("dns") else ipaddress.ip_address(host)
                if host and port.isdecimal() and 0 < int(port) <= _MAX_PORT:
                    return PeerMultiaddr(host, int(port), key)
        case ["", "p2p", peer_id] if may_be_id and peer_id.isalnum():
            return PeerMultiaddr("", 0, peer_id)
    raise ValueError(
        f"{text!r} is not the multiaddr of a peer: write one such as"
        " /ip4/192.0.2.1/tcp/60000/p2p/16Uiu2HAm..."
    )


def network_of(host: str) -> str:
    """Return the network whose clients share limits: an IPv4 address, or a /64 of IPv6."""
    return remote(connection_name(host, 0)).name.removeprefix("host ")
