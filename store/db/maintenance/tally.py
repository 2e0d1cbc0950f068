"""Counting what partitions hold before they are dropped, so that the totals stay exact.

A partition may have millions of rows, and a drop must not make others wait. So the rows are counted
while everybody works on; once the drop holds its locks, only what the commits since then have added
is counted. That is exact, since whatever the first count did not see has a later commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql
from psycopg import errors as pg

from store.db.schema.tables import COMMITS_TABLE, FINE_TABLE, SCHEMA
from store.domain.retention import Partition

Connection = AsyncConnection[Any]

_COUNT: Final[LiteralString] = """
select count(*), (select coalesce(max(position), 0) from storenode.commits) from {}
"""
_ADDED: Final[LiteralString] = """
select count(*) from storenode.commits c join {} m on m.batch = c.batch
where c.position > %s and c.max_ts >= %s and c.min_ts < %s
"""
_SUM: Final[LiteralString] = "select coalesce(sum(messages), 0)::bigint from {}"


@dataclass(frozen=True, slots=True)
class Tally:
    """The messages that a partition stands for: in it, or counted by its rows of commits.

    ``position`` is the newest commit that the count saw.
    """

    messages: int
    position: int


async def count(connection: Connection, partitions: Iterable[Partition]) -> dict[str, Tally]:
    """Count those of messages and commits, by name; one that is gone is left out."""
    found = {}
    for each in partitions:
        if each.table not in (FINE_TABLE, COMMITS_TABLE):
            continue
        try:
            found[each.name] = await _counted(connection, each)
        except pg.UndefinedTable:
            continue
    return found


async def added_since(connection: Connection, partition: Partition, tally: Tally) -> int:
    """Messages that a partition was given after its count; nobody may write to it meanwhile."""
    statement = sql.SQL(_ADDED).format(sql.Identifier(SCHEMA, partition.name))
    given = (tally.position, partition.bounds.low, partition.bounds.high)
    cursor = await connection.execute(statement, given, prepare=False)
    ((added,),) = await cursor.fetchall()
    return int(added)


async def _counted(connection: Connection, partition: Partition) -> Tally:
    statement = _COUNT if partition.table == FINE_TABLE else _SUM
    name = sql.Identifier(SCHEMA, partition.name)
    cursor = await connection.execute(sql.SQL(statement).format(name), prepare=False)
    (row,) = await cursor.fetchall()
    # Commits that may go are complete: nothing is added to them any more.
    return Tally(row[0], row[1] if len(row) > 1 else 0)
