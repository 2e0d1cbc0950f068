"""Rebuilding indexes of partitions that are over and whose pages are half empty.

Messages of many topics come in turn, so pages of an index by topic split in the middle, and stay so
when a partition gets nothing more: a rebuilt index takes a little over half the room. It is built
beside the old one, which locks out neither readers nor writers (PostgreSQL manual, "REINDEX",
"Rebuilding Indexes Concurrently").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection, errors, sql

from store.db.schema.names import SCHEMA
from store.db.schema.partitions import read_catalog
from store.db.statements import SQL
from storenode.message.limits import NS_PER_S

Connection = AsyncConnection[Any]

SETTLED_NS: Final = 24 * 3_600 * NS_PER_S
"""How long after its end a partition is left alone: most of what comes late has come by then."""

MIN_BYTES: Final = 1 << 20
"""Smaller indexes are not worth it."""

WASTE: Final = 1.16
"""An index is rebuilt that takes so many times the room that its rows need. What Postgres builds by
its default, with a tenth of each page free, takes 1.15 times as much."""

LOCK_TIMEOUT_MS: Final = 10_000
"""How long older transactions are waited for, each time that all of them have to end."""

ENTRY_BYTES: Final = {
    "messages_topic_idx": 44,
    "messages_pkey": 60,
    "hashes_key_idx": 20,
    "sds_channel_idx": 44,
    "sds_pkey": 76,
}
"""Of an entry with its line pointer, aligned, by index (PostgreSQL manual, "Database Page
Layout")."""

CORRUPTING: Final = range(140_000, 140_004)
"""Releases whose concurrent builds may lose entries (PostgreSQL 14.4, release notes)."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An index that was built anew: its name, and its size in bytes before and after."""

    index: str
    before_bytes: int
    after_bytes: int


class Rebuilder:
    """Rebuilds an index at a time, each once in the life of the process at most."""

    def __init__(self) -> None:
        self._tried: set[str] = set()

    async def is_due(self, connection: Connection, now_ns: int) -> bool:
        """Return True if `rebuild` would do anything."""
        if await _leftovers(connection):
            return True
        return await self._most_wasteful(connection, now_ns) is not None

    async def rebuild(self, connection: Connection, now_ns: int) -> Rebuilt | None:
        """Rebuild the index that wastes the most; None: there is none, or it is in use too long.

        ``connection`` is in autocommit mode and has no lock timeout of its own.

        Raises:
            psycopg.Error: the database did not serve; the old index is as it was.
        """
        await connection.execute(SQL.partitions.set_session_lock_timeout, (f"{LOCK_TIMEOUT_MS}ms",))
        try:
            await _drop_leftovers(connection)
            return await self._rebuild(connection, now_ns)
        except (errors.LockNotAvailable, errors.UndefinedTable, errors.UndefinedObject):
            # A transaction that lasts, so that another index is next; or retention was quicker.
            return None
        finally:
            if not connection.closed:
                await connection.execute(SQL.partitions.set_session_lock_timeout, ("0",))

    async def _rebuild(self, connection: Connection, now_ns: int) -> Rebuilt | None:
        wasteful = await self._most_wasteful(connection, now_ns)
        if wasteful is None:
            return None
        name, before_bytes = wasteful
        self._tried.add(name)
        # Hardly anything comes between the entries any more: no room need be left for it.
        for statement in ("ALTER INDEX {} SET (fillfactor = 100)", "REINDEX INDEX CONCURRENTLY {}"):
            text = sql.SQL(statement).format(sql.Identifier(SCHEMA, name))
            await connection.execute(text, prepare=False)
        index = f"{SCHEMA}.{name}"
        cursor = await connection.execute(SQL.partitions.read_index_size, (index,))
        row = await cursor.fetchone()
        return Rebuilt(name, before_bytes, row[0] or 0) if row else None

    async def _most_wasteful(self, connection: Connection, now_ns: int) -> tuple[str, int] | None:
        """Name and size of an index."""
        if connection.info.server_version in CORRUPTING:
            return None
        catalog = await read_catalog(connection)
        over = {each.oid for each in catalog.partitions if each.bounds.high <= now_ns - SETTLED_NS}
        worst, found = 0.0, None
        cursor = await connection.execute(SQL.partitions.read_indexes, (MIN_BYTES,))
        for root, name, table, rows, size in await cursor.fetchall():
            if root not in ENTRY_BYTES or table not in over or name in self._tried:
                continue
            needed = rows * ENTRY_BYTES[root]
            if size >= WASTE * needed and size - needed > worst:
                worst, found = size - needed, (name, size)
        return found


async def _leftovers(connection: Connection) -> list[str]:
    return [
        name
        for (name,) in await (await connection.execute(SQL.partitions.read_leftovers)).fetchall()
    ]


async def _drop_leftovers(connection: Connection) -> None:
    # Concurrently too: readers would queue behind a lock that waits for a transaction to end.
    for name in await _leftovers(connection):
        index = sql.Identifier(SCHEMA, name)
        statement = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(index)
        await connection.execute(statement, prepare=False)
