"""Connections, queries and bytes of each client address."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakValueDictionary

from store.domain.quota import Bucket, QuotaExceededError
from store.gateway import limits
from store.gateway.faults import RefusalError
from storenode.message.limits import NS_PER_S

_RATES_NS: Final = 2 * NS_PER_S
"""The time after a connection began or ended in which its address may exceed its rates."""


class ByteBudget:
    """A number of bytes at a time, which also count in the budget that this one is a share of."""

    __slots__ = ("_limit_bytes", "_whole", "used_bytes")

    def __init__(self, limit_bytes: int, whole: ByteBudget | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._whole = whole
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes, which `give` must follow; raise RefusalError if there are too many.

        A share leaves as many bytes free as it has then, so that a few do not take the whole.
        """
        limit_bytes, whole = self._limit_bytes, self._whole
        if whole is not None:
            limit_bytes = min(limit_bytes, whole._limit_bytes - whole.used_bytes - size_bytes)
        if self.used_bytes + size_bytes > limit_bytes:
            raise RefusalError("busy", "the gateway holds too many bytes: try again later")
        if whole is not None:
            whole.take(size_bytes)
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Count bytes as given back."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, "more bytes were given back than taken"
        if self._whole is not None:
            self._whole.give(size_bytes)


def charge(rate: Bucket, now_ns: int, reason: str) -> None:
    """Count one in a rate; raise RefusalError above it."""
    try:
        rate.take(1, now_ns)
    except QuotaExceededError as error:
        raise RefusalError(reason, str(error)) from None


class ClientAddress:
    """An address with its limits: an IPv4 address, or a /64 of IPv6."""

    def __init__(
        self,
        network: str,
        new_connections_per_s: int,
        requests_per_s: int,
        unread: ByteBudget,
        unsent: ByteBudget,
    ) -> None:
        self.network = network
        self.connections = 0
        self.criteria = 0
        self.queries = asyncio.Semaphore(limits.CLIENT_QUERIES)
        self.unread = ByteBudget(limits.MAX_CLIENT_UNREAD_BYTES, unread)
        self.unsent = ByteBudget(limits.MAX_CLIENT_UNSENT_BYTES, unsent)
        self.arrivals = Bucket(new_connections_per_s, "new connections of an address")
        self._requests = Bucket(requests_per_s, "requests of an address")

    def ask(self, now_ns: int) -> None:
        """Count a request; raise RefusalError if there are too many in this second."""
        charge(self._requests, now_ns, "request_rate")


class Clients:
    """The addresses of clients: those that are connected, or were a moment ago."""

    def __init__(
        self, max_connections: int, new_connections_per_s: int, requests_per_s: int
    ) -> None:
        """Set the limits of one address."""
        self._max_connections = max_connections
        self._rates = new_connections_per_s, requests_per_s
        self._unread = ByteBudget(limits.MAX_UNREAD_BYTES)
        self._unsent = ByteBudget(limits.MAX_UNSENT_BYTES)
        self._known: WeakValueDictionary[str, ClientAddress] = WeakValueDictionary()
        self._recent: deque[tuple[int, ClientAddress]] = deque(
            maxlen=limits.MAX_REMEMBERED_ADDRESSES
        )

    def arrive(self, network: str, now_ns: int) -> ClientAddress:
        """Count a connection of an address; `leave` must follow.

        Raises:
            RefusalError: The address has too many, or opens them too fast.
        """
        client = self._known.get(network)
        if client is None:
            client = ClientAddress(network, *self._rates, self._unread, self._unsent)
            self._known[network] = client
        self._remember(client, now_ns)
        if client.connections >= self._max_connections:
            raise RefusalError("connections_of_address", "too many connections from one address")
        charge(client.arrivals, now_ns, "connection_rate")
        client.connections += 1
        return client

    def leave(self, client: ClientAddress, now_ns: int) -> None:
        """Count the end of a connection."""
        assert client.connections > 0, "a connection ended that never began"
        client.connections -= 1
        self._remember(client, now_ns)

    def _remember(self, client: ClientAddress, now_ns: int) -> None:
        while self._recent and self._recent[0][0] < now_ns - _RATES_NS:
            self._recent.popleft()
        self._recent.append((now_ns, client))
