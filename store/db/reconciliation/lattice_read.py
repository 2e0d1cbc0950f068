"""Lattice sums of a range of time, out of what is stored and what is not stored yet.

Days and hours whose sums are known are added up; other hours, such as the newest, are summed up
from their messages; and what commits have added that no bucket has yet comes on top. All of it in
the transaction, and so in the snapshot, of a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from reconcile.lattice import LatticeSum
from store.db.pool import Connection
from store.db.summaries.deltas import DAY_NS, HOUR_NS
from store.db.summaries.lattices import DAYS, HOURS, added, sum_of_states, sum_of_time
from store.domain.partitioning import UNBOUNDED_HIGH

MAX_SUMMED_MESSAGES: Final = 200_000
"""Messages that one read expands, 45 ms of processor time with the kernel; with more it is not
known."""

_STATES_AT_ONCE: Final = 512
_LAST_POSITION: Final = UNBOUNDED_HIGH - 1

_DAYS: Final = f"""
select start_ns, count from storenode.buckets
where level = 2 and start_ns >= %b::bigint and start_ns <= %b::bigint - {DAY_NS}
  and lattice_count = count
"""
_HOURS: Final = f"""
select start_ns, count, lattice_count is not distinct from count from storenode.buckets
where level = 1 and start_ns >= %b::bigint and start_ns < %b::bigint
  and start_ns - start_ns %% {DAY_NS} <> all(%b::bigint[])
"""
_STATES: Final = """
select string_agg(lattice, ''::bytea) from storenode.buckets
where level = %b::smallint and start_ns = any(%b::bigint[])
"""


async def read_lattice(
    connection: Connection, low_ns: int, high_ns: int, folded: int, unfolded: Mapping[int, int]
) -> LatticeSum | None:
    """The sum of whole hours; None: too many of their messages are in no sum that is known.

    ``unfolded``: how many messages commits behind ``folded`` have added, by hour.
    """
    days: dict[int, int] = dict(await _rows(connection, _DAYS, low_ns, high_ns))
    hours = await _rows(connection, _HOURS, low_ns, high_ns, list(days))
    known = {start: count for start, count, is_known in hours if is_known}
    unknown = {start: count for start, count, is_known in hours if not is_known}
    if sum(unknown.values()) + sum(unfolded.values()) > MAX_SUMMED_MESSAGES:
        return None
    total = LatticeSum()
    for level, counts in ((DAYS, days), (HOURS, known)):
        total += await _stored(connection, level, counts)
    for start in unknown:
        total += await sum_of_time(connection, start, start + HOUR_NS)
    late = [start for start in unfolded if start not in unknown]
    for each in (await added(connection, folded, _LAST_POSITION, late)).values():
        total += each
    parts = (days, known, unknown, unfolded)
    # Summaries that contradict what is held prove nothing.
    return total if total.count == sum(sum(each.values()) for each in parts) else None


async def _stored(connection: Connection, level: int, counts: Mapping[int, int]) -> LatticeSum:
    total, starts = LatticeSum(), list(counts)
    for first in range(0, len(starts), _STATES_AT_ONCE):
        some = starts[first : first + _STATES_AT_ONCE]
        ((states,),) = await _rows(connection, _STATES, level, some)
        total += sum_of_states(sum(counts[start] for start in some), [states])
    return total


async def _rows(
    connection: Connection, statement: str, *values: int | Sequence[int]
) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement, values, binary=True)
    return await cursor.fetchall()
