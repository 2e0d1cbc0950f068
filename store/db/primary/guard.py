"""Keeps a node from working on an older state of its store than one that it has seen.

    first server --found fit--> serving --a newer server is found--> serving that one
    serving --its server is refused, no other is fit--> serving none

Every connection is admitted when it is made. Those to a server that was replaced are broken, and
what they were lent for fails as if the server had gone away: nothing that an older server has
committed is acknowledged any more.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol
from weakref import WeakSet

import psycopg

from store.db.commits.pages import is_served, newest
from store.db.pool import Connection, HostRefused
from store.db.primary.hosts import Probe, hosts_of, label, probed, read_server, with_hosts
from store.db.primary.judging import (
    OTHER_STORE,
    REPLACED,
    UNDECIDED,
    Seen,
    Server,
    is_newer,
    order_of_timelines,
    refusal,
    seen_on,
)

GuardEvent = Callable[[str, Mapping[str, object]], None]
"""Told what happens: `timeline`, `timeline_not_kept`, `host_refused`, `host_cleared`, and, at the
start, `commits_lost`."""


class Memory(Protocol):
    """What a node remembers of a store across restarts."""

    def load(self, store_id: bytes) -> Seen | None:
        """The newest state that was seen; None if there is none."""

    def save(self, seen: Seen) -> None:
        """Keep it; `OSError` where that is impossible."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What `PrimaryGuard.choose` found: the URL to connect by, and why hosts are refused.

    ``served``: a host that may be used takes writes.
    """

    url: str
    refused: Mapping[str, str]
    served: bool


class PrimaryGuard:
    """Admits connections to the newest server of a store; see the module."""

    def __init__(self, memory: Memory | None, on_event: GuardEvent) -> None:
        """Without a memory only what this object has met counts."""
        self._memory = memory
        self._on_event = on_event
        self._seen: Seen | None = None
        self._newest: Server | None = None
        self._kept: Seen | None = None
        self._keeping = threading.Lock()
        self._current: Server | None = None
        self._started = False
        self._refused: dict[tuple[int, int, str], str] = {}
        self._reasons: dict[str, str] = {}
        self._admitted: WeakSet[Connection] = WeakSet()

    @property
    def timeline(self) -> int:
        """Timeline of the server that is used; 0 if it is unknown."""
        return self._current.timeline if self._current else 0

    # Connections

    async def admit(self, connection: Connection) -> None:
        """Take a new connection, if its server may be used.

        Raises:
            HostRefused: it may not.
        """
        server = await read_server(connection)
        if server is None:
            raise HostRefused("the server is a standby, or holds no store")
        probe = Probe(server, connection)
        reason = self._refused.get(server.identity) or await self._why_not(probe)
        if reason is not None:
            raise HostRefused(reason)
        self._adopt(probe)
        self._admitted.add(connection)

    def admits(self, connection: Connection) -> bool:
        """False if the connection leads to a server that is no longer used."""
        return connection in self._admitted

    async def _why_not(self, probe: Probe) -> str | None:
        """Judge a server by what was seen; again if that changes meanwhile."""
        server = probe.server
        while True:
            if self._current is not None and server.identity == self._current.identity:
                return None
            if self._seen is None and self._memory is not None:
                self._seen = self._memory.load(server.store_id)
            seen = self._seen
            if seen is None:
                return None
            holds = await is_served(probe.connection, seen.place)
            if seen is self._seen:
                probe.lacks = None if holds else seen.place
                return refusal(server, seen, holds=holds)

    def _adopt(self, probe: Probe) -> None:
        """Use a server from now on; what is connected to another one is cut off."""
        server = probe.server
        if self._current is not None and server.identity == self._current.identity:
            return
        if probe.lacks is not None and not self._started:
            # Later the feed tells of it.
            lost = {"reached": probe.lacks[0], "newest": server.head[0]}
            self._on_event("commits_lost", lost)
        self._started = True
        before, self._current, self._newest = self._seen, server, None
        self._cut_off()
        self._seen = seen_on(server)
        if before is None or order_of_timelines(before, self._seen) != 0:
            self.keep()
            fields = {"host": server.host, "timeline": server.timeline}
            self._on_event("timeline", {**fields, "before": before.timeline if before else None})

    def _cut_off(self) -> None:
        admitted, self._admitted = self._admitted, WeakSet()
        for connection in admitted:
            _break(connection)

    # Hosts

    async def choose(self, url: str) -> Choice:
        """Ask every host of a URL, and decide which one is used.

        Raises:
            psycopg.Error: a server went away while it was asked.
        """
        async with probed(url) as found:
            reasons = await self._judge(found)
        self._tell(reasons)
        hosts = hosts_of(url)
        used = [each for each in hosts if label(each) not in reasons]
        current = self._current.identity if self._current else None
        serving = {name for name, each in found.items() if each.server.identity == current}
        used.sort(key=lambda each: label(each) not in serving)
        served = bool(serving - reasons.keys())
        return Choice(with_hosts(url, used or hosts), reasons, served)

    async def _judge(self, found: Mapping[str, Probe]) -> dict[str, str]:
        while True:
            seen = self._seen
            judged = {host: await self._why_not(probe) for host, probe in found.items()}
            fit = {
                probe.server.identity: probe
                for host, probe in found.items()
                if judged[host] is None
            }
            best = await self._fittest([*fit.values()])
            if seen is self._seen:  # else a connection has met another server meanwhile
                break
        for host, probe in found.items():
            if judged[host] is None and probe is not best:
                judged[host] = _beside(host, probe, best, fit)
        reasons = {host: reason for host, reason in judged.items() if reason is not None}
        self._refused = {found[host].server.identity: reasons[host] for host in reasons}
        if best is not None:
            self._advance(best)
        elif self._current is not None and self._current.identity in self._refused:
            self._current = None
            self._cut_off()
        return reasons

    async def _fittest(self, fit: list[Probe]) -> Probe | None:
        for one in fit:
            others = [other for other in fit if other is not one]
            if all([await _is_newer(one, other) for other in others]):
                return one
        current = self._current.identity if self._current else None
        tied = [one for one in fit if one.server.identity == current]
        return tied[0] if tied else None

    def _advance(self, probe: Probe) -> None:
        """Note the newest commit of the server that is used.

        One look late: with `synchronous_commit = off` a server that crashed comes back without
        its last moments, and is the same server.
        """
        self._adopt(probe)
        settled, self._newest = self._newest, probe.server
        if settled is not None and self._seen is not None:
            self._seen = replace(self._seen, place=settled.head)

    def _tell(self, reasons: dict[str, str]) -> None:
        for host in reasons.keys() - self._reasons.keys():
            self._on_event("host_refused", {"host": host, "reason": reasons[host]})
        for host in self._reasons.keys() - reasons.keys():
            self._on_event("host_cleared", {"host": host})
        self._reasons = reasons

    # Memory

    async def reach(self, connection: Connection) -> None:
        """Note the newest commit, when no others will be seen."""
        place = await newest(connection)
        if self._seen is not None and self.admits(connection):
            self._seen = replace(self._seen, place=place)

    def keep(self) -> None:
        """Persist what was seen, if it is news; blocks."""
        with self._keeping:
            seen = self._seen
            if seen is None or seen == self._kept or self._memory is None:
                return
            try:
                self._memory.save(seen)
            except OSError as error:
                self._on_event("timeline_not_kept", {"reason": str(error)})
            else:
                self._kept = seen


def _beside(
    host: str, probe: Probe, best: Probe | None, fit: Mapping[tuple[int, int, str], Probe]
) -> str | None:
    identity = probe.server.identity
    if best is not None and best.server.identity == identity:
        return None
    other = best or next(each for each in fit.values() if each.server.identity != identity)
    if other.server.store_id != probe.server.store_id:
        return OTHER_STORE.format(host=host)
    return (REPLACED if best else UNDECIDED).format(host=host, other=other.server.host)


async def _is_newer(one: Probe, other: Probe) -> bool:
    return is_newer(
        one.server,
        other.server,
        holds_its_head=await is_served(one.connection, other.server.head),
        is_held_by_it=await is_served(other.connection, one.server.head),
    )


def _break(connection: Connection) -> None:
    """Let whatever a connection waits for fail at once; its user closes it."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as shared,
    ):
        shared.shutdown(socket.SHUT_RDWR)
