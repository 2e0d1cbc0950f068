"""The number of stored messages over time, for operators.

Read from the summaries, never from messages: it costs a few milliseconds however much is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.summaries.buckets import TimeBuckets
from store.db.pool import Connection
from store.db.statements import SQL
from store.db.summaries.buckets import DAY_NS, HOUR_NS, between, coarser, folded_position, unpack
from store.db.summaries.fold import MAX_FOLD_BYTES, MAX_FOLD_COMMITS, following
from store.db.summaries.lattices import DAYS, HOURS
from storenode.message.limits import MAX_TIMESTAMP_NS

TIMELINE_DAYS: Final = 30
"""Days that are shown by the hour, today included."""

MAX_SLOTS: Final = 120
"""Parts that the whole history is shown in."""

_COUNT: Final = np.dtype([("start_ns", ">i8"), ("count", ">i8")])

_BEGIN: Final = "set transaction isolation level repeatable read, read only"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Messages by time; all starts are Unix nanoseconds, multiples of a day, in UTC.

    ``hours``: `TIMELINE_DAYS` times 24 counts from ``hours_start_ns`` on. ``slots`` divide the
    whole history from ``slots_start_ns`` on into parts of ``slot_days`` days: per part its
    messages, and how many of its days have any; none where nothing is held. ``complete``: False
    while so much is not folded that the newest commits are left out.
    """

    hours_start_ns: int
    hours: list[int]
    slots_start_ns: int
    slot_days: int
    slots: list[tuple[int, int]]
    complete: bool


async def read_timeline(connection: Connection, now_ns: int) -> Timeline:
    """Return the counts by time, in one snapshot; ``connection`` is not in a transaction."""
    async with connection.transaction():
        await connection.execute(_BEGIN)
        commits = await following(connection, await folded_position(connection))
        days = await _counts(connection, DAYS, 0, MAX_TIMESTAMP_NS)
        today_ns = now_ns - now_ns % DAY_NS
        start_ns = max(0, today_ns - (TIMELINE_DAYS - 1) * DAY_NS)
        end_ns = start_ns + TIMELINE_DAYS * DAY_NS
        hours = await _counts(connection, HOURS, start_ns, end_ns)
    deltas = [delta for _, delta in commits]
    minutes = unpack(deltas)
    complete = len(commits) < MAX_FOLD_COMMITS and sum(map(len, deltas)) < MAX_FOLD_BYTES
    by_hour = _joined(hours, coarser(between(minutes, start_ns, end_ns), HOUR_NS))
    by_day = _joined(days, coarser(minutes, DAY_NS))
    first_ns, slot_days, slots = _slots(by_day, today_ns)
    counts = _summed((by_hour[0] - start_ns) // HOUR_NS, by_hour[1], 24 * TIMELINE_DAYS)
    return Timeline(start_ns, counts.tolist(), first_ns, slot_days, slots, complete)


_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]


async def _counts(connection: Connection, level: int, low_ns: int, high_ns: int) -> _Counts:
    cursor = await connection.execute(
        SQL.buckets.read_counts, (level, low_ns, high_ns), binary=True
    )
    ((packed,),) = await cursor.fetchall()
    assert isinstance(packed, bytes)
    rows = np.frombuffer(packed, _COUNT)
    return rows["start_ns"].astype(np.int64), rows["count"].astype(np.int64)


def _joined(folded: _Counts, new: TimeBuckets) -> _Counts:
    """Return each start once, ascending, with the sum of both counts."""
    starts = np.concatenate([folded[0], new.starts])
    distinct, places = np.unique(starts, return_inverse=True)
    return distinct, _summed(places, np.concatenate([folded[1], new.counts]), len(distinct))


def _summed(places: NDArray[np.int64], counts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    sums = np.zeros(length, np.int64)
    np.add.at(sums, places, counts)
    return sums


def _slots(days: _Counts, today_ns: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Start, days per slot, and the slots from the first day with messages to today or the last."""
    starts, counts = days
    if not len(starts):
        return today_ns, 1, []
    first_ns, last_ns = int(starts[0]), max(int(starts[-1]), today_ns)
    length = (last_ns - first_ns) // DAY_NS + 1
    slot_days = -(-length // MAX_SLOTS)
    places = (starts - first_ns) // (slot_days * DAY_NS)
    slots = -(-length // slot_days)
    messages = _summed(places, counts, slots).tolist()
    return (
        first_ns,
        slot_days,
        list(zip(messages, np.bincount(places, minlength=slots).tolist(), strict=True)),
    )
