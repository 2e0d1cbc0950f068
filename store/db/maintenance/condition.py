"""The size and the condition of a database, from the catalog and from counters.

Reading the condition takes milliseconds, however much is stored. Statistics for the planner are
kept up with bulk loads here: autovacuum comes by once a minute and has a bounded number of workers;
until then a partition that has just been filled looks empty, and a plan made for an empty table can
take a second instead of a tenth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql

from store.db.maintenance.retention import ArchiveState, read_archive_state
from store.db.primary import label
from store.db.schema.names import COARSE_TABLES, FINE_TABLE, SCHEMA
from store.db.schema.partitions import read_catalog
from store.db.statements import SQL
from store.domain.partitioning import Cover


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
    archive: ArchiveState
    covered_until_ns: int
    standbys: int
    standby_lag_bytes: dict[str, int]
    slots_in_use: int
    slots_unused: int


async def read_condition(connection: AsyncConnection[Any], now_ns: int) -> StoreCondition:
    """Read it; raises `psycopg.Error`."""
    ((standby, size_bytes),) = await _select(connection, SQL.partitions.read_server)
    tables = {
        name: TableCondition(size, live, dead)
        for name, size, live, dead in await _select(connection, SQL.partitions.read_tables)
    }
    catalog = await read_catalog(connection)
    rows = await _select(connection, SQL.partitions.read_standbys)
    lags: dict[str, int] = {}
    for name, lag_bytes in rows:
        if lag_bytes is not None:
            lags[name] = max(lag_bytes, lags.get(name, 0))
    ((in_use, unused),) = await _select(connection, SQL.partitions.read_slots)
    info = connection.info
    return StoreCondition(
        host=label({"host": info.host or info.hostaddr, "port": str(info.port)}),
        standby=standby,
        size_bytes=size_bytes,
        tables=tables,
        partitions=Counter(each.table for each in catalog.partitions),
        archive=await read_archive_state(connection, now_ns),
        covered_until_ns=min(
            Cover(catalog.bounds(table)).reaches(now_ns) for table in (FINE_TABLE, *COARSE_TABLES)
        ),
        standbys=len(rows),
        standby_lag_bytes=lags,
        slots_in_use=in_use,
        slots_unused=unused,
    )


_MESSAGES: Final[LiteralString] = f"select {SQL.buckets.messages}"


_SAMPLE_PAGES: Final = 2_000
"""Pages of a table from which the widths of its columns are read."""


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
class Column:
    """Mean width of a column as it is stored, null values counted as nothing, in a sample."""

    table: str
    column: str
    mean_bytes: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """The disk space of a database. ``log_bytes`` is None where the role may not see the log.

    ``messages`` is what the summaries count; ``catalog_bytes`` is all of the database that is no
    table of the store. The log is of the whole server, and no part of ``total_bytes``.
    """

    messages: int
    total_bytes: int
    parts: tuple[Part, ...]
    columns: tuple[Column, ...]
    catalog_bytes: int
    log_bytes: int | None


async def read_sizes(connection: AsyncConnection[Any]) -> Sizes:
    """Read the sizes of all tables of the store and of their indexes.

    Raises:
        psycopg.Error: the database refused.
    """
    parts = tuple(Part(*row) for row in await _select(connection, SQL.partitions.read_files))
    columns = tuple([each async for each in _columns(connection)])
    ((messages,),) = await _select(connection, _MESSAGES)
    ((database_bytes, may_see_log),) = await _select(connection, SQL.partitions.read_database_size)
    log_bytes = (
        (await _select(connection, SQL.partitions.read_log_size))[0][0] if may_see_log else None
    )
    total = sum(part.size_bytes for part in parts)
    return Sizes(messages, total, parts, columns, max(database_bytes - total, 0), log_bytes)


async def _columns(connection: AsyncConnection[Any]) -> AsyncIterator[Column]:
    for table, names, pages in await _select(connection, SQL.partitions.read_columns):
        percent = min(100.0, 100.0 * _SAMPLE_PAGES / max(pages or 0, 1))
        statement = sql.SQL("select {} from {} tablesample system ({})").format(
            sql.SQL(", ").join(
                sql.SQL("avg(coalesce(pg_column_size({}), 0))::float8").format(sql.Identifier(name))
                for name in names
            ),
            sql.Identifier(SCHEMA, table),
            sql.Literal(percent),
        )
        (means,) = await _select(connection, statement)
        for name, mean in zip(names, means, strict=True):
            if mean is not None:
                yield Column(table, name, mean)


async def _select(
    connection: AsyncConnection[Any], statement: LiteralString | sql.Composed
) -> list[Any]:
    return await (await connection.execute(statement)).fetchall()


MIN_PAGES: Final = 32
"""Below this size no plan is a bad one."""


async def analyze_stale(connection: AsyncConnection[Any]) -> list[str]:
    """Analyze the partitions that are twice as large as their statistics say; returns their names.

    ``connection`` must not be in a transaction. A partition that another session has locked is left
    out. Raises `psycopg.Error`.
    """
    cursor = await connection.execute(SQL.partitions.read_stale, (MIN_PAGES,))
    names = [name for (name,) in await cursor.fetchall()]
    for name in names:
        statement = sql.SQL("ANALYZE (SKIP_LOCKED) {}").format(sql.Identifier(SCHEMA, name))
        await connection.execute(statement, prepare=False)
    return names
