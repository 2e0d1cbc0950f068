"""Connections of one host: of more than its share the newest are closed.

gRPC bounds the connections of a listener, not those of a host; all listeners count together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from store.observe.logging import get_logger
from store.serving.remote import connection_name, remote
from store.serving.sockets import Accepted, connections, descriptors, shut_down

_LOG = get_logger("store.serving.crowds")


class Crowds:
    """Looks at connections to some ports now and then, and closes those past ``per_host``."""

    def __init__(self, ports: Collection[int], per_host: int) -> None:
        self._ports = frozenset(ports)
        self._per_host = per_host
        self._looks = 0
        self._seen: dict[Accepted, int] = {}

    async def look(self) -> None:
        """Do it once, beside the event loop."""
        await asyncio.to_thread(self.close_newest)

    def close_newest(self) -> None:
        """Close what hosts have beyond their share, the newest first."""
        self._looks += 1
        self._seen = {each: self._seen.get(each, self._looks) for each in self._accepted()}
        hosts: dict[str, list[Accepted]] = {}
        for each in sorted(self._seen, key=self._seen.__getitem__):
            hosts.setdefault(_host(each), []).append(each)
        for host, its in hosts.items():
            excess = its[self._per_host :]
            for each in excess:
                shut_down(each)
            if excess:
                _LOG.warning(
                    "connections_closed",
                    host=host,
                    connections=len(its),
                    reason=f"at most {self._per_host} of one host: a quarter of --max-connections",
                )

    def _accepted(self) -> list[Accepted]:
        among = descriptors()
        if len(among) <= self._per_host:
            return []
        return [each for each in connections(among) if each.port in self._ports]


def _host(connection: Accepted) -> str:
    host, port = connection.caller
    return remote(connection_name(host, port)).name
