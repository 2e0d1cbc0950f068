"""Rows for tests of what holds them: well-formed enough for constraints, meaning nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import AsyncConnection

from store.db.partitions import read_catalog
from store.domain.partitioning import DAY_NS
from tests.support.polling import until

NOW = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()) * 1_000_000_000
"""Midday of a Friday."""

TODAY = NOW // DAY_NS * DAY_NS
MONTH_NS = 30 * DAY_NS
Connection = AsyncConnection[Any]

_STATISTICS_IN_MEMORY = 150_000
"""Release since which statistics can be had at once; before, a process collects them."""

_MESSAGE = """
insert into storenode.messages
values (%(ts)s, %(batch)s, gen_random_uuid(), %(hash)s, '', '', %(data)s, '')
"""
_HASH = """
insert into storenode.hashes
select ('x' || encode(substr(%(hash)s::bytea, 1, 8), 'hex'))::bit(64)::bigint, %(ts)s
"""
_TOPIC = "insert into storenode.topics values (gen_random_uuid(), %(ts)s, 'p', 'c')"
_SDS = """
insert into storenode.sds values (gen_random_uuid(), gen_random_uuid(), %(ts)s, %(hash)s, 'c', 'm',
                                  '', 1, '{}', '{}', '{}', false)
"""


async def insert(
    connection: Connection, timestamps: Iterable[int], size_bytes: int = 1, batch: int = 1
) -> None:
    """Insert one row per timestamp in each of the four tables that are partitioned by time."""
    for ts in timestamps:
        given = {"ts": ts, "hash": ts.to_bytes(32, "big"), "data": bytes(size_bytes)}
        given["batch"] = batch
        for statement in (_MESSAGE, _HASH, _TOPIC, _SDS):
            await connection.execute(statement, given)


async def commit(connection: Connection, position: int, max_ts: int, batch: int = 1) -> None:
    """Insert a row of commits."""
    await connection.execute(
        "insert into storenode.commits"
        " (position, batch, token, messages, min_ts, max_ts, source, summary, claims)"
        " values (%s, %s, 1, 1, 1, %s, 'client', '', '')",
        (position, batch, max_ts),
    )


async def values(connection: Connection, statement: str) -> list[Any]:
    """Return the first column of what a query returns."""
    cursor = await connection.execute(statement)
    return [row[0] for row in await cursor.fetchall()]


async def names(connection: Connection, table: str) -> list[str]:
    """Return the names of a table's partitions, ascending."""
    catalog = await read_catalog(connection)
    return sorted(each.name for each in catalog.partitions if each.table == table)


async def horizon(connection: Connection) -> int:
    """Return the horizon in nanoseconds."""
    return (await read_catalog(connection, with_sizes=True)).horizon_ns


async def opened(url: str) -> Connection:
    """Open a connection in autocommit mode."""
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


async def until_some(connection: Connection, statement: str, *parameters: object) -> None:
    """Wait until a count is not 0."""

    async def counted() -> object:
        cursor = await connection.execute(statement.encode(), parameters)
        return (await cursor.fetchone() or (0,))[0]

    await until(counted)


async def counter_of(connection: Connection, counter: str, table: str) -> int:
    """Return a counter of the statistics, over a table or all that begin with its name."""
    statement = (
        f"select coalesce(sum({counter}), 0)::bigint from pg_stat_user_tables"
        f" where schemaname = 'storenode' and relname like '{table}%'"
    )
    (total,) = await values(connection, statement)
    return int(total)


async def counted(connection: Connection, counter: str, table: str, least: int) -> None:
    """Wait until what this connection did has reached a counter, and so all others as well."""
    if connection.info.server_version >= _STATISTICS_IN_MEMORY:
        await connection.execute("select pg_stat_force_next_flush()")

    async def reached() -> bool:
        return await counter_of(connection, counter, table) >= least

    await until(reached)
