"""Are the known lattice sums those of what is held?

An hour is compared with its messages, a day with its hours; sums that are not known say nothing and
are passed over. Each comparison sees one snapshot, so it can run beside nodes.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection
from psycopg import sql

from reconcile.lattice import LatticeSum
from store.db.schema.names import SCHEMA
from store.db.summaries.deltas import DAY_NS, HOUR_NS, MINUTE_NS
from store.db.summaries.lattices import ADDED, ELEMENT
from store.domain.partitioning import UNBOUNDED_HIGH, Bounds

Connection = PsycopgConnection[Any]

WRONG_LATTICE: Final = "lattice sum differs from what it is made of"

_KNOWN: Final[LiteralString] = """
select start_ns, count, lattice from storenode.buckets
where level = 1 and start_ns >= %s and start_ns <= %s and lattice_count = count order by start_ns
"""
_FOLDED: Final[LiteralString] = "select folded_position from storenode.store"
_ELEMENTS: Final[LiteralString] = f"""
select string_agg({ELEMENT}, ''::bytea) from {{table}} m where ts >= {{low}} and ts <= {{last}}
group by ts / {MINUTE_NS}
"""
_KNOWN_DAYS: Final[LiteralString] = "select start_ns from storenode.buckets where level = 2"
_DAY: Final[LiteralString] = f"""
select day.lattice, hour.count, hour.lattice from storenode.buckets day
join storenode.buckets hour on hour.level = 1 and hour.start_ns >= day.start_ns
                           and hour.start_ns < day.start_ns + {DAY_NS}
where day.level = 2 and day.start_ns = %s and day.lattice_count = day.count
  and not exists (
      select from storenode.buckets other
      where other.level = 1 and other.start_ns >= day.start_ns
        and other.start_ns < day.start_ns + {DAY_NS}
        and other.lattice_count is distinct from other.count)
"""


def wrong_hours(connection: Connection, table: str, bounds: Bounds) -> list[int]:
    """Starts of the whole hours in a range of time whose known sum is not that of their messages.

    ``table`` holds these messages. In the caller's transaction, which has one snapshot.
    """
    cursor = connection.cursor(binary=True)
    given = (bounds.low, bounds.high - HOUR_NS)
    known = cursor.execute(_KNOWN, given).fetchall()
    unfolded = _unfolded(connection, [start for start, *_ in known])
    wrong = []
    for start, count, state in known:
        found = _held(connection, table, start) - unfolded.get(start, LatticeSum())
        if found != LatticeSum.stored(count, bytes(state)):
            wrong.append(start)
    return wrong


def _held(connection: Connection, table: str, start_ns: int) -> LatticeSum:
    statement = sql.SQL(_ELEMENTS).format(
        table=sql.Identifier(SCHEMA, table),
        low=sql.Literal(start_ns),
        last=sql.Literal(start_ns + HOUR_NS - 1),
    )
    total = LatticeSum()
    with connection.cursor(name="storenode_lattices", binary=True) as cursor:
        for (elements,) in cursor.execute(statement):
            total += LatticeSum.of(bytes(elements))
    return total


def _unfolded(connection: Connection, hours: list[int]) -> dict[int, LatticeSum]:
    cursor = connection.cursor(binary=True)
    ((folded,),) = cursor.execute(_FOLDED).fetchall()
    given = {"after": folded, "until": UNBOUNDED_HIGH - 1, "hours": hours}
    rows = cursor.execute(ADDED, given).fetchall()
    return {hour: LatticeSum.of(bytes(elements)) for hour, elements in rows}


def wrong_days(connection: Connection) -> list[int]:
    """Starts of the days whose known sum is not that of their hours, all of which are known."""
    days = [start for (start,) in connection.execute(_KNOWN_DAYS).fetchall()]
    return [start for start in days if _is_wrong(connection, start)]


def _is_wrong(connection: Connection, start_ns: int) -> bool:
    cursor = connection.cursor(binary=True)
    rows = cursor.execute(_DAY, (start_ns,)).fetchall()
    hours = (LatticeSum.stored(count, bytes(state)) for _, count, state in rows)
    total = sum(hours, LatticeSum())
    return bool(rows) and bytes(rows[0][0]) != total.state_bytes()
