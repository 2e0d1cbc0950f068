"""Lattice sums of ranges of time, in the transaction, and so in the snapshot, of a view.

a range ─► whole days and hours whose sums are known: from `buckets`
   ├─────► whole hours whose sums are not known, such as the newest: from their messages
   ├─────► parts of hours at its ends: from their messages
   └─────► what commits have added to known sums and no bucket has yet: from their messages
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

from psycopg import AsyncCursor

from reconcile.lattice import LatticeSum, most_summed
from reconcile.summaries.buckets import TimeBuckets as Buckets
from store.db.pool import Connection
from store.db.summaries.deltas import DAY_NS, HOUR_NS
from store.db.summaries.lattices import added, sum_of_time
from store.domain.partitioning import UNBOUNDED_HIGH
from store.domain.view import Times

_Add = Callable[[int, LatticeSum], None]

_LAST_POSITION: Final = UNBOUNDED_HIGH - 1

_DAYS: Final = f"""
select day.start_ns, day.count, day.lattice
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select start_ns, count, lattice from storenode.buckets
    where level = 2 and start_ns >= k.low and start_ns <= k.high - {DAY_NS}
      and lattice_count = count
    offset 0
) day
"""
_HOURS: Final = f"""
select hour.start_ns, hour.count, hour.lattice
from unnest(%(lows)b::bigint[], %(highs)b::bigint[]) as k(low, high)
cross join lateral (
    select start_ns, count, case when lattice_count = count then lattice end as lattice
    from storenode.buckets b
    where level = 1 and start_ns >= k.low and start_ns <= k.high - {HOUR_NS}
      and not exists (
          select from storenode.buckets day
          where day.level = 2 and day.start_ns = b.start_ns - b.start_ns %% {DAY_NS}
            and day.lattice_count = day.count
            and day.start_ns >= k.low and day.start_ns <= k.high - {DAY_NS})
    offset 0
) hour
"""


class _TooMany(Exception):
    """More messages would have to be expanded than is worth while, or summaries are wrong."""


class LatticeReader:
    """Reads sums; ``minutes``: what commits behind the position ``folded`` have added."""

    def __init__(self, connection: Connection, folded: int, minutes: Buckets) -> None:
        self._connection = connection
        self._folded = folded
        self._late = _by_hour(minutes)
        self._left = most_summed()

    async def read(self, spans: Sequence[Times]) -> list[LatticeSum] | None:
        """As `store.domain.view.OpenView.lattices`; once."""
        lows = [low for low, _ in spans]
        sums = [LatticeSum() for _ in spans]

        def add(start_ns: int, total: LatticeSum) -> None:
            sums[bisect_right(lows, start_ns) - 1] += total

        try:
            inside = [_whole_hours(*span) for span in spans]
            whole = [each for each in inside if each is not None]
            for low_ns, high_ns in _edges(spans, inside):
                add(low_ns, await self._expanded(low_ns, high_ns))
            unknown = await self._known(whole, add)
            for start_ns, count in unknown.items():
                total = await self._expanded(start_ns, start_ns + HOUR_NS)
                _demand(total.count, count + self._late.get(start_ns, 0))
                add(start_ns, total)
            await self._add_late(whole, unknown, add)
        except _TooMany:
            return None
        return sums

    async def _known(self, whole: Sequence[Times], add: _Add) -> dict[int, int]:
        """Add what is known of whole hours; the counts of the hours whose sums are not."""
        unknown: dict[int, int] = {}
        given = {"lows": [low for low, _ in whole], "highs": [high for _, high in whole]}
        for statement in (_DAYS, _HOURS):
            cursor: AsyncCursor[Any] = self._connection.cursor(binary=True)
            await cursor.execute(statement, given)
            async for start_ns, count, state in cursor:
                if state is None:
                    unknown[start_ns] = count
                else:
                    add(start_ns, LatticeSum.stored(count, bytes(state)))
        self._spend(sum(unknown.values()), taken=False)
        return unknown

    async def _add_late(self, whole: Sequence[Times], unknown: dict[int, int], add: _Add) -> None:
        late = {
            hour: count
            for hour, count in self._late.items()
            if hour not in unknown and any(low <= hour < high for low, high in whole)
        }
        self._spend(sum(late.values()))
        found = await added(self._connection, self._folded, _LAST_POSITION, list(late))
        for hour, count in late.items():
            total = found.get(hour, LatticeSum())
            _demand(total.count, count)
            add(hour, total)

    async def _expanded(self, low_ns: int, high_ns: int) -> LatticeSum:
        total = await sum_of_time(self._connection, low_ns, high_ns, self._left)
        self._spend(total.count)
        return total

    def _spend(self, count: int, *, taken: bool = True) -> None:
        if count > self._left:
            raise _TooMany
        self._left -= count if taken else 0


def _demand(found: int, expected: int) -> None:
    if found != expected:  # Summaries that contradict what is held prove nothing.
        raise _TooMany


def _by_hour(minutes: Buckets) -> dict[int, int]:
    late: dict[int, int] = {}
    for start_ns, count in zip(minutes.starts.tolist(), minutes.counts.tolist(), strict=True):
        hour = start_ns - start_ns % HOUR_NS
        late[hour] = late.get(hour, 0) + count
    return late


def _whole_hours(low_ns: int, high_ns: int) -> Times | None:
    """The whole hours of a range; None: there are none."""
    first_ns, end_ns = -(-low_ns // HOUR_NS) * HOUR_NS, high_ns - high_ns % HOUR_NS
    return (first_ns, end_ns) if first_ns < end_ns else None


def _edges(spans: Sequence[Times], whole: Sequence[Times | None]) -> list[Times]:
    """The parts of ranges that are not in their whole hours."""
    found: list[Times] = []
    for (low_ns, high_ns), inside in zip(spans, whole, strict=True):
        first_ns, end_ns = inside or (high_ns, high_ns)
        found += [(low_ns, first_ns), (end_ns, high_ns)]
    return [(low_ns, high_ns) for low_ns, high_ns in found if low_ns < high_ns]
