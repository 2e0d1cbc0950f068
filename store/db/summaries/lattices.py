"""Lattice sums of hours and days: summaries that a publisher cannot forge.

    an hour is over --maintainer--> its messages are summed up, once (`seal`)
    a late message  --fold--------> is added in the fold's transaction (`late_sums`)
    a view          --------------> adds what is not folded yet (`added`)

A bucket's sum is that of ``lattice_count`` messages. Buckets only gain messages, and go with their
partition, so it is the sum of the bucket if, and only if, that is its count; another one, or NULL,
is not known, and nothing follows from it. So a fold that ignores sums does no harm. An hour is
summed up in a transaction of its own, in which nothing is folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from reconcile.ids import ELEMENT_BYTES
from reconcile.lattice import LatticeSum
from reconcile.summaries.buckets import TimeBuckets
from store.db.connection import Connection, fetch_rows
from store.db.locks import FOLDING
from store.db.statements import SQL
from store.db.summaries.buckets import DAY_NS, HOUR_NS, MINUTE_NS, folded_position
from store.domain.partitioning import UNBOUNDED_HIGH, UNBOUNDED_LOW, Bounds
from storenode.message.limits import CONTENT_DIGEST_BYTES

MAX_LATE_MESSAGES: Final = 100_000
"""Messages that are added to known sums at a time; where there are more, the sum is made anew."""

THREADED_ELEMENTS: Final = 4_096
"""From so many on, expanding them takes more than a millisecond, and is left to a thread."""

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


async def unknown_hours(connection: Connection, bounds: Bounds) -> list[tuple[int, int]]:
    """Return starts and counts of the hours whose sum is not known; those that never were first."""
    given = (bounds.low, bounds.high - 1)
    return await fetch_rows(connection, SQL.buckets.read_unknown_hours, given)


async def unknown_days(connection: Connection, bounds: Bounds) -> list[int]:
    """Return starts of the days whose sum is not known, while those of all their hours are."""
    given = (bounds.low, bounds.high - 1)
    rows = await fetch_rows(connection, SQL.buckets.read_unknown_days, given)
    return [start for (start,) in rows]


async def seal_hours(connection: Connection, hours: Sequence[int], folded: int) -> None:
    """Sum hours up and keep that; under FOLDING, in one snapshot, in which so much is folded."""
    unfolded = await added(connection, folded, UNBOUNDED_HIGH - 1, hours)
    for start in hours:
        everything = await sum_of_time(connection, start, start + HOUR_NS)
        total = everything - unfolded.get(start, LatticeSum())
        await write_sums(connection, {(HOURS, start): total})


async def seal_days(connection: Connection, days: Sequence[int]) -> None:
    """Make the sums of days of those of their hours, all of which are known; under FOLDING."""
    for start in days:
        rows = await fetch_rows(connection, SQL.buckets.read_hours_of_day, (start, start))
        total = LatticeSum.total([LatticeSum.stored(count, state) for count, state in rows])
        await write_sums(connection, {(DAYS, start): total})


SETTLING_NS: Final = 10 * MINUTE_NS
"""How long after its end an hour is left alone: what comes later is added one by one."""

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
    over = Bounds(UNBOUNDED_LOW, end_ns - HOUR_NS + 1)
    for start, count in await unknown_hours(connection, over):
        if messages >= MAX_SEALED_MESSAGES:
            break
        async with alone(connection):
            await seal_hours(connection, [start], await folded_position(connection))
        messages += count
        sealed += 1
    days = await unknown_days(connection, Bounds(UNBOUNDED_LOW, end_ns - DAY_NS + 1))
    if days:
        async with alone(connection):
            await seal_days(connection, days)
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
