"""When the store was last online: kept in the database, for the node that starts next.

Several nodes may share a database, so the later time counts; but a time that lies ahead of the
clock of who writes it came from a clock that was wrong, and does not stay.
"""

from __future__ import annotations

from typing import Final

from store.db.pool import Connection, Database

_READ: Final = "select coalesce(last_online_ns, 0) from storenode.store"
_NOTE: Final = """
update storenode.store set last_online_ns = case
    when last_online_ns between %(online)b::bigint and %(now)b::bigint then last_online_ns
    else %(online)b::bigint end
"""


async def read_last_online(database: Database) -> int:
    """Unix nanoseconds; 0: never.

    Raises:
        StoreUnavailable: the database does not answer.
    """

    async def read(connection: Connection) -> int:
        row = await (await connection.execute(_READ, binary=True)).fetchone()
        assert row is not None
        return row[0]  # type: ignore[return-value]

    return await database.read(read)


async def note_online(database: Database, online_ns: int, now_ns: int) -> None:
    """Persist that nothing up to ``online_ns`` was missed for being off, by the clock ``now_ns``.

    Raises:
        psycopg.Error: the database did not take it.
    """
    async with database.connection(database.write_pool) as connection:
        await connection.execute(_NOTE, {"online": online_ns, "now": now_ns})
