"""The check of the summaries of the history against the messages.

Buckets and unfolded deltas together are compared with the messages, minute by minute, and coarser
levels with finer ones; known lattice sums of hours with their messages, those of days with their
hours. Each comparison sees one snapshot, so it can run beside nodes that publish, fold and drop;
what is compared just then cannot be dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString

from psycopg import Connection as PsycopgConnection
from psycopg import errors as pg
from psycopg import sql

from reconcile.lattice import LatticeSum
from store.db.arrays import BigintArray, register
from store.db.checks.findings import Findings
from store.db.schema.names import BUCKETS_TABLE, FINE_TABLE, SCHEMA
from store.db.statements import SQL
from store.db.summaries.buckets import (
    HOUR_NS,
    between,
    columns,
    minutes_of,
    unpack,
)
from store.domain.partitioning import UNBOUNDED_HIGH, UNBOUNDED_LOW, Bounds, Cover
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S

Connection = PsycopgConnection[Any]

WRONG_LATTICE: Final = "lattice sum differs from what it is made of"


def wrong_hours(connection: Connection, table: str, bounds: Bounds) -> list[int]:
    """Return starts of the whole hours of a range whose known sum is not that of their messages.

    ``table`` holds these messages. In the caller's transaction, which has one snapshot.
    """
    cursor = connection.cursor(binary=True)
    given = (bounds.low, bounds.high - HOUR_NS)
    known = cursor.execute(SQL.buckets.check_known_hours, given).fetchall()
    unfolded = _unfolded_sums(connection, [start for start, *_ in known])
    wrong = []
    for start, count, state in known:
        found = _sum_of_hour(connection, table, start) - unfolded.get(start, LatticeSum())
        if found != LatticeSum.stored(count, bytes(state)):
            wrong.append(start)
    return wrong


def _sum_of_hour(connection: Connection, table: str, start_ns: int) -> LatticeSum:
    statement = sql.SQL(SQL.messages.read_elements_of_hour).format(
        table=sql.Identifier(SCHEMA, table),
        low=sql.Literal(start_ns),
        last=sql.Literal(start_ns + HOUR_NS - 1),
    )
    total = LatticeSum()
    with connection.cursor(name="storenode_lattices", binary=True) as cursor:
        for (elements,) in cursor.execute(statement):
            total += LatticeSum.of(bytes(elements))
    return total


def _unfolded_sums(connection: Connection, hours: list[int]) -> dict[int, LatticeSum]:
    cursor = connection.cursor(binary=True)
    ((folded,),) = cursor.execute(SQL.stores.read_folded_position).fetchall()
    given = {"after": folded, "until": UNBOUNDED_HIGH - 1, "hours": hours}
    rows = cursor.execute(SQL.messages.read_added_elements, given).fetchall()
    return {hour: LatticeSum.of(bytes(elements)) for hour, elements in rows}


def wrong_days(connection: Connection) -> list[int]:
    """Return starts of the days whose known sum is not that of their known hours."""
    days = [start for (start,) in connection.execute(SQL.buckets.check_days).fetchall()]
    return [start for start in days if _is_wrong(connection, start)]


def _is_wrong(connection: Connection, start_ns: int) -> bool:
    cursor = connection.cursor(binary=True)
    rows = cursor.execute(SQL.buckets.check_day, (start_ns,)).fetchall()
    hours = (LatticeSum.stored(count, bytes(state)) for _, count, state in rows)
    total = sum(hours, LatticeSum())
    return bool(rows) and bytes(rows[0][0]) != total.state_bytes()


WRONG_SUMMARY: Final = "summary differs from its messages"
FOLDED_BEYOND: Final = "folded beyond the newest commit"
WRONG_LEVEL: Final = "summary differs from those it is made of"

_FETCH_ROWS: Final = 1_000
_LEVEL_NAMES: Final = ("minute", "hour", "day")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_SNAPSHOT: Final[LiteralString] = "set transaction isolation level repeatable read"
_KEEP: Final[LiteralString] = "lock table only {} in access share mode"


@dataclass(frozen=True, slots=True)
class _Slice:
    """A range of time, and the partition whose messages it has; None: there is none."""

    bounds: Bounds
    partition: str | None


def check_summaries(
    connection: Connection,
    findings: Findings,
    partitions: Sequence[tuple[str, Bounds]],
    sample: int | None,
    progress: Callable[[str, int], None],
) -> int:
    """Compare summaries with messages; returns the number of minutes whose buckets were read.

    ``partitions`` are those of messages, by name. ``sample`` takes hours at random that have about
    so many messages; None: everything.
    """
    store = connection.execute(SQL.stores.check_folded).fetchone()
    if store is None:
        return 0  # how much is folded was lost, which the check says already
    folded, newest = store
    if folded > newest:
        findings.add(FOLDED_BEYOND, "store", f"folded up to {folded}, committed up to {newest}")
    done = 0
    slices = _everything(partitions) if sample is None else _hours(connection, partitions, sample)
    for each in slices:
        done += _compare(connection, findings, each)
        progress(BUCKETS_TABLE, done)
    _compare_levels(connection, findings)
    return done


def _everything(partitions: Sequence[tuple[str, Bounds]]) -> Iterator[_Slice]:
    for name, bounds in partitions:
        yield _Slice(bounds, name)
    for bounds in Cover(bounds for _, bounds in partitions).gaps(UNBOUNDED_LOW, MAX_TIMESTAMP_NS):
        yield _Slice(bounds, None)


def _hours(
    connection: Connection, partitions: Sequence[tuple[str, Bounds]], sample: int
) -> Iterator[_Slice]:
    names = {bounds: name for name, bounds in partitions}
    cover = Cover(names)
    hours = connection.execute(SQL.buckets.check_hours).fetchall()
    random.shuffle(hours)
    messages = 0
    for start_ns, count in hours:
        if messages >= sample:
            return
        bounds = cover.find(start_ns)
        if bounds is not None:
            messages += count
            yield _Slice(Bounds(start_ns, min(start_ns + HOUR_NS, bounds.high)), names[bounds])


def _compare(connection: Connection, findings: Findings, each: _Slice) -> int:
    """Compare one slice in one snapshot; returns the number of minutes that have a bucket."""
    table = sql.Identifier(SCHEMA, each.partition or FINE_TABLE)
    low, last = each.bounds.low, each.bounds.high - 1
    statement = sql.SQL(SQL.buckets.check_minutes).format(
        minutes=minutes_of(table, each.bounds),
        low=sql.Literal(low),
        last=sql.Literal(last),
    )
    try:
        with connection.transaction():
            connection.execute(_SNAPSHOT)
            # The snapshot begins with the next statement: what is seen there stays.
            connection.execute(sql.SQL(_KEEP).format(table))
            unfolded = _unfolded(connection, each.bounds)
            ((buckets,),) = connection.execute(SQL.buckets.check_count, (low, last)).fetchall()
            cursor = connection.cursor()
            register(cursor)
            rows = cursor.execute(statement, unfolded).fetchall()
            wrong = wrong_hours(connection, each.partition or FINE_TABLE, each.bounds)
    except pg.UndefinedTable:
        return 0  # retention was faster
    for start_ns, stored, said in rows:
        findings.add(WRONG_SUMMARY, BUCKETS_TABLE, _example(0, start_ns, stored, said, "held"))
    for start_ns in wrong:
        findings.add(WRONG_LATTICE, BUCKETS_TABLE, _named(1, start_ns))
    return int(buckets)


def _unfolded(connection: Connection, bounds: Bounds) -> list[BigintArray]:
    minutes = []
    with connection.cursor(name="storenode_check", binary=True) as cursor:
        cursor.execute(SQL.commits.read_unfolded, (bounds.low, bounds.high - 1))
        while rows := cursor.fetchmany(_FETCH_ROWS):
            found = unpack(summary for (summary,) in rows)
            minutes.append(between(found, bounds.low, bounds.high))
    return columns(minutes)


def _compare_levels(connection: Connection, findings: Findings) -> None:
    for level, start_ns, finer, said in connection.execute(SQL.buckets.check_levels):
        example = _example(level, start_ns, finer, said, f"by {_LEVEL_NAMES[level - 1]}")
        findings.add(WRONG_LEVEL, BUCKETS_TABLE, example)
    for start_ns in wrong_days(connection):
        findings.add(WRONG_LATTICE, BUCKETS_TABLE, _named(2, start_ns))


def _named(level: int, start_ns: int) -> str:
    moment = _EPOCH + timedelta(seconds=start_ns // NS_PER_S)
    return f"{_LEVEL_NAMES[level]} {moment:%Y-%m-%dT%H:%M}Z ({start_ns})"


def _example(level: int, start_ns: int, right: int, said: int, right_is: str) -> str:
    name = _named(level, start_ns)
    if right == said:
        return f"{name}: {said} messages, but of other hashes"
    return f"{name}: {right} messages {right_is}, {said} in the summary"
