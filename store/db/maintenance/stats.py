"""Statistics for the planner that keep up with bulk loads.

Autovacuum comes by once a minute and has a bounded number of workers; until then a partition that
has just been filled looks empty, and a plan made for an empty table can take a second instead of a
tenth.
"""

from typing import Any, Final

from psycopg import AsyncConnection, sql

from store.db.schema.names import SCHEMA

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
