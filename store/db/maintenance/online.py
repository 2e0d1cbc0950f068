"""The times at which the store was online, in the database.

Several nodes may share a database, so the later time counts; but a time that lies ahead of the
clock of who writes it came from a clock that was wrong, and does not stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.db.connection import Connection, fetch_row
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.coverage import Interval

MAX_INTERVALS: Final = 10_000
"""Older ones are forgotten."""


class DatabaseOnlineTimes:
    """The record of when a node was online: `OnlineTimes` of a resume."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> int:
        """Return the last time in Unix nanoseconds; 0: never."""
        ((online_ns,),) = await self._database.rows(SQL.stores.read_online)
        return int(online_ns)

    async def note(self, online_ns: int, now_ns: int) -> None:
        """Persist that nothing up to ``online_ns`` was missed, by the clock ``now_ns``."""
        given = {"online": online_ns, "now": now_ns}
        await self._database.write(lambda it: it.execute(SQL.stores.note_online, given))

    async def record(self, interval: Interval) -> None:
        """Keep an interval; one with the same start and kind grows."""
        row = {"start": interval.start_ns, "end": interval.end_ns, "resumed": interval.resumed}

        async def write(connection: Connection) -> None:
            if await fetch_row(connection, SQL.stores.record_online, row) == (True,):
                await connection.execute(SQL.stores.prune_online, {"rows": MAX_INTERVALS})

        await self._database.write(write)

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Return the intervals that touch a range, and the first of all."""
        bounds = {"start": start_ns, "end": end_ns}
        rows = await self._database.rows(SQL.stores.read_online_between, bounds)
        return [Interval(*row) for row in rows]
