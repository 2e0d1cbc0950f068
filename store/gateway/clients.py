"""Connections, queries and bytes of each client address."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from store.domain.quota import Bucket, QuotaExceededError
from store.gateway.faults import RefusalError
from store.gateway.limits import (
    CLIENT_QUERIES,
    MAX_CLIENT_UNREAD_BYTES,
    MAX_CLIENT_UNSENT_BYTES,
    MAX_REMEMBERED_ADDRESSES,
    MAX_UNREAD_BYTES,
    MAX_UNSENT_BYTES,
)

_FORGET_AT_ONCE: Final = 2
"""Addresses that are looked at for each new one, so that few stay that have no connection."""


class ByteBudget:
    """A number of bytes at a time, which also count in the budget that this one is a share of."""

    __slots__ = ("_limit_bytes", "_whole", "used_bytes")

    def __init__(self, limit_bytes: int, whole: ByteBudget | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._whole = whole
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count bytes; `give` must follow.

        Raises:
            RefusalError: There are too many.
        """
        if self.used_bytes + size_bytes > self._limit_bytes:
            raise RefusalError(
                "busy", "the gateway holds too many bytes: try again in a few seconds"
            )
        if self._whole is not None:
            self._whole.take(size_bytes)
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

    __slots__ = (
        *("_arrivals", "_requests", "connections", "criteria", "network", "queries", "unread"),
        "unsent",
    )

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
        self.queries = asyncio.Semaphore(CLIENT_QUERIES)
        self.unread = ByteBudget(MAX_CLIENT_UNREAD_BYTES, unread)
        self.unsent = ByteBudget(MAX_CLIENT_UNSENT_BYTES, unsent)
        self._arrivals = Bucket(new_connections_per_s, "new connections of an address")
        self._requests = Bucket(requests_per_s, "requests of an address")

    def arrive(self, now_ns: int) -> None:
        """Count a connection that begins.

        Raises:
            RefusalError: There are too many in this second.
        """
        charge(self._arrivals, now_ns, "connection_rate")

    def ask(self, now_ns: int) -> None:
        """Count a request.

        Raises:
            RefusalError: There are too many in this second.
        """
        charge(self._requests, now_ns, "request_rate")

    def at_rest(self, now_ns: int) -> bool:
        """Return True if forgetting the address changes nothing."""
        return self.connections == 0 and all(
            bucket.is_full(now_ns) for bucket in (self._arrivals, self._requests)
        )


class Clients:
    """The addresses of clients, in the order in which they were last looked at or connected."""

    def __init__(
        self, max_connections: int, new_connections_per_s: int, requests_per_s: int
    ) -> None:
        """Set the limits of one address."""
        self._max_connections = max_connections
        self._rates = new_connections_per_s, requests_per_s
        self._unread = ByteBudget(MAX_UNREAD_BYTES)
        self._unsent = ByteBudget(MAX_UNSENT_BYTES)
        self._known: OrderedDict[str, ClientAddress] = OrderedDict()

    def arrive(self, network: str, now_ns: int) -> ClientAddress:
        """Count a connection of an address; `leave` must follow.

        Raises:
            RefusalError: The address has too many, or opens them too fast.
        """
        client = self._known.get(network)
        if client is None:
            self._forget(now_ns)
            client = self._known[network] = ClientAddress(
                network, *self._rates, self._unread, self._unsent
            )
        self._known.move_to_end(network)
        if client.connections >= self._max_connections:
            raise RefusalError("connections_of_address", "too many connections from one address")
        client.arrive(now_ns)
        client.connections += 1
        return client

    def leave(self, client: ClientAddress) -> None:
        """Count the end of a connection."""
        assert client.connections > 0, "a connection ended that never began"
        client.connections -= 1

    def _forget(self, now_ns: int) -> None:
        """Forget addresses at rest; with too many, any without a connection."""
        for _ in range(min(_FORGET_AT_ONCE, len(self._known))):
            oldest = next(iter(self._known.values()))
            crowded = len(self._known) >= MAX_REMEMBERED_ADDRESSES
            if oldest.at_rest(now_ns) or (crowded and oldest.connections == 0):
                del self._known[oldest.network]
            else:
                # One that stays connected must not protect all that came after it.
                self._known.move_to_end(oldest.network)
