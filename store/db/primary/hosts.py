"""The hosts of a database URL: asked one by one, and put into another order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import AsyncConnection, conninfo
from psycopg import errors as pg

from store.db.commits.pages import newest
from store.db.pool import Connection
from store.db.primary.judging import Server
from store.domain.hub import Place

PROBE_TIMEOUT_S: Final = 3.0
MAX_HOSTS: Final = 32
"""More hosts than that in one URL are not looked at one by one."""

_STORE: Final = """
select uuid_send(store_id), extract(epoch from pg_postmaster_start_time())::text
from storenode.store where not pg_is_in_recovery()
"""
_TIMELINE: Final = """
select (select system_identifier from pg_control_system()),
       left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
"""
_UNREADABLE: Final = (pg.InsufficientPrivilege, pg.UndefinedFunction, pg.FeatureNotSupported)
_PARTS: Final = ("host", "hostaddr", "port")


@dataclass(slots=True)
class Probe:
    """A server that was found taking writes, and an open connection to it.

    ``lacks``: a commit that was seen and is not there, as far as that was looked at.
    """

    server: Server
    connection: Connection
    lacks: Place | None = None


def hosts_of(url: str) -> list[dict[str, str]]:
    """Host, address and port of each host of a connection string, as far as they are given."""
    given = conninfo.conninfo_to_dict(url)
    lists = {part: str(given[part]).split(",") for part in _PARTS if given.get(part)}
    count = max((len(each) for each in lists.values()), default=1)
    # libpq: one port stands for all hosts.
    return [
        {part: each[min(number, len(each) - 1)] for part, each in lists.items()}
        for number in range(count)
    ]


def with_hosts(url: str, hosts: Sequence[dict[str, str]]) -> str:
    """The connection string with these hosts, in this order."""
    parts = {part: ",".join(each[part] for each in hosts) for part in hosts[0]}
    return conninfo.make_conninfo(url, **parts)


def label(host: dict[str, str]) -> str:
    """HOST:PORT, as errors name it."""
    name = host.get("host") or host.get("hostaddr") or "the default host"
    return f"{name}:{host['port']}" if host.get("port") else name


async def read_server(connection: Connection) -> Server | None:
    """What a server says of itself; None if it takes no writes, or holds nothing."""
    row = await (await connection.execute(_STORE, binary=True)).fetchone()
    if row is None:
        return None
    store_id, started = row
    system, timeline = await _timeline(connection)
    info = connection.info
    host = label({"host": info.host or info.hostaddr, "port": str(info.port)})
    head = await newest(connection)
    return Server(host, bytes(store_id), system, timeline, str(started), head)  # type: ignore[call-overload]


async def _timeline(connection: Connection) -> tuple[int, int]:
    try:
        row = await (await connection.execute(_TIMELINE)).fetchone()
    except _UNREADABLE:
        return 0, 0
    assert row is not None
    return int(str(row[0])), int(str(row[1]), 16)


@asynccontextmanager
async def probed(url: str) -> AsyncIterator[dict[str, Probe]]:
    """The hosts of a URL that take writes and hold a store, by label; connected in the block."""
    found: dict[str, Probe] = {}

    # A primary that was made read-only, as before a switchover, is none that takes writes.
    if conninfo.conninfo_to_dict(url).get("target_session_attrs") == "primary":
        url = conninfo.make_conninfo(url, target_session_attrs="read-write")

    async def ask(host: dict[str, str]) -> None:
        probe = await _probe(with_hosts(url, [host]))
        if probe is not None:
            found[label(host)] = probe

    try:
        await asyncio.gather(*map(ask, hosts_of(url)[:MAX_HOSTS]))
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
