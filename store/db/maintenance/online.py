"""When the store was online: kept in the database, for the node that starts next and for clients.

Several nodes may share a database, so the later time counts; but a time that lies ahead of the
clock of who writes it came from a clock that was wrong, and does not stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from store.db.errors import sentence
from store.db.pool import Connection, Database
from store.domain.intake import Interval
from store.domain.ports import StoreUnavailable

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
    """Implements `store.sync.resume.driver.OnlineTimes` and `store.domain.intake.IntakeRecord`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> int:
        """Unix nanoseconds; 0: never."""

        async def read(connection: Connection) -> int:
            row = await (await connection.execute(_READ, binary=True)).fetchone()
            assert row is not None
            return row[0]  # type: ignore[return-value]

        return await self._database.read(read)

    async def note(self, online_ns: int, now_ns: int) -> None:
        """Persist that nothing up to ``online_ns`` was missed, by the clock ``now_ns``."""

        async def write(connection: Connection) -> None:
            await connection.execute(_NOTE, {"online": online_ns, "now": now_ns})

        await self._write(write)

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

        await self._write(write)

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Those that touch a range, and the first of all."""

        async def read(connection: Connection) -> list[Interval]:
            bounds = {"start": start_ns, "end": end_ns}
            cursor = await connection.execute(_OVERLAPPING, bounds, binary=True)
            return [Interval(*row) for row in await cursor.fetchall()]  # type: ignore[arg-type]

        return await self._database.read(read)

    async def _write(self, work: Callable[[Connection], Awaitable[None]]) -> None:
        database = self._database
        try:
            async with database.connection(database.write_pool) as connection:
                await work(connection)
        except (psycopg.Error, PoolTimeout) as error:
            raise StoreUnavailable(sentence(error)) from error
