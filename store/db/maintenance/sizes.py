"""Where the bytes of a database go: files of tables and indexes, and the columns of a message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql

from store.db.schema.names import SCHEMA

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
_MESSAGES: Final[LiteralString] = """
select coalesce((select sum(count) from storenode.buckets where level = 0), 0)::bigint
     + coalesce((select sum(c.messages) from storenode.commits c, storenode.store s
                 where c.position > s.folded_position), 0)::bigint
"""
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
    """One kind of file of a table and all of its partitions.

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
    """What a database takes. ``log_bytes`` is None where the role may not see the log.

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
    parts = tuple(Part(*row) for row in await _rows(connection, _FILES))
    columns = tuple([each async for each in _columns(connection)])
    ((messages,),) = await _rows(connection, _MESSAGES)
    ((database_bytes, may_see_log),) = await _rows(connection, _AROUND)
    log_bytes = (await _rows(connection, _LOG))[0][0] if may_see_log else None
    total = sum(part.size_bytes for part in parts)
    return Sizes(messages, total, parts, columns, max(database_bytes - total, 0), log_bytes)


async def _columns(connection: AsyncConnection[Any]) -> AsyncIterator[Column]:
    for table, names, pages in await _rows(connection, _COLUMNS):
        percent = min(100.0, 100.0 * _SAMPLE_PAGES / max(pages or 0, 1))
        statement = sql.SQL("select {} from {} tablesample system ({})").format(
            sql.SQL(", ").join(
                sql.SQL("avg(coalesce(pg_column_size({}), 0))::float8").format(sql.Identifier(name))
                for name in names
            ),
            sql.Identifier(SCHEMA, table),
            sql.Literal(percent),
        )
        (means,) = await _rows(connection, statement)
        for name, mean in zip(names, means, strict=True):
            if mean is not None:
                yield Column(table, name, mean)


async def _rows(
    connection: AsyncConnection[Any], statement: LiteralString | sql.Composed
) -> list[Any]:
    return await (await connection.execute(statement)).fetchall()
