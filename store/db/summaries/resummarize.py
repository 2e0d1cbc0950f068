"""Making summaries anew, and what is known to be missing, where a check found them wrong.

One UTC day at a time, while nodes go on publishing: under FOLDING, and in one snapshot, a
day's buckets become what its messages say without what its unfolded deltas will add. So nothing is
counted twice or left out, and a run that is cut short has done whole days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from psycopg import AsyncConnection, sql
from psycopg import errors as pg

from store.db.arrays import register
from store.db.schema.names import FINE_TABLE, SCHEMA
from store.db.schema.partitions import read_catalog
from store.db.sds.missing_parents import find_missing
from store.db.statements import SQL
from store.db.summaries.buckets import (
    DAY_NS,
    LEVELS_NS,
    between,
    columns,
    folded_position,
    minutes_of,
    unpack,
)
from store.db.summaries.fold import delete_buckets, fold_until
from store.db.summaries.lattices import alone, seal_days, seal_hours, unknown_days, unknown_hours
from store.domain.partitioning import UNBOUNDED_HIGH, UNBOUNDED_LOW, Bounds, Cover

Connection = AsyncConnection[Any]

EVERYTHING: Final = Bounds(UNBOUNDED_LOW, UNBOUNDED_HIGH)

# A command that somebody has stopped must not keep nodes from folding.
_SETTINGS: Final[LiteralString] = "set idle_in_transaction_session_timeout = '30s'"


@dataclass(frozen=True, slots=True)
class Resummarized:
    """The result: days that have messages, and how many messages they had."""

    days: int
    messages: int


async def resummarize(
    connection: Connection,
    bounds: Bounds = EVERYTHING,
    *,
    progress: Callable[[str, int], None] = lambda _table, _messages: None,
) -> Resummarized:
    """Make the buckets of a range of time anew, which is widened to whole UTC days.

    ``connection`` must be in autocommit mode and is used for nothing else meanwhile; ``progress``
    receives the table and how many messages were summarised so far.

    Raises:
        psycopg.Error: the database did not serve; whole days are done, or not.
    """
    await connection.execute(_SETTINGS)
    days = messages = 0
    wide = _whole_days(bounds)
    occupied = sorted({day for span in await _occupied(connection, wide) for day in _days(span)})
    for each in sorted([*occupied, *Cover(occupied).gaps(wide.low, wide.high - 1)]):
        found = await _rebuild(connection, each)
        await find_missing(connection, each)
        messages += found
        days += found > 0
        progress(FINE_TABLE, messages)
    return Resummarized(days, messages)


async def _occupied(connection: Connection, wide: Bounds) -> list[Bounds]:
    found = []
    for partition in (await read_catalog(connection)).partitions:
        if partition.table != FINE_TABLE or not _overlap(partition.bounds, wide):
            continue
        statement = sql.SQL(SQL.messages.read_ends).format(sql.Identifier(SCHEMA, partition.name))
        try:
            cursor = await connection.execute(statement, prepare=False)
        except pg.UndefinedTable:
            continue  # it was dropped just now, and its buckets with it
        ((first, last),) = await cursor.fetchall()
        if first is not None and _overlap(span := _whole_days(Bounds(first, last + 1)), wide):
            found.append(Bounds(max(span.low, wide.low), min(span.high, wide.high)))
    return found


def _overlap(one: Bounds, other: Bounds) -> bool:
    return one.low < other.high and other.low < one.high


def _whole_days(bounds: Bounds) -> Bounds:
    low = bounds.low // DAY_NS * DAY_NS
    high = -(-bounds.high // DAY_NS) * DAY_NS
    return Bounds(max(low, UNBOUNDED_LOW), min(high, UNBOUNDED_HIGH))


def _days(span: Bounds) -> Iterator[Bounds]:
    for low in range(span.low, span.high, DAY_NS):
        yield Bounds(low, min(low + DAY_NS, span.high))


async def _rebuild(connection: Connection, bounds: Bounds) -> int:
    """Make the buckets of whole days anew; returns the number of messages in them."""
    # Nodes that publish faster than this folds must not keep it from going on.
    ((newest,),) = await (await connection.execute(SQL.commits.read_head)).fetchall()
    await fold_until(connection, newest)
    async with alone(connection):
        cursor = connection.cursor(binary=True)
        register(cursor)
        await cursor.execute(SQL.commits.read_unfolded, (bounds.low, bounds.high - 1))
        minutes = unpack([summary for (summary,) in await cursor.fetchall()])
        unfolded = between(minutes, bounds.low, bounds.high)
        await delete_buckets(connection, bounds)
        minutes_now = minutes_of(sql.Identifier(SCHEMA, FINE_TABLE), bounds)
        statement = sql.SQL(SQL.buckets.insert_minutes).format(minutes=minutes_now)
        await cursor.execute(statement, columns([unfolded]), prepare=False)
        for level in range(1, len(LEVELS_NS)):
            span = {"low": bounds.low, "last": bounds.high - 1}
            await cursor.execute(
                SQL.buckets.insert_level, span | {"level": level, "length": LEVELS_NS[level]}
            )
        hours = [start for start, _ in await unknown_hours(connection, bounds)]
        await seal_hours(connection, hours, await folded_position(connection))
        await seal_days(connection, await unknown_days(connection, bounds))
        await cursor.execute(SQL.buckets.count_messages, (bounds.low, bounds.high - 1))
        ((messages,),) = await cursor.fetchall()
    return int(messages + unfolded.counts.sum())
