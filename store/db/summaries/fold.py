"""Folding deltas into buckets: how the summaries of the history stay true and small.

Publishers who added to the same bucket would wait for each other. So each batch writes its delta
beside its commit. From time to time a maintainer folds the deltas of the commits since
`folded_position` into the buckets, in their order, and moves that position, in one transaction.
Buckets and unfolded deltas together are true in every snapshot of the database: nothing here is
remembered outside of it.

A transaction that changes buckets holds the lock FOLDING, and takes it before all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from psycopg import AsyncConnection

from reconcile.summaries.buckets import TimeBuckets
from store.db import arrays
from store.db.commits.pages import following_commits
from store.db.locks import FOLDING, lock_unhurried
from store.db.statements import SQL
from store.db.summaries.buckets import LEVELS_NS, coarser, columns, folded_position, outside, unpack
from store.db.summaries.lattices import late_sums, write_sums
from store.domain.partitioning import UNBOUNDED_HIGH, Bounds

Connection = AsyncConnection[Any]

MAX_FOLD_COMMITS: Final = 4_096
MAX_FOLD_BYTES: Final = 1024 * 1024
"""Commits, and bytes of their deltas, that one transaction folds; one commit at least."""

_NO_LIMIT: Final = 2**31 - 1
_MAX_BIGINT: Final = UNBOUNDED_HIGH - 1


_NEXT: Final = following_commits("summary")


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of a fold: the position that was reached, and how many commits were folded.

    ``complete``: nothing that is committed was left.
    """

    position: int
    commits: int
    complete: bool


async def fold(connection: Connection) -> Folded:
    """Fold some of the commits that are not folded yet, in a short transaction of its own.

    ``connection`` must not be in a transaction. Any number of callers may do so at once.

    Raises:
        psycopg.Error: the database did not serve, or another session kept a lock for longer than
            `UNHURRIED_MS` (`psycopg.errors.LockNotAvailable`); nothing was changed then.
        ValueError: a delta is damaged.
    """
    async with connection.transaction():
        await lock_unhurried(connection, FOLDING)
        return await _fold_next(connection, MAX_FOLD_COMMITS, MAX_FOLD_BYTES, ())


async def fold_until(connection: Connection, position: int = _MAX_BIGINT) -> Folded:
    """Fold until everything up to a position is folded, or all there is when that is less.

    Raises as `fold` does; what was folded until then stays so.
    """
    commits = 0
    while True:
        folded = await fold(connection)
        commits += folded.commits
        if folded.complete or folded.position >= position:
            return Folded(folded.position, commits, folded.complete)


async def following(
    connection: Connection,
    position: int,
    most_commits: int = MAX_FOLD_COMMITS,
    most_bytes: int = MAX_FOLD_BYTES,
) -> list[tuple[int, bytes]]:
    """Return position and delta of the commits behind a position, in their order.

    There are more when so many came, or so many bytes; one comes at least where there is one.
    """
    cursor = connection.cursor(binary=True)
    await cursor.execute(_NEXT, (position, most_commits, most_bytes))
    return [(place, bytes(delta)) for place, delta in await cursor.fetchall()]


async def is_pending(connection: Connection) -> bool:
    """Return True if there is something to fold."""
    cursor = await connection.execute(SQL.commits.has_unfolded)
    return await cursor.fetchone() == (True,)


async def lock_folding(connection: Connection) -> None:
    """Take the lock FOLDING until the end of this transaction."""
    await connection.execute(SQL.partitions.lock, (FOLDING,))


async def fold_rest(connection: Connection, *, without: Sequence[Bounds] = ()) -> Folded:
    """Fold everything that this transaction sees, but for what is about some ranges of time.

    For a transaction that holds FOLDING and removes the buckets of these ranges. It takes as long
    as there is much to fold, so `fold_until` comes before it.
    """
    return await _fold_next(connection, _NO_LIMIT, _MAX_BIGINT, without)


async def delete_buckets(connection: Connection, bounds: Bounds) -> None:
    """Delete the buckets of every level that begin in a range of time; under FOLDING."""
    levels = list(range(len(LEVELS_NS)))
    await connection.execute(SQL.buckets.delete, (levels, bounds.low, bounds.high - 1))


async def _fold_next(
    connection: Connection, most_commits: int, most_bytes: int, without: Sequence[Bounds]
) -> Folded:
    before = await folded_position(connection)
    rows = await following(connection, before, most_commits, most_bytes)
    if not rows:
        return Folded(before, 0, complete=True)
    deltas = [delta for _, delta in rows]
    minutes = unpack(deltas)
    for bounds in without:
        minutes = outside(minutes, bounds.low, bounds.high)
    position = rows[-1][0]
    if len(minutes):
        levels = [minutes, *(coarser(minutes, length_ns) for length_ns in LEVELS_NS[1:])]
        sums = await late_sums(connection, before, position, *levels[1:])
        await _add(connection, levels)
        await write_sums(connection, sums)
    await connection.execute(SQL.stores.set_folded, (position,))
    complete = len(rows) < most_commits and sum(map(len, deltas)) < most_bytes
    return Folded(position, len(rows), complete)


async def _add(connection: Connection, levels: Sequence[TimeBuckets]) -> None:
    """Add buckets of every level to those that are kept."""
    numbers = np.repeat(np.arange(len(levels)), [len(each) for each in levels])
    cursor = connection.cursor()
    # The caller may have opened the connection for something else.
    arrays.register(cursor)
    await cursor.execute(SQL.buckets.add, [arrays.bigint_column(numbers), *columns(levels)])
