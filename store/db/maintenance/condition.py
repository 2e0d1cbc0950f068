"""What an operator must know of a database besides what it holds.

Read from the catalog and from counters, never from messages: a reading takes milliseconds, however
much is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from psycopg import AsyncConnection

from store.db.schema.names import COARSE_TABLES, FINE_TABLE
from store.db.schema.partitions import read_catalog
from store.db.summaries.archived import ArchiveState, read_archive_state
from store.domain.partitioning import Cover

_TABLES: Final = """
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
# Who may not read the statistics of others (role pg_read_all_stats) sees how many standbys there
# are, and neither their names nor how far they have come.
_STANDBYS: Final = """
select coalesce(application_name, '')::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint
from pg_stat_replication
where not pg_is_in_recovery() and state is distinct from 'backup'
"""


@dataclass(frozen=True, slots=True)
class TableCondition:
    """One table with all its partitions: bytes with indexes, and the planner's counts of rows."""

    size_bytes: int
    live_rows: int
    dead_rows: int


@dataclass(frozen=True, slots=True)
class StoreCondition:
    """``covered_until_ns``: up to there, from now on, no timestamp lacks a partition.

    ``standbys`` are connected for replication. ``standby_lag_bytes``: how much of the log each has
    not replayed, by the name that it gave (of several with one name, the furthest behind); empty
    where this role may not know.
    """

    tables: dict[str, TableCondition]
    archive: ArchiveState
    covered_until_ns: int
    standbys: int
    standby_lag_bytes: dict[str, int]


async def read_condition(connection: AsyncConnection[Any], now_ns: int) -> StoreCondition:
    """Read it; raises `psycopg.Error`."""
    cursor = await connection.execute(_TABLES)
    tables = {
        name: TableCondition(size, live, dead) for name, size, live, dead in await cursor.fetchall()
    }
    catalog = await read_catalog(connection)
    covered = min(
        Cover(catalog.bounds(table)).reaches(now_ns) for table in (FINE_TABLE, *COARSE_TABLES)
    )
    rows = await (await connection.execute(_STANDBYS)).fetchall()
    lags: dict[str, int] = {}
    for name, lag_bytes in rows:
        if lag_bytes is not None:
            lags[name] = max(lag_bytes, lags.get(name, 0))
    archive = await read_archive_state(connection, now_ns)
    return StoreCondition(tables, archive, covered, len(rows), lags)
