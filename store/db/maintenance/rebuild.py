"""Rebuilding indexes of partitions that are over and whose pages are half empty.

Messages of many topics come in turn, so pages of an index by topic split in the middle, and stay so
when a partition gets nothing more: a rebuilt index takes a little over half the room. It is built
beside the old one, which locks out neither readers nor writers (PostgreSQL manual, "REINDEX",
"Rebuilding Indexes Concurrently").
"""

from __future__ import annotations

from collections.abc import Collection
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


async def find_bloated(
    connection: Connection, now_ns: int, tried: Collection[str] = ()
) -> tuple[str, int] | None:
    """Return name and size of the index that wastes the most; None: none is worth a rebuild.

    ``tried`` are left out.
    """
    if connection.info.server_version in CORRUPTING:
        return None
    catalog = await read_catalog(connection)
    over = {each.oid for each in catalog.partitions if each.bounds.high <= now_ns - SETTLED_NS}
    cursor = await connection.execute(SQL.partitions.read_indexes, (MIN_BYTES,))
    bloated = [
        (size - rows * ENTRY_BYTES[root], name, size)
        for root, name, table, rows, size in await cursor.fetchall()
        if root in ENTRY_BYTES and table in over and size >= WASTE * rows * ENTRY_BYTES[root]
    ]
    _, *worst = max((each for each in bloated if each[1] not in tried), default=(0,))
    return (worst[0], worst[1]) if worst else None


async def rebuild(connection: Connection, name: str) -> int | None:
    """Rebuild an index, and return its size then in bytes; None: it is in use for too long.

    What another rebuild has left goes first. ``connection`` is in autocommit mode and has no lock
    timeout of its own.

    Raises:
        psycopg.Error: the database did not serve; the old index is as it was.
    """
    await connection.execute(SQL.partitions.set_session_lock_timeout, (f"{LOCK_TIMEOUT_MS}ms",))
    cursor = await connection.execute(SQL.partitions.read_leftovers)
    # Concurrently too: readers would queue behind a lock that waits for a transaction to end.
    work = [("DROP INDEX CONCURRENTLY IF EXISTS {}", left) for (left,) in await cursor.fetchall()]
    # Hardly anything comes between the entries any more: no room need be left for it.
    work += [("ALTER INDEX {} SET (fillfactor = 100)", name)]
    work += [("REINDEX INDEX CONCURRENTLY {}", name)]
    try:
        for statement, index in work:
            text = sql.SQL(statement).format(sql.Identifier(SCHEMA, index))
            await connection.execute(text, prepare=False)
    except (errors.LockNotAvailable, errors.UndefinedTable, errors.UndefinedObject):
        # A transaction that lasts, so that another index is next; or retention was quicker.
        return None
    cursor = await connection.execute(SQL.partitions.read_index_size, (f"{SCHEMA}.{name}",))
    ((size,),) = await cursor.fetchall()
    return int(size or 0)
