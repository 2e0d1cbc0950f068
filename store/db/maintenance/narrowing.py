"""The index by topic of before schema 0012 makes room for the narrower one, while nodes work.

Partitions that were there at the upgrade get theirs one by one. The old index goes when none lacks
it.
"""

from __future__ import annotations

from typing import Any

from psycopg import AsyncConnection

from store.db.locks import set_lock_timeout
from store.db.maintenance.lacking import BY_TOPIC, LOCK_TIMEOUT_MS, build, exists, run, size
from store.db.schema.names import WIDE_TOPIC_INDEX

Connection = AsyncConnection[Any]


async def is_pending(connection: Connection) -> bool:
    """Whether the old index is there."""
    return await exists(connection, WIDE_TOPIC_INDEX)


async def narrow(connection: Connection) -> tuple[int, int]:
    """Build what partitions lack and drop the old index; sizes in bytes of both.

    ``connection`` is in autocommit mode.

    Raises:
        psycopg.Error: the database did not serve, or a lock was not to be had in time
            (`LockNotAvailable`); what is built stays, and another call goes on.
    """
    after_bytes = await build(connection, BY_TOPIC)
    before_bytes = await size(connection, WIDE_TOPIC_INDEX)
    async with connection.transaction():
        await set_lock_timeout(connection, LOCK_TIMEOUT_MS)
        await run(connection, "DROP INDEX IF EXISTS {}", WIDE_TOPIC_INDEX)
    return before_bytes, after_bytes
