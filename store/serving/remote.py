"""Where a call comes from: the name of its host, as accounts and limits know it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import unquote

_CACHED_ADDRESSES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a call comes from: a name for the accounts, and whether it is this machine."""

    name: str
    loopback: bool


@lru_cache(maxsize=_CACHED_ADDRESSES)
def remote(address: str) -> Remote:
    """Read the address that gRPC gives: ``ipv4:HOST:PORT``, ``ipv6:%5BHOST%5D:PORT``, ``unix:``.

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
    """The name of a connection in the form of gRPC, which `remote` reads."""
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
