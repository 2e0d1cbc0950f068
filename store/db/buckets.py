"""Summaries of messages in slices of time: how many there are, and the XOR of their hashes.

A batch writes beside its commit what it added per minute, in a packed form: the *delta*. Deltas are
folded into buckets of minutes, hours and days (`fold`).

A packed record has `RECORD_BYTES`, little-endian: start of the minute (nanoseconds since the
epoch, signed 64 bits), count (signed 64 bits), and the 32 bytes of the XOR.

Lattice sums of hours and days are summaries that a publisher cannot forge.

    an hour is over --maintainer--> its messages are summed up, once (`seal`)
    a late message  --fold--------> is added in the fold's transaction (`late_sums`)
    a view          --------------> adds what is not folded yet (`added`)

A bucket's sum is that of ``lattice_count`` messages. Buckets only gain messages, and go with their
partition, so it is the sum of the bucket if, and only if, that is its count; another one, or NULL,
is not known, and nothing follows from it. So a fold that ignores sums does no harm. An hour is
summed up in a transaction of its own, in which nothing is folded.

Publishers who added to the same bucket would wait for each other. So each batch writes its delta
beside its commit. From time to time a maintainer folds the deltas of the commits since
`folded_position` into the buckets, in their order, and moves that position, in one transaction.
The same transaction follows what the commits say of missing parents (`store.db.sds`).
Buckets and unfolded deltas together are true in every snapshot of the database: nothing here is
remembered outside of it.

A transaction that changes buckets or missing parents holds the lock FOLDING, and takes it before
all others.

Where a check found summaries wrong, they are rebuilt (`resummarize`), and what is known to be
missing. One UTC day at a time, while nodes continue publishing: under FOLDING, and in one snapshot,
a day's buckets become what its messages say without what its unfolded deltas will add. So nothing
is counted twice or left out, and a run that is cut short has done whole days.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, LiteralString

import numpy as np
from numpy.typing import ArrayLike
from psycopg import sql

from reconcile.ids import ELEMENT_BYTES
from reconcile.lattice import LatticeSum
from reconcile.summaries.buckets import TimeBuckets
from store.db.arrays import BinaryArray, bigint_column
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.feed import newest
from store.db.locks import FOLDING, lock_unhurried
from store.db.sds import find_missing, follow_claims
from store.db.statements import FINE_TABLE, SQL
from store.domain.partitioning import (
    DAY_NS,
    HOUR_NS,
    MINUTE_NS,
    UNBOUNDED_HIGH,
    UNBOUNDED_LOW,
    Bounds,
)
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES

LEVELS_NS: Final = (MINUTE_NS, HOUR_NS, DAY_NS)
"""Length of the buckets of level 0, 1 and 2; each begins at a multiple of it since the epoch."""

HASH_WORDS: Final = HASH_BYTES // 8
RECORD: Final = np.dtype([("start_ns", "<i8"), ("count", "<i8"), ("xor", "<u8", HASH_WORDS)])
RECORD_BYTES: Final = RECORD.itemsize
_BEGINNING: Final = struct.Struct("<qq")
"""A record up to its XOR."""


def of_rows(length_ns: int, rows: ArrayLike) -> TimeBuckets:
    """Return the buckets that rows of ``buckets`` have: start_ns, count and the words."""
    columns = np.array(rows, "<i8").reshape(-1, 2 + HASH_WORDS)
    words = np.ascontiguousarray(columns[:, 2:]).view("<u8")
    return TimeBuckets(length_ns, columns[:, 0].copy(), columns[:, 1].copy(), words)


def between(buckets: TimeBuckets, low_ns: int, high_ns: int) -> TimeBuckets:
    """Return the buckets that begin in a half-open range of time."""
    wanted = (buckets.starts >= low_ns) & (buckets.starts < high_ns)
    starts, counts = buckets.starts[wanted], buckets.counts[wanted]
    return TimeBuckets(buckets.length_ns, starts, counts, buckets.xors[wanted])


def pack(timestamps: Sequence[int], hashes: Sequence[bytes]) -> bytes:
    """Return the delta of messages, each of which is given once; empty only when there are none.

    ``timestamps`` (nanoseconds) and ``hashes`` (32 bytes each) are columns of the same length, in
    any order.
    """
    if len(hashes) == 1:  # what is published alone, which arrays would cost twenty times as much
        return _BEGINNING.pack(timestamps[0] - timestamps[0] % MINUTE_NS, 1) + hashes[0]
    if not hashes:
        return b""
    words = np.frombuffer(b"".join(hashes), "<u8").reshape(-1, HASH_WORDS)
    times = np.array(timestamps, np.int64)
    minutes = TimeBuckets.total(MINUTE_NS, times, np.ones(len(times), np.int64), words)
    records = np.empty(len(minutes), RECORD)
    records["start_ns"], records["count"] = minutes.starts, minutes.counts
    records["xor"] = minutes.xors
    return records.tobytes()


def unpack(deltas: Iterable[bytes]) -> TimeBuckets:
    """Return the buckets of minutes of everything that some deltas are about.

    Raises:
        ValueError: the length of one is not a multiple of `RECORD_BYTES`.
    """
    parts = list(deltas)
    if any(len(part) % RECORD_BYTES for part in parts):
        raise ValueError(f"a packed summary is not a multiple of {RECORD_BYTES} bytes long")
    records = np.frombuffer(b"".join(parts), RECORD)
    return TimeBuckets.total(MINUTE_NS, records["start_ns"], records["count"], records["xor"])


def minutes_of(bounds: Bounds) -> sql.Composed:
    """Return a query for (start_ns, count, x0, x1, x2, x3) of the messages of a range of time.

    Its bounds are literals, so that partitions are left out when it is planned.
    """
    low, last = sql.Literal(bounds.low), sql.Literal(bounds.high - 1)
    return sql.SQL(SQL.buckets.sum_minutes).format(low=low, last=last)


def columns(summaries: Sequence[TimeBuckets]) -> list[BinaryArray]:
    """Return start, count and the words of the XOR of some buckets, laid out as parameters."""
    starts = [np.empty(0, np.int64), *(each.starts for each in summaries)]
    counts = [np.empty(0, np.int64), *(each.counts for each in summaries)]
    xors = [np.empty((0, HASH_WORDS), np.uint64), *(each.xors for each in summaries)]
    by_word = np.concatenate(xors).view("<i8").T
    return [bigint_column(each) for each in (np.concatenate(starts), np.concatenate(counts))] + [
        bigint_column(each) for each in by_word
    ]


async def folded_position(connection: Connection) -> int:
    """Return the position up to which commits are folded."""
    ((position, _),) = await fetch_rows(connection, SQL.stores.read_folded)
    return int(position)


async def unfolded(connection: Connection, position: int) -> TimeBuckets:
    """Return the buckets of minutes of all commits behind a position, in one snapshot."""
    total = TimeBuckets.empty(MINUTE_NS)
    while rows := await fetch_rows(
        connection, SQL.commits.read_deltas, (position, _DELTAS_AT_ONCE)
    ):
        position = rows[-1][0]
        total = TimeBuckets.join(MINUTE_NS, [total, unpack(delta for _, delta in rows)])
    return total


_DELTAS_AT_ONCE: Final = 256

MAX_LATE_MESSAGES: Final = 100_000
"""Messages that are added to known sums at a time; where there are more, the sum is computed
again."""

THREADED_ELEMENTS: Final = 4_096
"""The number of elements whose expansion takes more than a millisecond, so a thread does it."""

PAGE_MESSAGES: Final = 65_536

HOURS, DAYS = 1, 2


Sums = Mapping[tuple[int, int], LatticeSum]
"""The sums of hours and days by level and start."""


async def sum_of(elements: bytes) -> LatticeSum:
    """Return the sum of elements, each of which is there once."""
    if len(elements) < THREADED_ELEMENTS * ELEMENT_BYTES:
        return LatticeSum.of(elements)
    return await asyncio.to_thread(LatticeSum.of, elements)


async def added(
    connection: Connection, after: int, until: int, hours: Sequence[int]
) -> dict[int, LatticeSum]:
    """Return what commits behind ``after`` up to ``until`` have added to hours, by hour."""
    if not hours:
        return {}
    given = {"after": after, "until": until, "hours": list(hours)}
    rows = await fetch_rows(connection, SQL.messages.read_added_elements, given)
    return {hour: await sum_of(elements) for hour, elements in rows}


async def late_sums(
    connection: Connection, after: int, until: int, hours: TimeBuckets, days: TimeBuckets
) -> Sums:
    """Return the known sums that commits change which are to be folded, as they will be then.

    ``hours`` and ``days``: what these commits have added. Under FOLDING, before that is added to
    the buckets.
    """
    starts = (hours.starts.tolist(), days.starts.tolist())
    known = await fetch_rows(connection, SQL.buckets.read_known_sums, starts)
    keys = {(level, start) for level, start, *_ in known}
    changed = [
        (start, count)
        for start, count in zip(hours.starts.tolist(), hours.counts.tolist(), strict=True)
        if (HOURS, start) in keys or (DAYS, start - start % DAY_NS) in keys
    ]
    if sum(count for _, count in changed) > MAX_LATE_MESSAGES:
        return {}
    new: dict[tuple[int, int], LatticeSum] = {}
    for hour, each in (
        await added(connection, after, until, [start for start, _ in changed])
    ).items():
        for key in ((HOURS, hour), (DAYS, hour - hour % DAY_NS)):
            new[key] = new.get(key, LatticeSum()) + each
    return {
        (level, start): LatticeSum.stored(count, state) + new[level, start]
        for level, start, count, state in known
        if (level, start) in new
    }


async def write_sums(connection: Connection, sums: Sums) -> None:
    """Keep the sums of buckets; under FOLDING."""
    if sums:
        levels, starts = zip(*sums, strict=True)
        counts = [total.count for total in sums.values()]
        states = [total.state_bytes() for total in sums.values()]
        given = ([*levels], [*starts], counts, states)
        await connection.execute(SQL.buckets.write_sums, given)


async def sum_of_time(
    connection: Connection, low_ns: int, high_ns: int, most: int | None = None
) -> LatticeSum:
    """Return the sum of a range of time, in one snapshot; it ends after ``most`` messages.

    A sum of more than ``most`` messages is not that of the whole range.
    """
    total, last_ns, last = LatticeSum(), low_ns, b""
    while True:
        given = {"ts": last_ns, "hash": last, "high": high_ns, "limit": PAGE_MESSAGES}
        ((last_ns, joined),) = await fetch_rows(connection, SQL.messages.read_elements, given)
        elements = joined or b""
        total += await sum_of(elements)
        is_last = len(elements) < PAGE_MESSAGES * ELEMENT_BYTES
        if is_last or (most is not None and total.count > most):
            return total
        last = elements[8 - ELEMENT_BYTES : -CONTENT_DIGEST_BYTES]


async def _seal_hour(connection: Connection, start: int) -> None:
    """Sum an hour up and keep that; under FOLDING, in one snapshot.

    The sum includes deltas that are not folded yet. It is in the commits after all others, so the
    sum is known as soon as their number is folded.
    """
    total = await sum_of_time(connection, start, start + HOUR_NS)
    await write_sums(connection, {(HOURS, start): total})


async def _seal_days(connection: Connection, days: Sequence[tuple[int]]) -> None:
    """Make the sums of days of those of their hours, all of which are known; under FOLDING."""
    for (start,) in days:
        rows = await fetch_rows(connection, SQL.buckets.read_hours_of_day, (start, start))
        total = LatticeSum.total([LatticeSum.stored(count, state) for count, state in rows])
        await write_sums(connection, {(DAYS, start): total})


SETTLING_NS: Final = 10 * MINUTE_NS
"""An hour is summed up so long after its end; later messages are added one by one."""

MAX_SEALED_MESSAGES: Final = 1_000_000
"""Messages after which a call ends: about half a second of processor time with the kernel."""

_SNAPSHOT: Final = "set transaction isolation level repeatable read"


async def seal(connection: Connection, now_ns: int) -> int:
    """Sum up hours and days that are over and whose sums are not known; returns how many hours.

    ``connection`` is in autocommit mode. Hours are left to the next call once
    `MAX_SEALED_MESSAGES` are summed up.

    Raises:
        psycopg.Error: the database did not serve; what was summed up until then is kept.
    """
    end_ns = now_ns - SETTLING_NS
    messages = sealed = 0
    over = (UNBOUNDED_LOW, end_ns - HOUR_NS)
    for start, count in await fetch_rows(connection, SQL.buckets.read_unknown_hours, over):
        if messages >= MAX_SEALED_MESSAGES:
            break
        async with alone(connection):
            await _seal_hour(connection, start)
        messages += count
        sealed += 1
    over = (UNBOUNDED_LOW, end_ns - DAY_NS)
    days = await fetch_rows(connection, SQL.buckets.read_unknown_days, over)
    if days:
        async with alone(connection):
            await _seal_days(connection, days)
    return sealed


@asynccontextmanager
async def alone(connection: Connection) -> AsyncIterator[None]:
    """Open a transaction with one snapshot under FOLDING; the lock is taken before the snapshot.

    ``connection`` is in autocommit mode.
    """
    await connection.execute(SQL.partitions.lock_session, (FOLDING,))
    try:
        async with connection.transaction():
            await connection.execute(_SNAPSHOT)
            yield
    finally:
        if not connection.closed:
            await connection.execute(SQL.partitions.unlock, (FOLDING,))


MAX_FOLD_COMMITS: Final = 4_096
MAX_FOLD_BYTES: Final = 512 * 1024
"""Commits, and bytes of deltas and claims, that one transaction folds; one commit at least."""

_NO_LIMIT: Final = 2**31 - 1
_MAX_BIGINT: Final = UNBOUNDED_HIGH - 1


async def fold(connection: Connection) -> int | None:
    """Fold some of the commits that are not folded yet, in a short transaction of its own.

    ``connection`` must not be in a transaction. Any number of callers may do so at once.

    Returns:
        The position that was reached; None: nothing that is committed was left.

    Raises:
        psycopg.Error: the database did not serve, or another session kept a lock for longer than
            `UNHURRIED_MS` (`psycopg.errors.LockNotAvailable`); nothing was changed then.
        ValueError: a delta, or the claims of a commit, are damaged.
    """
    async with connection.transaction():
        await lock_unhurried(connection, FOLDING)
        return await _fold_next(connection, MAX_FOLD_COMMITS, MAX_FOLD_BYTES)


async def fold_until(connection: Connection, position: int = _MAX_BIGINT) -> None:
    """Fold until everything up to a position is folded, or all there is when that is less.

    Raises as `fold` does; what was folded until then stays so.
    """
    while (reached := await fold(connection)) is not None and reached < position:
        pass


async def is_pending(connection: Connection) -> bool:
    """Return True if there is something to fold."""
    return bool(await fetch_row(connection, SQL.commits.has_unfolded) == (True,))


async def fold_rest(connection: Connection) -> None:
    """Fold everything that this transaction sees, which holds FOLDING.

    It takes as long as there is much to fold, so `fold_until` comes before it.
    """
    await _fold_next(connection, _NO_LIMIT, _MAX_BIGINT)


async def delete_buckets(connection: Connection, ranges: Iterable[Bounds]) -> None:
    """Delete the buckets of every level that begin in ranges of time; under FOLDING."""
    for bounds in ranges:
        await connection.execute(SQL.buckets.delete, (bounds.low, bounds.high - 1))


async def _fold_next(connection: Connection, most_commits: int, most_bytes: int) -> int | None:
    before = await folded_position(connection)
    # A full page, of commits or bytes, has more behind it; it has one commit at least.
    given = (before, most_commits, most_bytes)
    rows = await fetch_rows(connection, SQL.commits.read_following, given)
    if not rows:
        return None
    minutes = unpack(delta for _, delta, _ in rows)
    position: int = rows[-1][0]
    if len(minutes):
        levels = [TimeBuckets.join(length_ns, [minutes]) for length_ns in LEVELS_NS]
        sums = await late_sums(connection, before, position, *levels[1:])
        numbers = np.repeat(np.arange(len(levels)), [len(each) for each in levels])
        await connection.execute(SQL.buckets.add, [bigint_column(numbers), *columns(levels)])
        await write_sums(connection, sums)
    await follow_claims(connection, b"".join([claims for _, _, claims in rows]))
    await connection.execute(SQL.stores.set_folded, (position,))
    size = sum(len(delta) + len(claims) for _, delta, claims in rows)
    is_last = len(rows) < most_commits and size < most_bytes
    return None if is_last else position


# Rebuilding summaries

EVERYTHING: Final = Bounds(UNBOUNDED_LOW, UNBOUNDED_HIGH)

# A command that somebody has stopped must not keep nodes from folding.
_SETTINGS: Final[LiteralString] = "set idle_in_transaction_session_timeout = '30s'"


async def resummarize(
    connection: Connection,
    bounds: Bounds = EVERYTHING,
    *,
    progress: Callable[[str, int], None] = lambda _table, _messages: None,
) -> tuple[int, int]:
    """Rebuild the buckets of a range of time, which is widened to whole UTC days.

    ``connection`` must be in autocommit mode and is used for nothing else meanwhile; ``progress``
    receives the table and how many messages were summarised so far.

    Returns:
        The number of days that have messages, and of messages.

    Raises:
        psycopg.Error: the database did not serve; whole days are done, or not.
    """
    await connection.execute(_SETTINGS)
    days = messages = 0
    wide = _whole_days(bounds)
    low = wide.low
    while low < wide.high:
        # The next day that has messages, with all that lies before it and has none.
        given = (low, wide.high - 1)
        ((first_ns,),) = await fetch_rows(connection, SQL.messages.read_first, given)
        high = wide.high if first_ns is None else _whole_days(Bounds(first_ns, first_ns + 1)).high
        found = await _rebuild(connection, Bounds(low, high))
        await find_missing(connection, Bounds(low, high))
        messages += found
        days += found > 0
        low = high
        progress(FINE_TABLE, messages)
    return days, messages


def _whole_days(bounds: Bounds) -> Bounds:
    low = bounds.low // DAY_NS * DAY_NS
    high = -(-bounds.high // DAY_NS) * DAY_NS
    return Bounds(max(low, UNBOUNDED_LOW), min(high, UNBOUNDED_HIGH))


async def _rebuild(connection: Connection, bounds: Bounds) -> int:
    """Rebuild the buckets of whole days; return the number of messages in them."""
    # Nodes that publish faster than this folds must not keep it from continuing.
    position, _ = await newest(connection)
    await fold_until(connection, position)
    async with alone(connection):
        span = (bounds.low, bounds.high - 1)
        deltas = await unfolded(connection, await folded_position(connection))
        deltas = between(deltas, bounds.low, bounds.high)
        await delete_buckets(connection, [bounds])
        statement = sql.SQL(SQL.buckets.insert_minutes).format(minutes=minutes_of(bounds))
        await connection.execute(statement, columns([deltas]), prepare=False)
        for level in range(1, len(LEVELS_NS)):
            given = {"low": span[0], "last": span[1], "level": level, "length": LEVELS_NS[level]}
            await connection.execute(SQL.buckets.insert_level, given)
        for start, _ in await fetch_rows(connection, SQL.buckets.read_unknown_hours, span):
            await _seal_hour(connection, start)
        days = await fetch_rows(connection, SQL.buckets.read_unknown_days, span)
        await _seal_days(connection, days)
        ((messages,),) = await fetch_rows(connection, SQL.buckets.count_messages, span)
    return int(messages + deltas.counts.sum())
