"""The times at which the store was online, in the database.

Several nodes may share a database, so the later time counts; but a time that lies ahead of the
clock of who writes it came from a clock that was wrong, and does not stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store.db.pool import Connection, Database
from store.domain.coverage import Interval

_READ: Final = "select coalesce(last_online_ns, 0) from storenode.store"
_NOTE: Final = """
update storenode.store set last_online_ns = case
    when last_online_ns between %(online)b::bigint and %(now)b::bigint then last_online_ns
    else %(online)b::bigint end
"""


_RECORD: Final = """
insert into storenode.online (start_ns, end_ns, resumed)
values (%(start)b::bigint, %(end)b::bigint, %(resumed)b::boolean)
on conflict (start_ns, resumed) do update set end_ns = greatest(online.end_ns, excluded.end_ns)
returning xmax = 0
"""
_PRUNE: Final = """
delete from storenode.online where start_ns < (
    select start_ns from storenode.online order by start_ns desc offset %(rows)b::bigint limit 1
)
"""
_OVERLAPPING: Final = """
(select start_ns, end_ns, resumed from storenode.online
 where end_ns >= %(start)b::bigint and start_ns < %(end)b::bigint)
union (select start_ns, end_ns, resumed from storenode.online order by start_ns limit 1)
"""
MAX_INTERVALS: Final = 10_000
"""Older ones are forgotten."""


class DatabaseOnlineTimes:
    """The record of when a node was online: `OnlineTimes` of a resume, and `IntakeRecord`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> int:
        """Return the last time in Unix nanoseconds; 0: never."""
        ((online_ns,),) = await self._database.rows(_READ)
        return int(online_ns)

    async def note(self, online_ns: int, now_ns: int) -> None:
        """Persist that nothing up to ``online_ns`` was missed, by the clock ``now_ns``."""

        async def write(connection: Connection) -> None:
            await connection.execute(_NOTE, {"online": online_ns, "now": now_ns})

        await self._database.write(write)

    async def record(self, interval: Interval) -> None:
        """Keep an interval; one with the same start and kind grows."""
        row = {
            "start": interval.start_ns,
            "end": interval.end_ns,
            "resumed": interval.resumed,
        }

        async def write(connection: Connection) -> None:
            cursor = await connection.execute(_RECORD, row, binary=True)
            if await cursor.fetchone() == (True,):
                await connection.execute(_PRUNE, {"rows": MAX_INTERVALS})

        await self._database.write(write)

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Return the intervals that touch a range, and the first of all."""
        bounds = {"start": start_ns, "end": end_ns}
        return [Interval(*row) for row in await self._database.rows(_OVERLAPPING, bounds)]
