"""The record of how complete a store is: the tables ``online`` and ``coverage``.

``online`` has the times at which the store was online. Several nodes may share a database, so the
later time counts; but a time that lies ahead of the clock of who writes it came from a clock that
was wrong, and does not stay. ``coverage`` has statements of sessions about other stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.locks import COVERAGE
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.coverage import Interval, Statement, replaced

MAX_INTERVALS: Final = 10_000
"""Intervals that are kept: the newest ones."""

MAX_STORES: Final = 64
"""Stores about which statements are kept: the last ones that were compared."""
MAX_ROWS: Final = 100_000
"""Statements kept about one store: the newest ones."""
MAX_READ: Final = 100_000
"""Statements that one read returns."""


class DatabaseOnlineTimes:
    """The record of when a node was online: `OnlineTimes` of a resume."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def last(self) -> int:
        """Return the last time in Unix nanoseconds; 0: never."""
        ((online_ns,),) = await self._database.rows(SQL.stores.read_online)
        return int(online_ns)

    async def note(self, online_ns: int, now_ns: int, interval: Interval | None = None) -> None:
        """Persist an interval, and that nothing up to ``online_ns`` was missed; 0: not known."""

        async def write(connection: Connection) -> None:
            if online_ns:
                given = {"online": online_ns, "now": now_ns}
                await connection.execute(SQL.stores.note_online, given)
            if interval is not None:
                start_ns, end_ns = interval.start_ns, interval.end_ns
                row = {"start": start_ns, "end": end_ns, "resumed": interval.resumed}
                if await fetch_row(connection, SQL.stores.record_online, row) == (True,):
                    await connection.execute(SQL.stores.prune_online, {"rows": MAX_INTERVALS})

        await self._database.write(write)

    async def overlapping(self, start_ns: int, end_ns: int) -> Sequence[Interval]:
        """Return the intervals that touch a range, and the first of all."""
        bounds = {"start": start_ns, "end": end_ns}
        rows = await self._database.rows(SQL.stores.read_online_between, bounds)
        return [Interval(*row) for row in rows]


class DatabaseStatements:
    """The statements, which all nodes of the store share."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements, ascending, in place of older ones about the same time.

        Raises:
            StoreUnavailableError: the database does not serve.
        """
        if statements:
            await self._database.write(_note, store_id, statements, now_ns)

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return those that overlap a range, by store, ascending; at most `MAX_READ`.

        Raises:
            StoreUnavailableError: the database does not serve.
        """
        rows = await self._database.rows(SQL.stores.read_coverage, (start_ns, end_ns, MAX_READ))
        by_store = groupby(rows, lambda row: str(row[0]))
        return {store: [Statement(*row[1:]) for row in found] for store, found in by_store}


async def _note(
    connection: Connection, store_id: str, statements: Sequence[Statement], now_ns: int
) -> None:
    await connection.execute(SQL.partitions.lock, (COVERAGE,))
    given = store_id, statements[0].start_ns, statements[-1].end_ns
    rows = await fetch_rows(connection, SQL.stores.read_coverage_of, given)
    old = [Statement(*row) for row in rows]
    starts, ends = [each.start_ns for each in old], [each.end_ns for each in old]
    await connection.execute(SQL.stores.delete_coverage, (starts, ends, store_id))
    made, names = replaced(old, statements, now_ns), SQL.stores.coverage_columns.split(", ")
    columns = [[getattr(each, name) for each in made] for name in names]
    await connection.execute(SQL.stores.insert_coverage, (store_id, *columns))
    await connection.execute(SQL.stores.prune_coverage, {"store": store_id, "rows": MAX_ROWS})
    await connection.execute(SQL.stores.forget_stores, (MAX_STORES,))
