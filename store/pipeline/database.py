"""The state of a store node's database: its position, its summaries, and the archived hours.

Everything is read from the views that the migrations make for it. One snapshot gives a commit
position and the fingerprints of everything that was committed up to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import numpy as np
import psycopg

from reconcile.summaries.buckets import TimeBuckets
from store.db.buckets import RECORD, between, of_rows, unpack
from store.db.errors import SchemaError
from store.db.migrate import require_served
from store.pipeline.errors import FAILED, PipelineError, of_database
from store.pipeline.fingerprints import NOTHING, Fingerprint, Fingerprints, of_buckets
from store.pipeline.limits import HOUR_NS

Connection = psycopg.Connection[Any]
Range = tuple[int, int]
"""A range of time in nanoseconds, the end exclusive."""

FOREVER: Final = 2**63 - 1
ALL: Final = (0, FOREVER)

_SNAPSHOT: Final[LiteralString] = "set transaction isolation level repeatable read"
_STORE: Final[LiteralString] = (
    "select store_id::text, folded_position, position from storenode.export_store"
)
_BUCKETS: Final[LiteralString] = """
select start_ns, count, x0, x1, x2, x3 from storenode.export_buckets
where level = 1 and start_ns >= %s and start_ns < %s
"""
_UNFOLDED: Final[LiteralString] = """
select summary from storenode.export_commits
where position > %s and max_ts >= %s and min_ts < %s order by position desc
"""
_MARKS: Final[LiteralString] = """
select start_ns, count, x0, x1, x2, x3 from storenode.archived
where archive = %(archive)s or %(archive)s is null
"""
_MARKED: Final[LiteralString] = """
select archive from storenode.archived group by archive order by max(start_ns) desc
"""
_MARK: Final[LiteralString] = """
insert into storenode.archived (start_ns, count, x0, x1, x2, x3, position, archive)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (start_ns) do update set
    count = excluded.count, x0 = excluded.x0, x1 = excluded.x1, x2 = excluded.x2,
    x3 = excluded.x3, position = excluded.position, archive = excluded.archive,
    archived_at = excluded.archived_at
"""
_RESTORED: Final[LiteralString] = """
select coalesce(sum(messages), 0)::bigint from storenode.export_commits
where position > %s and source = 'restore'
"""
_TRY_LOCK: Final[LiteralString] = "select pg_try_advisory_lock(%s)"


@dataclass(frozen=True)
class DatabaseState:
    """A moment of a database: everything committed up to ``position``, and nothing else.

    ``hours`` are the fingerprints by hour.
    """

    store_id: str
    position: int
    hours: Fingerprints


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Open a connection in autocommit mode to a database with a schema that serves this version."""
    try:
        require_served(url)
        with psycopg.connect(url, autocommit=True) as connection:
            try:
                yield connection
            finally:
                # The server may see the end of a connection only after the next job wants its lock.
                with suppress(psycopg.Error):
                    connection.execute("select pg_advisory_unlock_all()")
    except SchemaError as error:
        raise PipelineError(f"The database does not fit: {error}.", FAILED) from error
    except psycopg.Error as error:
        raise of_database(error) from error


def read_state(connection: Connection, low_ns: int = 0, high_ns: int = FOREVER) -> DatabaseState:
    """Read one moment: fingerprints of the hours that begin in a range of time."""
    with connection.transaction():
        connection.execute(_SNAPSHOT)
        store_id, folded, position = read_store(connection)
        hours = _hours(connection, low_ns, high_ns, folded)
    return DatabaseState(store_id, position, hours)


def read_as_of(
    connection: Connection, positions: Mapping[str, int], within: Range, stored: Fingerprints
) -> tuple[Fingerprints, int]:
    """Read the hours ``within`` a range as of a commit position, see `as_of`.

    ``positions`` are by store ID; without one of this store it is as of now. Hours that retention
    has dropped since are left out. Memory does not grow with the commits since.
    """
    with connection.transaction():
        connection.execute(_SNAPSHOT)
        store_id, folded, newest = read_store(connection)
        now = _hours(connection, *within, folded)
        start = positions.get(store_id, newest)
        with connection.cursor("later") as later:
            later.execute(_UNFOLDED, (start, *within))
            return as_of(now, (bytes(summary) for (summary,) in later), stored)


def as_of(
    now: Fingerprints, newest_first: Iterable[bytes], stored: Fingerprints
) -> tuple[Fingerprints, int]:
    """Return hours without what some commits have added, and how many messages that is.

    An archive may hold messages of commits after the one that it names, in the order of commits. So
    an hour keeps what makes it that of ``stored``. Commits are given by their summaries.
    """
    found: Fingerprints = {}
    before = dict(now)
    for summary in newest_first:
        records, added = np.frombuffer(summary, RECORD), dict[int, Fingerprint]()
        hours = (records["start_ns"] // HOUR_NS * HOUR_NS).tolist()
        words = records["xor"].view("<i8").tolist()
        for hour, count, xor in zip(hours, records["count"].tolist(), words, strict=True):
            added[hour] = added.get(hour, NOTHING).joined(Fingerprint(count, *xor))
        for hour in added.keys() & before.keys():
            one, each = before[hour], added[hour]
            if one == stored.get(hour):
                found.setdefault(hour, one)
            before[hour] = one.joined(each)._replace(messages=one.messages - each.messages)
    wanted = before | found
    return wanted, sum(each.messages - wanted[hour].messages for hour, each in now.items())


def _hours(connection: Connection, low_ns: int, high_ns: int, folded: int) -> Fingerprints:
    rows = connection.execute(_BUCKETS, (low_ns, high_ns)).fetchall()
    stored = of_rows(HOUR_NS, rows)
    deltas = connection.execute(_UNFOLDED, (folded, low_ns, high_ns)).fetchall()
    added = TimeBuckets.join(HOUR_NS, [unpack(bytes(summary) for (summary,) in deltas)])
    return of_buckets(TimeBuckets.join(HOUR_NS, [stored, between(added, low_ns, high_ns)]))


def read_marks(connection: Connection, archive: str | None = None) -> Fingerprints:
    """Return hours as they were when they were marked as archived, in one archive or in any."""
    rows = connection.execute(_MARKS, {"archive": archive}).fetchall()
    return {start: Fingerprint(*rest) for start, *rest in rows}


def read_marked_archives(connection: Connection) -> list[str]:
    """Return the archives that hours are marked in; the one with the newest hour first."""
    return [archive for (archive,) in connection.execute(_MARKED)]


def mark_archived(connection: Connection, stored: Fingerprints, archive: str) -> int:
    """Mark those hours of which an archive holds exactly what the database does; return how many.

    ``stored`` is what the archive holds, by hour. A message that arrives later takes an hour's mark
    away, since the mark counts only while it agrees with the summaries.
    """
    if not stored:
        return 0
    now = read_state(connection, min(stored), max(stored) + HOUR_NS)
    rows = [
        (hour, *each, now.position, archive)
        for hour, each in sorted(stored.items())
        if now.hours.get(hour) == each
    ]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_MARK, rows)
    return len(rows)


def lock(connection: Connection, key: int, what: str) -> None:
    """Lock what a job does to a database, as long as the connection lives.

    ``key`` is a lock of `store.db.locks`, ``what`` a name of the work.
    """
    if connection.execute(_TRY_LOCK, (key,)).fetchone() != (True,):
        raise PipelineError(f"Another job is {what}: wait until it has ended, or end it.")


def restored_since(connection: Connection, position: int) -> int:
    """Return the number of messages that restores have added after a commit position."""
    ((messages,),) = connection.execute(_RESTORED, (position,)).fetchall()
    return int(messages)


def read_store(connection: Connection) -> tuple[str, int, int]:
    """Read the ID, the folded and the newest position of the store."""
    row: tuple[str, int, int]
    (row,) = connection.execute(_STORE).fetchall()  # `connected` has looked for it
    return row


def other_stores(connection: Connection, path: str, positions: Mapping[str, int]) -> list[str]:
    """Log and return a sentence if an archive has positions of other stores alone."""
    store_id, _, _ = read_store(connection)
    if not positions or store_id in positions:
        return []
    others = f"{path} is an archive of other stores: it has no commit of {store_id}."
    logging.getLogger("storenode.pipeline").warning(others)
    return [others]
