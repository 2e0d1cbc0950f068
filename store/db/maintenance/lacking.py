"""Indexes that partitions of before an upgrade lack, built while nodes work.

They are built one by one, without a lock that anyone waits for (PostgreSQL manual, "CREATE INDEX",
"Building Indexes Concurrently"). What an interrupted build has left is not attached, and is built
again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql

from store.db.locks import set_lock_timeout
from store.db.schema.names import PROVEN_INDEX, SCHEMA, TOPIC_INDEX

Connection = AsyncConnection[Any]

LOCK_TIMEOUT_MS: Final = 250
"""How long readers may queue behind an entry in the catalog."""

_LACKING: Final = """
select t.relname::text from pg_inherits h join pg_class t on t.oid = h.inhrelid
where h.inhparent = %s::regclass and not h.inhdetachpending
  and not exists (select from pg_index i join pg_inherits x on x.inhrelid = i.indexrelid
                  where i.indrelid = t.oid and x.inhparent = to_regclass(%s))
order by 1 desc limit 1
"""
_EXISTS: Final = "select to_regclass(%s) is not null"
_SIZE: Final = """
select coalesce(sum(pg_relation_size(inhrelid)), 0)::bigint from pg_inherits
where inhparent = to_regclass(%s)
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An index of a partitioned table; a partition's is named after it, with ``suffix``."""

    table: LiteralString
    index: LiteralString
    suffix: LiteralString
    definition: LiteralString


BY_TOPIC: Final = Wanted("messages", TOPIC_INDEX, "topic_key", "(topic, ts, substr(hash, 1, 7))")
PROVEN: Final = Wanted("sds", PROVEN_INDEX, "proven", "(key) WHERE proof")


async def is_lacking(connection: Connection, wanted: Wanted) -> bool:
    """Whether a partition lacks an index."""
    return await _lacking(connection, wanted) is not None


async def build(connection: Connection, wanted: Wanted) -> int:
    """Build what partitions lack; the size in bytes of the index in all partitions.

    ``connection`` is in autocommit mode.

    Raises:
        psycopg.Error: the database did not serve, or a lock was not to be had in time
            (`LockNotAvailable`); what is built stays, and another call goes on.
    """
    if not await exists(connection, wanted.index):
        await _begin(connection, wanted)
    while (name := await _lacking(connection, wanted)) is not None:
        await _build(connection, wanted, name)
    return await size(connection, wanted.index)


async def exists(connection: Connection, index: str) -> bool:
    """Whether there is an index of ours with this name."""
    row = await (await connection.execute(_EXISTS, (named(index),))).fetchone()
    return row == (True,)


async def size(connection: Connection, index: str) -> int:
    """Bytes of an index in all partitions; 0 without it."""
    row = await (await connection.execute(_SIZE, (named(index),))).fetchone()
    return int(row[0]) if row else 0


async def run(connection: Connection, statement: LiteralString, *indexes: str) -> None:
    """Run a statement about some indexes, which it has as {}."""
    names = [sql.Identifier(SCHEMA, index) for index in indexes]
    await connection.execute(sql.SQL(statement).format(*names), prepare=False)


def named(relation: str) -> str:
    """A table or index of ours as Postgres reads it."""
    return f"{SCHEMA}.{relation}"


async def _begin(connection: Connection, wanted: Wanted) -> None:
    """Let new partitions have the index; those that are there still lack it."""
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        statement = sql.SQL("CREATE INDEX {} ON ONLY {} {}").format(
            sql.Identifier(wanted.index),
            sql.Identifier(SCHEMA, wanted.table),
            sql.SQL(wanted.definition),
        )
        await connection.execute(statement, prepare=False)


async def _build(connection: Connection, wanted: Wanted, partition: str) -> None:
    index = f"{partition}_{wanted.suffix}_idx"
    await run(connection, "DROP INDEX CONCURRENTLY IF EXISTS {}", index)
    statement = sql.SQL("CREATE INDEX CONCURRENTLY {} ON {} {}").format(
        sql.Identifier(index), sql.Identifier(SCHEMA, partition), sql.SQL(wanted.definition)
    )
    await connection.execute(statement, prepare=False)
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        await run(connection, "ALTER INDEX {} ATTACH PARTITION {}", wanted.index, index)


async def _lacking(connection: Connection, wanted: Wanted) -> str | None:
    given = named(wanted.table), named(wanted.index)
    row = await (await connection.execute(_LACKING, given)).fetchone()
    return row[0] if row else None
