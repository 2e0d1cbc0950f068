"""Commits that a synchronous standby must hold before they are acknowledged.

Postgres makes a commit wait for the standby, but not under all circumstances. When the wait is
cancelled, the commit stands on the primary alone and the client is only warned. After a restart of
the primary such commits are visible, and what finds them there does not wait, since it writes
nothing. Both would turn into messages that were acknowledged and are lost when the standby is
promoted (PostgreSQL manual, "Synchronous Replication", "Planning for High Availability").
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic

from store.db.connection import Connection
from store.db.locks import COMMIT_ORDER
from store.db.statements import SQL

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


async def commit_canary(connection: Connection) -> None:
    """Commit a small write as a publish does; its errors are those of a publish."""
    statement = sql.SQL(SQL.messages.write_canary).format(
        now=sql.Literal(time.time_ns()), commit_order=sql.Literal(COMMIT_ORDER)
    )
    await connection.execute(statement, prepare=False)
