"""Summing up what is over: each hour once, the newest first, then the days of known hours.

It also builds the sums of a database from before, and repairs what is not known. An hour takes a
transaction of its own, in which nobody folds; one that is cut short has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from psycopg import AsyncConnection

from store.db.locks import FOLDING
from store.db.summaries.deltas import DAY_NS, HOUR_NS, MINUTE_NS
from store.db.summaries.fold import folded_position
from store.db.summaries.lattices import seal_days, seal_hours, unknown_days, unknown_hours
from store.domain.partitioning import UNBOUNDED_LOW, Bounds

Connection = AsyncConnection[Any]

SETTLING_NS: Final = 10 * MINUTE_NS
"""How long after its end an hour is left alone: what comes later is added one by one."""

MAX_SEALED_MESSAGES: Final = 1_000_000
"""Messages after which a call ends: about half a second of processor time with the kernel."""

_LOCK: Final = "select pg_advisory_lock(%s)"
_UNLOCK: Final = "select pg_advisory_unlock(%s)"
_SNAPSHOT: Final = "set transaction isolation level repeatable read"


async def seal(connection: Connection, now_ns: int) -> int:
    """Sum up hours and days that are over and whose sums are not known; returns how many hours.

    ``connection`` is in autocommit mode. Hours are left to the next call once
    `MAX_SEALED_MESSAGES` are summed up.

    Raises:
        psycopg.Error: the database did not serve; what was summed up until then is kept.
    """
    end_ns = now_ns - SETTLING_NS
    messages = sealed = 0
    over = Bounds(UNBOUNDED_LOW, end_ns - HOUR_NS + 1)
    for start, count in await unknown_hours(connection, over):
        if messages >= MAX_SEALED_MESSAGES:
            break
        async with alone(connection):
            await seal_hours(connection, [start], await folded_position(connection))
        messages += count
        sealed += 1
    days = await unknown_days(connection, Bounds(UNBOUNDED_LOW, end_ns - DAY_NS + 1))
    if days:
        async with alone(connection):
            await seal_days(connection, days)
    return sealed


@asynccontextmanager
async def alone(connection: Connection) -> AsyncIterator[None]:
    """One snapshot in which nobody folds; the lock comes before the transaction, and so before it.

    ``connection`` is in autocommit mode.
    """
    await connection.execute(_LOCK, (FOLDING,))
    try:
        async with connection.transaction():
            await connection.execute(_SNAPSHOT)
            yield
    finally:
        if not connection.closed:
            await connection.execute(_UNLOCK, (FOLDING,))
