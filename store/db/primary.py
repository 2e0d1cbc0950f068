"""The server that takes the writes of a store, and the servers that must not.

A promotion begins a new timeline of Postgres, with a higher number: on one system identifier the
higher timeline is the newer one. Where timelines do not tell (the same number, a restored dump, a
server that does not say), commits do: a server that lacks a commit which another one has is not the
newer of the two. A commit is named by its position and its random token.

    first server --found fit--> serving --a newer server is found--> serving that one
    serving --its server is refused, no other is fit--> serving none

Every connection is admitted when it is made. Those to a server that was replaced are broken, and
what they were lent for fails as if the server had gone away: nothing that an older server has
committed is acknowledged any more.

Source: PostgreSQL manual, "Timelines"; "System Administration Functions", control data functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakSet

import psycopg
from psycopg import AsyncConnection, conninfo
from psycopg import errors as pg

from store.db.connection import Connection, fetch_row, fetch_rows, sever
from store.db.errors import HostRefusedError
from store.db.feed import is_served, newest
from store.db.statements import SQL
from store.domain.hub import Place

OLDER: Final = (
    "{host} is on timeline {found}, and this node has seen timeline {seen} of the same store: it is"
    " a former primary; stop it or make it a standby, and start the server that replaced it"
)
LACKING: Final = (
    "{host} lacks commit {position}, which this node has seen: it is an older copy of the store;"
    " stop it, or, if it was restored on purpose, run `storenode db accept` for each node"
)
OTHER_STORE: Final = "{host} holds another store: name the hosts of one store in the database URL"
REPLACED: Final = (
    "{host} takes writes beside {other}, which is newer: stop it or make it a standby of {other}"
)
UNDECIDED: Final = (
    "{host} takes writes beside {other}, and neither is the newer one: stop the one that is wrong"
)


@dataclass(frozen=True)
class SeenState:
    """A state of a store that a node has seen; ``place`` is its newest commit.

    ``system`` and ``timeline`` are 0 where the role may not read them.
    """

    store_id: bytes
    system: int
    timeline: int
    place: Place


@dataclass(frozen=True)
class DatabaseServer(SeenState):
    """A server that takes writes, as it describes itself; ``started`` is a time of Postgres."""

    host: str
    started: str

    @property
    def identity(self) -> tuple[int, int, str]:
        """The same for two names or connections only if they lead to one server."""
        return self.system, self.timeline, self.started


def order_of_timelines(one: SeenState, other: SeenState) -> int | None:
    """Return the difference of two timelines, positive if one is newer; None: not comparable."""
    if not one.system or one.system != other.system or not one.timeline or not other.timeline:
        return None
    return one.timeline - other.timeline


def refusal(server: DatabaseServer, seen: SeenState, *, holds: bool) -> str | None:
    """Return why a server must not be used after what was seen, or None.

    ``holds``: it has the commit that was seen.
    """
    if server.store_id != seen.store_id:
        return OTHER_STORE.format(host=server.host)
    order = order_of_timelines(server, seen)
    if order is not None and order < 0:
        return OLDER.format(host=server.host, found=server.timeline, seen=seen.timeline)
    if order or holds:
        return None
    return LACKING.format(host=server.host, position=seen.place[0])


PROBE_TIMEOUT_S: Final = 3.0
_UNREADABLE: Final = (pg.InsufficientPrivilege, pg.UndefinedFunction, pg.FeatureNotSupported)
_PARTS: Final = ("host", "hostaddr", "port")


@dataclass(slots=True)
class Probe:
    """A server that was found taking writes, and an open connection to it.

    ``lacks``: a commit that was seen and is not there, as far as that was looked at.
    """

    server: DatabaseServer
    connection: Connection
    lacks: Place | None = None

    async def is_refused_after(self, other: Probe) -> bool:
        """Return True if this server must not be used by who has seen the state of the other."""
        holds = await is_served(self.connection, other.server.place)
        return refusal(self.server, other.server, holds=holds) is not None


def hosts_of(url: str) -> list[dict[str, str]]:
    """Return the given host, address and port of each host of a connection string."""
    given = conninfo.conninfo_to_dict(url)
    lists = {part: str(given[part]).split(",") for part in _PARTS if given.get(part)}
    count = max((len(each) for each in lists.values()), default=1)
    # libpq: one port stands for all hosts.
    return [
        {part: each[min(number, len(each) - 1)] for part, each in lists.items()}
        for number in range(count)
    ]


def with_hosts(url: str, hosts: Sequence[dict[str, str]]) -> str:
    """Return the connection string with these hosts, in this order."""
    parts = {part: ",".join(each[part] for each in hosts) for part in hosts[0]}
    return conninfo.make_conninfo(url, **parts)


def label(host: dict[str, str]) -> str:
    """Return a host as errors name it, such as HOST:PORT."""
    # Several hosts may share a name, as that of a certificate, but no two an address.
    name = host.get("hostaddr") or host.get("host") or "the default host"
    return f"{name}:{host['port']}" if host.get("port") else name


def host_of(connection: Connection) -> str:
    """Return the host of a connection as errors name it."""
    info = connection.info
    return label({"host": info.host or info.hostaddr, "port": str(info.port)})


async def read_server(connection: Connection) -> DatabaseServer | None:
    """Return a server as it describes itself; None if it takes no writes, or has no store."""
    row = await fetch_row(connection, SQL.stores.read_server)
    if row is None:
        return None
    store_id, started = row
    system, timeline = await _timeline(connection)
    place = await newest(connection)
    return DatabaseServer(store_id, system, timeline, place, host_of(connection), started)


async def _timeline(connection: Connection) -> tuple[int, int]:
    try:
        ((system, timeline),) = await fetch_rows(connection, SQL.stores.read_timeline)
    except _UNREADABLE:
        return 0, 0
    return system, int(timeline, 16)


@asynccontextmanager
async def probed(url: str) -> AsyncIterator[dict[str, Probe]]:
    """Connect to the hosts of a URL that take writes and have a store; yield them by label."""
    found: dict[str, Probe] = {}

    # A primary that was made read-only, as before a switchover, is none that takes writes.
    if conninfo.conninfo_to_dict(url).get("target_session_attrs") == "primary":
        url = conninfo.make_conninfo(url, target_session_attrs="read-write")

    async def ask(host: dict[str, str]) -> None:
        probe = await _probe(with_hosts(url, [host]))
        if probe is not None:
            found[label(host)] = probe

    try:
        await asyncio.gather(*map(ask, hosts_of(url)))
        yield found
    finally:
        for probe in found.values():
            await _close(probe.connection)


async def _probe(url: str) -> Probe | None:
    """Ask one host; None if it is away, a standby, or holds no store."""
    connection: Connection | None = None
    server = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            connection = await AsyncConnection.connect(url, autocommit=True)
            server = await read_server(connection)
    except (psycopg.Error, OSError, TimeoutError):
        pass
    finally:
        if connection is not None and server is None:
            await _close(connection)
    return None if connection is None or server is None else Probe(server, connection)


async def _close(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()


GuardEvent = Callable[[str, Mapping[str, object]], None]
"""A callback for `timeline`, `timeline_not_kept`, `host_refused`, `host_cleared`, and, at the
start, `commits_lost`."""


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The result of `PrimaryGuard.choose`: the URL to connect by, and why hosts are refused.

    ``served``: a host that may be used takes writes.
    """

    url: str
    refused: Mapping[str, str]
    served: bool


class PrimaryGuard:
    """Admits connections to the newest server of a store; see the module."""

    def __init__(
        self,
        load: Callable[[bytes], SeenState | None],
        save: Callable[[SeenState], None],
        on_event: GuardEvent,
    ) -> None:
        """Guard a store.

        Args:
            load: Returns the newest state that was seen of a store, by its ID; None: there is none.
            save: Keeps it across restarts; raises `OSError` where that is impossible.
            on_event: Receives what happens.
        """
        self._load = load
        self._save = save
        self._on_event = on_event
        self._seen: SeenState | None = None
        self._newest: DatabaseServer | None = None
        self._kept: SeenState | None = None
        self._keeping = threading.Lock()
        self._current: DatabaseServer | None = None
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
            HostRefusedError: it may not.
        """
        server = await read_server(connection)
        if server is None:
            raise HostRefusedError("the server is a standby, or holds no store")
        probe = Probe(server, connection)
        reason = self._refused.get(server.identity) or await self._why_not(probe)
        if reason is not None:
            raise HostRefusedError(reason)
        self._adopt(probe)
        self._admitted.add(connection)

    def admits(self, connection: Connection) -> bool:
        """Return False if the connection leads to a server that is no longer used."""
        return connection in self._admitted

    async def _why_not(self, probe: Probe) -> str | None:
        """Judge a server by what was seen; again if that changes meanwhile."""
        server = probe.server
        while True:
            if self._current is not None and server.identity == self._current.identity:
                return None
            if self._seen is None:
                self._seen = self._load(server.store_id)
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
            lost = {"reached": probe.lacks[0], "newest": server.place[0]}
            self._on_event("commits_lost", lost)
        self._started = True
        before, self._current, self._newest = self._seen, server, None
        self._cut_off()
        self._seen = server
        if before is None or order_of_timelines(before, server) != 0:
            self.keep()
            fields = {"host": server.host, "timeline": server.timeline}
            self._on_event("timeline", {**fields, "before": before.timeline if before else None})

    def _cut_off(self) -> None:
        admitted, self._admitted = self._admitted, WeakSet()
        for connection in admitted:
            sever(connection)

    # Hosts

    async def choose(self, url: str) -> HostChoice:
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
        return HostChoice(with_hosts(url, used or hosts), reasons, served)

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
            is_behind = [await one.is_refused_after(other) for other in others]
            are_behind = [await other.is_refused_after(one) for other in others]
            if all(are_behind) and not any(is_behind):
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
            self._seen = replace(self._seen, place=settled.place)

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
            if seen is None or seen == self._kept:
                return
            try:
                self._save(seen)
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
