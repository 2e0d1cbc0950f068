"""The number of stored messages over time, for operators.

Read from buckets, never from messages: it costs a few milliseconds however much is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.db.connection import Connection
from store.db.statements import SQL
from store.db.summaries.buckets import DAY_NS, HOUR_NS
from store.db.summaries.fold import is_pending
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
    while the newest commits are left out, which are not folded yet.
    """

    hours_start_ns: int
    hours: list[int]
    slots_start_ns: int
    slot_days: int
    slots: list[tuple[int, int]]
    complete: bool


async def read_timeline(connection: Connection, now_ns: int) -> Timeline:
    """Return the counts by time, in one snapshot; ``connection`` is not in a transaction."""
    today_ns = now_ns - now_ns % DAY_NS
    start_ns = max(0, today_ns - (TIMELINE_DAYS - 1) * DAY_NS)
    end_ns = start_ns + TIMELINE_DAYS * DAY_NS
    async with connection.transaction():
        await connection.execute(_BEGIN)
        complete = not await is_pending(connection)
        days = await _counts(connection, DAYS, 0, MAX_TIMESTAMP_NS)
        starts, messages = await _counts(connection, HOURS, start_ns, end_ns)
    counts = _summed((starts - start_ns) // HOUR_NS, messages, 24 * TIMELINE_DAYS)
    return Timeline(start_ns, counts.tolist(), *_slots(days, today_ns), complete)


_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]


async def _counts(connection: Connection, level: int, low_ns: int, high_ns: int) -> _Counts:
    cursor = await connection.execute(
        SQL.buckets.read_counts, (level, low_ns, high_ns), binary=True
    )
    ((packed,),) = await cursor.fetchall()
    assert isinstance(packed, bytes)
    rows = np.frombuffer(packed, _COUNT)
    return rows["start_ns"].astype(np.int64), rows["count"].astype(np.int64)


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
