"""Waits of commits: for locks, the same for every node on one database, and for a standby.

A transaction takes them in this order: MIGRATION, then FOLDING before anything else, PARTITIONS
before the tables that it creates or drops, COMMIT_ORDER after the tables' own locks, last of all.
An upgrade of the schema takes the first three, and then the locks of the tables that it changes.
The upper half spells "stor", so that other programs in the same database are not met by accident.

Postgres makes a commit wait for the standby, but not under all circumstances. When the wait is
cancelled, the commit stands on the primary alone and the client is only warned. After a restart of
the primary such commits are visible, and what finds them there does not wait, since it writes
nothing. Both would turn into messages that were acknowledged and are lost when the standby is
promoted (PostgreSQL manual, "Synchronous Replication", "Planning for High Availability").
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic

from store.db.connection import Connection, fetch_row
from store.db.statements import SCHEMA, SQL

_MIN_TIMEOUT_MS: Final = 1
_NAMESPACE: Final = 0x73746F72 << 32

COMMIT_ORDER: Final = _NAMESPACE | 1
"""Held by a writing transaction for its last step: positions appear in commit order."""

PARTITIONS: Final = _NAMESPACE | 2
"""Held while partitions are created or dropped."""

MAINTENANCE: Final = _NAMESPACE | 3
"""Held by the session of the one node that does the maintenance."""

MIGRATION: Final = _NAMESPACE | 4
"""Held while the schema is upgraded."""

FOLDING: Final = _NAMESPACE | 5
"""Held while ``buckets`` or ``missing_parents`` are changed."""

ARCHIVING: Final = _NAMESPACE | 6
"""Held by the session of the one job that archives the database."""

RESTORING: Final = _NAMESPACE | 7
"""Held by the session of the one job that restores messages into the database."""

NODES: Final = _NAMESPACE | 8
"""Shared by the sessions of all nodes that work on the database: its holders are their number."""

COVERAGE: Final = _NAMESPACE | 9
"""Held while statements of sessions are replaced; no other lock is taken meanwhile."""


UNHURRIED_MS: Final = 10_000
"""The time that a fold, or similar work, waits for another one."""


async def lock_unhurried(connection: Connection, lock: int) -> None:
    """Take a lock until the end of a transaction whose work is done again if it is lost.

    What a crash of the server takes back is done again, so the commit need not wait for the disk.
    """
    await connection.execute(SQL.partitions.set_unhurried, (f"{UNHURRIED_MS}ms",))
    await connection.execute(SQL.partitions.lock, (lock,))


async def set_lock_timeout(connection: Connection, timeout_ms: int) -> None:
    """Let every lock of this transaction that takes longer fail (`LockNotAvailable`)."""
    await connection.execute(SQL.partitions.set_lock_timeout, (f"{timeout_ms}ms",))


async def lock_exclusively(connection: Connection, tables: Sequence[str], timeout_ms: int) -> None:
    """Lock tables of ours in ACCESS EXCLUSIVE mode, in this order, within one time limit.

    While a lock is waited for, every later query of that table waits behind it, and while the
    next one is waited for, those of the first: hence one limit for all. Partitions of a table are
    locked only when they are named. Needs an open transaction.

    Raises:
        psycopg.errors.LockNotAvailable: another session kept a lock for longer.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    for table in tables:
        left_ms = round(1000 * (deadline - time.monotonic()))
        await set_lock_timeout(connection, max(_MIN_TIMEOUT_MS, left_ms))
        statement = sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE")
        await connection.execute(statement.format(sql.Identifier(SCHEMA, table)), prepare=False)


# Commits that a synchronous standby must hold before they are acknowledged

_WAITER: Final = "SyncRepWaitForLSN"
"""The function of Postgres that warns; the text of the warning depends on the server's language."""


class StandbyNotWaitedForError(psycopg.OperationalError):
    """A commit is on the primary and perhaps not on the standby; to try again is safe."""


@contextmanager
def waiting_for_standby(connection: Connection) -> Iterator[None]:
    """Commit in this block; it ends well only if no wait for the standby was cancelled.

    Raises:
        StandbyNotWaitedForError: one was.
    """
    warnings: list[Diagnostic] = []

    def note(diagnostic: Diagnostic) -> None:
        if diagnostic.source_function == _WAITER:
            warnings.append(diagnostic)

    connection.add_notice_handler(note)
    try:
        yield
    finally:
        connection.remove_notice_handler(note)
    if warnings:
        raise StandbyNotWaitedForError("a commit did not wait for the standby")


async def cover_what_is_visible(connection: Connection) -> None:
    """Let the commit of this transaction wait until the standby holds all that was seen in it.

    Costs a record in the log where there is a synchronous standby, and nothing elsewhere: what is
    visible on a server alone is on its disk.
    """
    await connection.execute(SQL.partitions.wait_for_standby)


async def read_stall(connection: Connection) -> str | None:
    """Return a sentence on what the longest waiting write waits for; None if none waits.

    A role without ``pg_read_all_stats`` sees what its own sessions wait for; of another role's
    session that holds a lock it sees the process ID and the role.

    Raises:
        psycopg.Error: the database refused.
    """
    row = await fetch_row(connection, SQL.partitions.find_stall, (COMMIT_ORDER,))
    if row is None:
        return None
    pid, is_lock, wait, application, role, state, standbys, connected = map(str, row)
    if wait == "SyncRep":
        return (
            "commits wait for synchronous replication: synchronous_standby_names is"
            f" '{standbys}', and {connected} standbys are connected"
        )
    if is_lock == "True":
        holder = ", ".join(filter(None, (application, f"role {role}", state)))
        return (
            f"a lock is held by pid {pid} ({holder}): end its work, or pg_terminate_backend({pid})"
        )
    return f"commits wait for the database's disk ({wait})"
