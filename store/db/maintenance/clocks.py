"""What a clock is compared with before anything is dropped by it.

See `store.domain.retention_clock`.
"""

from typing import Any, Final

from psycopg import AsyncConnection

Connection = AsyncConnection[Any]

_NEWEST_COMMIT: Final = """
select (extract(epoch from greatest(created_at, (
    select committed_at from storenode.commits order by position desc limit 1
))) * 1000000)::bigint * 1000 from storenode.store
"""
_CLOCK: Final = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000"


async def newest_commit_ns(connection: Connection) -> int:
    """Time of the newest commit, or of the first upgrade: one that has certainly been reached.

    In nanoseconds since the epoch, by the clock of the server as it was then.
    """
    return await _read(connection, _NEWEST_COMMIT)


async def database_ns(connection: Connection) -> int:
    """The clock of the database's server, in nanoseconds since the epoch."""
    return await _read(connection, _CLOCK)


async def _read(connection: Connection, statement: str) -> int:
    ((time_ns,),) = await (await connection.execute(statement)).fetchall()
    return int(time_ns)
