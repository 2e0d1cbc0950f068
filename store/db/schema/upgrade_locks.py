"""Locks of an upgrade on tables that nodes use meanwhile: all before its first change.

Nodes lock tables in whatever order a statement names them, and Postgres in another one when it
takes up a prepared plan again. So no order of an upgrade's excludes that it and a writer wait for
each other, and Postgres may end the writer. Hence an upgrade that has a lock and waits for another
lets go of all before anybody can have waited for `deadlock_timeout`, when Postgres would look for a
deadlock. It then waits for the lock that it did not get, alone, lets go of that too, and tries
again. After its first change it waits for no table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from psycopg import Connection, errors, sql

from store.db.schema.names import SCHEMA

_ATTEMPT_MS: Final = 250
"""How long queries may queue behind an attempt; half of `deadlock_timeout` where that is less."""

_MIN_TIMEOUT_MS: Final = 1
_DEADLOCK_TIMEOUT: Final = "SELECT setting::int FROM pg_settings WHERE name = 'deadlock_timeout'"

# Those that many have open, the partitioned ones, come before their partitions.
_TABLES: Final = """
SELECT c.relname::text FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class p ON p.oid = i.inhparent
WHERE c.relnamespace = 'storenode'::regnamespace AND c.relkind IN ('r', 'p')
  AND coalesce(p.relname, c.relname) = ANY (%s)
ORDER BY c.relispartition, c.relname
"""


def lock_tables(connection: Connection[Any], tables: Iterable[str], patience_s: float) -> None:
    """Lock tables of ours, as far as there are, and their partitions in ACCESS EXCLUSIVE mode.

    Needs an open transaction that has no lock on a table. No partitions may be made meanwhile.

    Raises:
        psycopg.errors.LockNotAvailable: they were not to be had together in ``patience_s``, and
            the attempt that lasted until then.
    """
    deadline = time.monotonic() + patience_s
    names = [name for (name,) in connection.execute(_TABLES, (list(tables),))]
    ((timeout_ms,),) = connection.execute(_DEADLOCK_TIMEOUT).fetchall()
    attempt_s = min(_ATTEMPT_MS, timeout_ms / 2) / 1000
    while (missed := _try(connection, names, attempt_s)) is not None:
        if time.monotonic() >= deadline:
            raise errors.LockNotAvailable(f"{missed} was in use at every attempt")
        # Autovacuum, for one, makes way only for who waits longer than an attempt lasts.
        with connection.transaction(force_rollback=True):
            _lock(connection, missed, deadline)
        # Its users are the ones to keep out first.
        names = [missed, *(name for name in names if name != missed)]


def _try(connection: Connection[Any], names: Sequence[str], attempt_s: float) -> str | None:
    """Lock all of them, or none; then the one that was not to be had."""
    deadline = time.monotonic() + attempt_s
    name = ""
    try:
        with connection.transaction():
            for name in names:
                _lock(connection, name, deadline)
    except errors.LockNotAvailable:
        return name
    return None


def _lock(connection: Connection[Any], name: str, deadline: float) -> None:
    left_ms = max(_MIN_TIMEOUT_MS, round(1000 * (deadline - time.monotonic())))
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{left_ms}ms",))
    statement = sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE")
    connection.execute(statement.format(sql.Identifier(SCHEMA, name)), prepare=False)
