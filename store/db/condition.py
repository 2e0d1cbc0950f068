"""The size and the condition of a database, and what is done about indexes.

Reading either takes milliseconds, however much is stored: messages over time are read from buckets.

Indexes of partitions that are over are rebuilt where their pages are half empty. Messages of many
topics come in turn, so pages of an index by topic split in the middle, and stay so when a partition
gets nothing more: a rebuilt index takes a little over half the room. It is built beside the old
one, which locks out neither readers nor writers (PostgreSQL manual, "REINDEX", "Rebuilding Indexes
Concurrently").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, LiteralString

from psycopg import errors, sql

from store.db.buckets import is_pending
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.partitions import read_catalog
from store.db.primary import host_of
from store.db.statements import COARSE_TABLES, FINE_TABLE, SCHEMA, SQL
from store.domain.partitioning import DAY_NS, HOUR_NS, UNBOUNDED_LOW, Cover
from storenode.message.limits import NS_PER_S


@dataclass(frozen=True, slots=True)
class TableCondition:
    """A table with all its partitions: bytes with indexes, and the planner's counts of rows."""

    size_bytes: int
    live_rows: int
    dead_rows: int


@dataclass(frozen=True, slots=True)
class StoreCondition:
    """The condition of a database.

    ``host``: the server that was asked, ``standby`` if it takes no writes. ``partitions`` counts
    them by table. ``covered_until_ns``: up to there, from now on, no timestamp lacks a partition.

    ``unarchived_hours`` are over, and no archive was seen to hold them as they are now;
    ``oldest_unarchived_ns`` is where the first of them begins, and ``archived_until_ns`` where the
    newest hour ends that was marked as archived: 0 if there is none.

    ``standbys`` are connected for replication. ``standby_lag_bytes``: how much of the log each has
    not replayed, by the name that it gave (of several with one name, the furthest behind); empty
    where this role may not know. ``slots_in_use``, ``slots_unused``: the replication slots of
    standbys that are connected, and of others.
    """

    host: str
    standby: bool
    size_bytes: int
    tables: dict[str, TableCondition]
    partitions: dict[str, int]
    unarchived_hours: int
    oldest_unarchived_ns: int
    archived_until_ns: int
    covered_until_ns: int
    standbys: int
    standby_lag_bytes: dict[str, int]
    slots_in_use: int
    slots_unused: int


async def read_condition(connection: Connection, now_ns: int) -> StoreCondition:
    """Read it; raises `psycopg.Error`."""
    ((standby, size_bytes),) = await fetch_rows(connection, SQL.partitions.read_server)
    tables = {
        name: TableCondition(size, live, dead)
        for name, size, live, dead in await fetch_rows(connection, SQL.partitions.read_tables)
    }
    catalog = await read_catalog(connection)
    rows = await fetch_rows(connection, SQL.partitions.read_standbys)
    lags: dict[str, int] = {}
    for name, lag_bytes in rows:
        if lag_bytes is not None:
            lags[name] = max(lag_bytes, lags.get(name, 0))
    ((in_use, unused),) = await fetch_rows(connection, SQL.partitions.read_slots)
    given = {"low": UNBOUNDED_LOW, "high": now_ns - HOUR_NS + 1}
    ((hours, oldest_ns, newest_ns),) = await fetch_rows(
        connection, SQL.buckets.read_archive_state, given
    )
    return StoreCondition(
        host=host_of(connection),
        standby=standby,
        size_bytes=size_bytes,
        tables=tables,
        partitions=Counter(each.table for each in catalog.partitions),
        unarchived_hours=hours,
        oldest_unarchived_ns=oldest_ns,
        archived_until_ns=newest_ns + HOUR_NS if newest_ns else 0,
        covered_until_ns=min(
            Cover(catalog.bounds(table)).reaches(now_ns) for table in (FINE_TABLE, *COARSE_TABLES)
        ),
        standbys=len(rows),
        standby_lag_bytes=lags,
        slots_in_use=in_use,
        slots_unused=unused,
    )


_MESSAGES: Final[LiteralString] = f"select {SQL.buckets.messages}"


@dataclass(frozen=True, slots=True)
class Part:
    """A kind of file of a table and all of its partitions.

    ``part`` is empty for the rows, the name of an index, ``out of line`` for long values, or
    ``maps`` for what Postgres notes of free space and visibility.
    """

    table: str
    part: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """The disk space of a database.

    ``messages`` is what the summaries count; ``catalog_bytes`` is all of the database that is no
    table of the store.
    """

    messages: int
    total_bytes: int
    parts: tuple[Part, ...]
    catalog_bytes: int


async def read_sizes(connection: Connection) -> Sizes:
    """Read the sizes of all tables of the store and of their indexes.

    Raises:
        psycopg.Error: the database refused.
    """
    parts = tuple(Part(*row) for row in await fetch_rows(connection, SQL.partitions.read_files))
    ((messages,),) = await fetch_rows(connection, _MESSAGES)
    ((_, database_bytes),) = await fetch_rows(connection, SQL.partitions.read_server)
    total = sum(part.size_bytes for part in parts)
    return Sizes(messages, total, parts, max(database_bytes - total, 0))


# Indexes

SETTLED_NS: Final = 24 * 3_600 * NS_PER_S
"""The time after its end in which a partition is left alone, since messages may arrive late."""

LOCK_TIMEOUT_MS: Final = 10_000
"""The time to wait for older transactions, each time that all of them have to end."""


async def find_bloated(
    connection: Connection, now_ns: int, tried: Collection[str] = ()
) -> str | None:
    """Return the name of the index that wastes the most; None: none is worth a rebuild.

    ``tried`` are left out.
    """
    catalog = await read_catalog(connection)
    over = [each.oid for each in catalog.partitions if each.bounds.high <= now_ns - SETTLED_NS]
    row = await fetch_row(connection, SQL.partitions.find_bloated, ([*tried], over))
    return None if row is None else str(row[0])


async def rebuild(connection: Connection, name: str) -> bool:
    """Rebuild an index; False: it is in use for too long.

    What another rebuild has left goes first. ``connection`` is in autocommit mode and has no lock
    timeout of its own.

    Raises:
        psycopg.Error: the database did not serve; the old index is as it was.
    """
    await connection.execute(SQL.partitions.set_session_lock_timeout, (f"{LOCK_TIMEOUT_MS}ms",))
    leftovers = await fetch_rows(connection, SQL.partitions.read_leftovers)
    # Concurrently too: readers would queue behind a lock that waits for a transaction to end.
    work = [("DROP INDEX CONCURRENTLY IF EXISTS {}", left) for (left,) in leftovers]
    # Hardly anything comes between the entries any more: no room need be left for it.
    work += [("ALTER INDEX {} SET (fillfactor = 100)", name)]
    work += [("REINDEX INDEX CONCURRENTLY {}", name)]
    try:
        for statement, index in work:
            text = sql.SQL(statement).format(sql.Identifier(SCHEMA, index))
            await connection.execute(text, prepare=False)
    except (errors.LockNotAvailable, errors.UndefinedTable, errors.UndefinedObject):
        # A transaction that lasts, so that another index is next; or retention was quicker.
        return False
    return True


# Messages over time

TIMELINE_DAYS: Final = 30
"""Days that are shown by the hour, today included."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Messages by hour: `TIMELINE_DAYS` times 24 counts from ``hours_start_ns`` on, a midnight.

    ``complete``: False while the newest commits are left out, which are not folded yet.
    """

    hours_start_ns: int
    hours: list[int]
    complete: bool


async def read_timeline(connection: Connection, now_ns: int) -> Timeline:
    """Return the counts of the last days, in UTC; raises `psycopg.Error`."""
    start_ns = max(0, now_ns - now_ns % DAY_NS - (TIMELINE_DAYS - 1) * DAY_NS)
    # First: messages that are folded meanwhile are counted.
    complete = not await is_pending(connection)
    given = start_ns, start_ns + TIMELINE_DAYS * DAY_NS - HOUR_NS
    rows = await fetch_rows(connection, SQL.buckets.count_hourly, given)
    return Timeline(start_ns, [count for (count,) in rows], complete)
