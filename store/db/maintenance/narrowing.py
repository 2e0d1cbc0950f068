"""The index by topic of before schema 0011 makes room for the narrower one, while nodes work.

Partitions that were there at the upgrade get theirs one by one, without a lock that anyone waits
for (PostgreSQL manual, "CREATE INDEX", "Building Indexes Concurrently"). The old index goes when
none lacks it. What an interrupted build has left is not attached, and is built again.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql

from store.db.locks import set_lock_timeout
from store.db.schema.names import FINE_TABLE, SCHEMA, TOPIC_INDEX, WIDE_TOPIC_INDEX

Connection = AsyncConnection[Any]

LOCK_TIMEOUT_MS: Final = 250
"""How long readers may queue behind an entry in the catalog."""

COLUMNS: Final[LiteralString] = "(topic, ts, substr(hash, 1, 7))"

_EXISTS: Final = "select to_regclass(%s) is not null"
_LACKING: Final = """
select t.relname::text from pg_inherits h join pg_class t on t.oid = h.inhrelid
where h.inhparent = 'storenode.messages'::regclass and not h.inhdetachpending
  and not exists (select from pg_index i join pg_inherits x on x.inhrelid = i.indexrelid
                  where i.indrelid = t.oid and x.inhparent = to_regclass(%s))
order by 1 desc limit 1
"""
_SIZE: Final = """
select coalesce(sum(pg_relation_size(inhrelid)), 0)::bigint from pg_inherits
where inhparent = to_regclass(%s)
"""


async def is_pending(connection: Connection) -> bool:
    """Whether the old index is there."""
    return await _exists(connection, WIDE_TOPIC_INDEX)


async def narrow(connection: Connection) -> tuple[int, int]:
    """Build what partitions lack and drop the old index; sizes in bytes of both.

    ``connection`` is in autocommit mode.

    Raises:
        psycopg.Error: the database did not serve, or a lock was not to be had in time
            (`LockNotAvailable`); what is built stays, and another call goes on.
    """
    if not await _exists(connection, TOPIC_INDEX):
        await _begin(connection)
    while (name := await _lacking(connection)) is not None:
        await _build(connection, name)
    sizes = await _size(connection, WIDE_TOPIC_INDEX), await _size(connection, TOPIC_INDEX)
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        await _run(connection, "DROP INDEX IF EXISTS {}", WIDE_TOPIC_INDEX)
    return sizes


async def _begin(connection: Connection) -> None:
    """Let new partitions have the new index; those that are there still lack it."""
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        statement = sql.SQL("CREATE INDEX {} ON ONLY {} {}").format(
            sql.Identifier(TOPIC_INDEX), sql.Identifier(SCHEMA, FINE_TABLE), sql.SQL(COLUMNS)
        )
        await connection.execute(statement, prepare=False)


async def _build(connection: Connection, partition: str) -> None:
    index = f"{partition}_topic_key_idx"
    await _run(connection, "DROP INDEX CONCURRENTLY IF EXISTS {}", index)
    statement = sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} {}").format(
        sql.Identifier(index), sql.Identifier(SCHEMA, partition), sql.SQL(COLUMNS)
    )
    await connection.execute(statement, prepare=False)
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        await _run(connection, "ALTER INDEX {} ATTACH PARTITION {}", TOPIC_INDEX, index)


async def _exists(connection: Connection, index: str) -> bool:
    row = await (await connection.execute(_EXISTS, (_named(index),))).fetchone()
    return row == (True,)


async def _lacking(connection: Connection) -> str | None:
    row = await (await connection.execute(_LACKING, (_named(TOPIC_INDEX),))).fetchone()
    return row[0] if row else None


async def _size(connection: Connection, index: str) -> int:
    row = await (await connection.execute(_SIZE, (_named(index),))).fetchone()
    return int(row[0]) if row else 0


def _named(index: str) -> str:
    return f"{SCHEMA}.{index}"


async def _run(connection: Connection, statement: LiteralString, *indexes: str) -> None:
    names = [sql.Identifier(SCHEMA, index) for index in indexes]
    await connection.execute(sql.SQL(statement).format(*names), prepare=False)
