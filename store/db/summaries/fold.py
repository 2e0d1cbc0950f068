"""Folding deltas into buckets: how the summaries of the history stay true and small.

Publishers who added to the same bucket would wait for each other. So each batch writes its delta
beside its commit. From time to time a maintainer folds the deltas of the commits since
`folded_position` into the buckets, in their order, and moves that position, in one transaction.
Buckets and unfolded deltas together are true in every snapshot of the database: nothing here is
remembered outside of it.

A transaction that changes buckets holds the lock FOLDING, and takes it before all others.

Where a check found summaries wrong, they are made anew (`resummarize`), and what is known to be
missing. One UTC day at a time, while nodes go on publishing: under FOLDING, and in one snapshot, a
day's buckets become what its messages say without what its unfolded deltas will add. So nothing is
counted twice or left out, and a run that is cut short has done whole days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

import numpy as np
from psycopg import errors as pg
from psycopg import sql

from reconcile.summaries.buckets import TimeBuckets
from store.db.arrays import bigint_column
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.locks import FOLDING, lock_unhurried
from store.db.schema.partitions import read_catalog
from store.db.sds.missing_parents import find_missing
from store.db.statements import FINE_TABLE, SCHEMA, SQL
from store.db.summaries.buckets import (
    DAY_NS,
    LEVELS_NS,
    between,
    coarser,
    columns,
    folded_position,
    minutes_of,
    outside,
    unpack,
)
from store.db.summaries.lattices import (
    alone,
    late_sums,
    seal_days,
    seal_hours,
    unknown_days,
    unknown_hours,
    write_sums,
)
from store.domain.partitioning import UNBOUNDED_HIGH, UNBOUNDED_LOW, Bounds, Cover

MAX_FOLD_COMMITS: Final = 4_096
MAX_FOLD_BYTES: Final = 1024 * 1024
"""Commits, and bytes of their deltas, that one transaction folds; one commit at least."""

_NO_LIMIT: Final = 2**31 - 1
_MAX_BIGINT: Final = UNBOUNDED_HIGH - 1


_NEXT: Final = SQL.commits.read_following.format(column="summary")


async def fold(connection: Connection) -> int | None:
    """Fold some of the commits that are not folded yet, in a short transaction of its own.

    ``connection`` must not be in a transaction. Any number of callers may do so at once.

    Returns:
        The position that was reached; None: nothing that is committed was left.

    Raises:
        psycopg.Error: the database did not serve, or another session kept a lock for longer than
            `UNHURRIED_MS` (`psycopg.errors.LockNotAvailable`); nothing was changed then.
        ValueError: a delta is damaged.
    """
    async with connection.transaction():
        await lock_unhurried(connection, FOLDING)
        return await _fold_next(connection, MAX_FOLD_COMMITS, MAX_FOLD_BYTES, ())


async def fold_until(connection: Connection, position: int = _MAX_BIGINT) -> None:
    """Fold until everything up to a position is folded, or all there is when that is less.

    Raises as `fold` does; what was folded until then stays so.
    """
    while (reached := await fold(connection)) is not None and reached < position:
        pass


async def is_pending(connection: Connection) -> bool:
    """Return True if there is something to fold."""
    return bool(await fetch_row(connection, SQL.commits.has_unfolded) == (True,))


async def fold_rest(connection: Connection, *, without: Sequence[Bounds] = ()) -> None:
    """Fold everything that this transaction sees, but for what is about some ranges of time.

    For a transaction that holds FOLDING and removes the buckets of these ranges. It takes as long
    as there is much to fold, so `fold_until` comes before it.
    """
    await _fold_next(connection, _NO_LIMIT, _MAX_BIGINT, without)


async def delete_buckets(connection: Connection, bounds: Bounds) -> None:
    """Delete the buckets of every level that begin in a range of time; under FOLDING."""
    levels = list(range(len(LEVELS_NS)))
    await connection.execute(SQL.buckets.delete, (levels, bounds.low, bounds.high - 1))


async def _fold_next(
    connection: Connection, most_commits: int, most_bytes: int, without: Sequence[Bounds]
) -> int | None:
    before = await folded_position(connection)
    # There are more when so many came, or so many bytes; one comes at least where there is one.
    rows = await fetch_rows(connection, _NEXT, (before, most_commits, most_bytes))
    if not rows:
        return None
    deltas = [delta for _, delta in rows]
    minutes = unpack(deltas)
    for bounds in without:
        minutes = outside(minutes, bounds.low, bounds.high)
    position: int = rows[-1][0]
    if len(minutes):
        levels = [minutes, *(coarser(minutes, length_ns) for length_ns in LEVELS_NS[1:])]
        sums = await late_sums(connection, before, position, *levels[1:])
        await _add(connection, levels)
        await write_sums(connection, sums)
    await connection.execute(SQL.stores.set_folded, (position,))
    is_last = len(rows) < most_commits and sum(map(len, deltas)) < most_bytes
    return None if is_last else position


async def _add(connection: Connection, levels: Sequence[TimeBuckets]) -> None:
    """Add buckets of every level to those that are kept."""
    numbers = np.repeat(np.arange(len(levels)), [len(each) for each in levels])
    await connection.execute(SQL.buckets.add, [bigint_column(numbers), *columns(levels)])


# Making summaries anew

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
            ((first, last),) = await fetch_rows(connection, statement, prepare=False)
        except pg.UndefinedTable:
            continue  # it was dropped just now, and its buckets with it
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
    ((newest,),) = await fetch_rows(connection, SQL.commits.read_head)
    await fold_until(connection, newest)
    async with alone(connection):
        span = (bounds.low, bounds.high - 1)
        deltas = await fetch_rows(connection, SQL.commits.read_unfolded, span)
        minutes = unpack([summary for (summary,) in deltas])
        unfolded = between(minutes, bounds.low, bounds.high)
        await delete_buckets(connection, bounds)
        minutes_now = minutes_of(sql.Identifier(SCHEMA, FINE_TABLE), bounds)
        statement = sql.SQL(SQL.buckets.insert_minutes).format(minutes=minutes_now)
        await connection.execute(statement, columns([unfolded]), prepare=False)
        for level in range(1, len(LEVELS_NS)):
            given = {"low": span[0], "last": span[1], "level": level, "length": LEVELS_NS[level]}
            await connection.execute(SQL.buckets.insert_level, given)
        hours = [start for start, _ in await unknown_hours(connection, bounds)]
        await seal_hours(connection, hours, await folded_position(connection))
        await seal_days(connection, await unknown_days(connection, bounds))
        ((messages,),) = await fetch_rows(connection, SQL.buckets.count_messages, span)
    return int(messages + unfolded.counts.sum())
