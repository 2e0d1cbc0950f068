"""When the store was last online: kept in the database, for the node that starts next.

Several nodes may share a database, so the later time counts; but a time that lies ahead of the
clock of who writes it came from a clock that was wrong, and does not stay.
"""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg_pool import PoolTimeout

from store.db.errors import sentence
from store.db.pool import Connection, Database
from store.domain.ports import StoreUnavailable

_READ: Final = "select coalesce(last_online_ns, 0) from storenode.store"
_NOTE: Final = """
update storenode.store set last_online_ns = case
    when last_online_ns between %(online)b::bigint and %(now)b::bigint then last_online_ns
    else %(online)b::bigint end
"""


class DatabaseOnlineTimes:
    """Implements `store.sync.resume.driver.OnlineTimes`."""

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
        database = self._database
        try:
            async with database.connection(database.write_pool) as connection:
                await connection.execute(_NOTE, {"online": online_ns, "now": now_ns})
        except (psycopg.Error, PoolTimeout) as error:
            raise StoreUnavailable(sentence(error)) from error
