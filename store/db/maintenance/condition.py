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
from store.db.summaries.buckets import MESSAGES
from store.domain.partitioning import Cover

_TABLES: Final[LiteralString] = """
select coalesce(p.relname, c.relname)::text,
       coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint,
       coalesce(sum(s.n_live_tup), 0)::bigint, coalesce(sum(s.n_dead_tup), 0)::bigint
from pg_class c
left join pg_inherits i on i.inhrelid = c.oid
left join pg_class p on p.oid = i.inhparent
left join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'r'
group by 1 order by 1
"""
_SERVER: Final[LiteralString] = (
    "select pg_is_in_recovery(), pg_database_size(current_database())::bigint"
)
# Who may not read the statistics of others (role pg_read_all_stats) sees how many standbys there
# are, and neither their names nor how far they have come.
_STANDBYS: Final[LiteralString] = """
select coalesce(application_name, '')::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint
from pg_stat_replication
where not pg_is_in_recovery() and state is distinct from 'backup'
"""
_SLOTS: Final[LiteralString] = """
select count(*) filter (where active), count(*) filter (where not active)
from pg_replication_slots
where slot_type = 'physical' and not temporary and not pg_is_in_recovery()
"""


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
    ((standby, size_bytes),) = await _select(connection, _SERVER)
    tables = {
        name: TableCondition(size, live, dead)
        for name, size, live, dead in await _select(connection, _TABLES)
    }
    catalog = await read_catalog(connection)
    rows = await _select(connection, _STANDBYS)
    lags: dict[str, int] = {}
    for name, lag_bytes in rows:
        if lag_bytes is not None:
            lags[name] = max(lag_bytes, lags.get(name, 0))
    ((in_use, unused),) = await _select(connection, _SLOTS)
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


_FILES: Final[LiteralString] = """
with leaf as (
    select c.oid, c.reltoastrelid, c.reltuples, root.relname::text as name
    from pg_class c join pg_class root on root.oid = coalesce(pg_partition_root(c.oid), c.oid)
    where c.relnamespace = 'storenode'::regnamespace and c.relkind = 'r'
), part as (
    select name, '' as index, pg_relation_size(oid) as bytes from leaf
    union all
    select name, 'out of line', pg_total_relation_size(reltoastrelid) from leaf
    where reltoastrelid <> 0
    union all
    select name, 'maps', pg_relation_size(oid, 'fsm') + pg_relation_size(oid, 'vm') from leaf
    union all
    select name, root.relname::text, pg_total_relation_size(i.indexrelid)
    from leaf join pg_index i on i.indrelid = leaf.oid
    join pg_class root on root.oid = coalesce(pg_partition_root(i.indexrelid), i.indexrelid)
)
select name, index, sum(bytes)::bigint from part group by name, index having sum(bytes) > 0
order by sum(sum(bytes)) over (partition by name) desc, name, index <> '', sum(bytes) desc
"""
_MESSAGES: Final[LiteralString] = f"select {MESSAGES}"
_COLUMNS: Final[LiteralString] = """
select c.relname::text, array_agg(a.attname::text order by a.attnum),
       (select sum(relpages) from pg_class p, pg_partition_tree(c.oid) t where p.oid = t.relid)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'storenode'::regnamespace and c.relname in ('messages', 'hashes', 'sds')
group by c.oid, c.relname order by c.relname
"""
_AROUND: Final[LiteralString] = """
select pg_database_size(current_database()),
       has_function_privilege('pg_ls_waldir()', 'execute')
"""
_LOG: Final[LiteralString] = "select coalesce(sum(size), 0)::bigint from pg_ls_waldir()"


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
    parts = tuple(Part(*row) for row in await _select(connection, _FILES))
    columns = tuple([each async for each in _columns(connection)])
    ((messages,),) = await _select(connection, _MESSAGES)
    ((database_bytes, may_see_log),) = await _select(connection, _AROUND)
    log_bytes = (await _select(connection, _LOG))[0][0] if may_see_log else None
    total = sum(part.size_bytes for part in parts)
    return Sizes(messages, total, parts, columns, max(database_bytes - total, 0), log_bytes)


async def _columns(connection: AsyncConnection[Any]) -> AsyncIterator[Column]:
    for table, names, pages in await _select(connection, _COLUMNS):
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

_STALE: Final = """
with partition as (
    select c.oid, c.relname::text as name, c.relpages, c.reltuples,
           pg_relation_size(c.oid) / current_setting('block_size')::int as pages
    from pg_inherits i
    join pg_class p on p.oid = i.inhparent
    join pg_class c on c.oid = i.inhrelid
    where p.relnamespace = 'storenode'::regnamespace and p.relkind = 'p' and c.relkind = 'r'
)
select name from partition left join pg_stat_all_tables seen on seen.relid = oid
where pages >= %s
  and (reltuples < 0 or pages > 2 * relpages or seen.n_mod_since_analyze > reltuples / 2)
order by name
"""


async def analyze_stale(connection: AsyncConnection[Any]) -> list[str]:
    """Analyze the partitions that are twice as large as their statistics say; returns their names.

    ``connection`` must not be in a transaction. A partition that another session has locked is left
    out. Raises `psycopg.Error`.
    """
    cursor = await connection.execute(_STALE, (MIN_PAGES,))
    names = [name for (name,) in await cursor.fetchall()]
    for name in names:
        statement = sql.SQL("ANALYZE (SKIP_LOCKED) {}").format(sql.Identifier(SCHEMA, name))
        await connection.execute(statement, prepare=False)
    return names
