"""Advisory locks, the same for every node on one database, and exclusive locks on tables.

A transaction takes them in this order: MIGRATION, then FOLDING before anything else, PARTITIONS
before the tables that it creates or drops, COMMIT_ORDER after the tables' own locks, last of all.
An upgrade of the schema takes the first three, and then the locks of the tables that it changes.
The upper half spells "stor", so that other programs in the same database are not met by accident.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from psycopg import AsyncConnection, sql

from store.db.schema.names import SCHEMA
from store.db.statements import SQL

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
"""Held while buckets are changed."""

ARCHIVING: Final = _NAMESPACE | 6
"""Held by the session of the one job that archives the database."""

RESTORING: Final = _NAMESPACE | 7
"""Held by the session of the one job that restores messages into the database."""

NODES: Final = _NAMESPACE | 8
"""Shared by the sessions of all nodes that work on the database: so many hold it, so many do."""

COVERAGE: Final = _NAMESPACE | 9
"""Held while statements of sessions are replaced; no other lock is taken meanwhile."""


CLAIMING: Final = _NAMESPACE | 10
"""Held while ``missing_parents`` is changed; no other of these locks is taken meanwhile."""


UNHURRIED_MS: Final = 10_000
"""How long a fold, or the like, waits for another one."""


async def lock_unhurried(connection: AsyncConnection[Any], lock: int) -> None:
    """Take a lock until the end of a transaction whose work is done again if it is lost.

    What a crash of the server takes back is done again, so the commit need not wait for the disk.
    """
    await connection.execute(SQL.partitions.set_unhurried, (f"{UNHURRIED_MS}ms",))
    await connection.execute(SQL.partitions.lock, (lock,))


async def set_lock_timeout(connection: AsyncConnection[Any], timeout_ms: int) -> None:
    """Let every lock of this transaction that takes longer fail (`LockNotAvailable`)."""
    await connection.execute(SQL.partitions.set_lock_timeout, (f"{timeout_ms}ms",))


async def lock_exclusively(
    connection: AsyncConnection[Any], tables: Sequence[str], timeout_ms: int
) -> None:
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
