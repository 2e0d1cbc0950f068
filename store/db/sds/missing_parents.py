"""The table ``missing_parents``: parents that messages of a channel name and that are not stored.

Publishers leave keys and timestamps of their SDS messages in their rows of ``commits``. One
node follows the commits in their order, as with summaries: a new message adds those of its parents
that are not stored, and removes itself as a parent of others. So the table is true up to
``claimed_position``, in whatever order messages come.

A publisher can name many parents that never come. So of a message, by its channel and timestamp, at
most `MAX_MISSING_OF_MESSAGE` have rows, and one where its channel has `MAX_MISSING_OF_DAY` on that
day already. The row `MORE` stands for all others: when it alone is left, the parents of the message
are looked at again. So counts are exact below these bounds, and never 0 by them.

A dropped message is not missing to the messages that named it before; a later one counts it.
Messages older than the horizon count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import numpy as np

from store.db import arrays
from store.db.connection import Connection, fetch_rows
from store.db.locks import CLAIMING, lock_unhurried
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.partitioning import UNBOUNDED_HIGH, Bounds
from store.domain.view import Span
from storenode.sds.codec import channel_key
from storenode.sds.limits import SDS_KEY_BYTES

MAX_COUNTED: Final = 100_000
"""Missing references of one step that are looked at."""

MAX_MISSING_OF_MESSAGE: Final = 16
MAX_MISSING_OF_DAY: Final = 10_000
"""Rows of a message, and of the messages of a channel with timestamps of one day; see above."""


MAX_CLAIMED_COMMITS: Final = 4_096
MAX_CLAIMED_KEYS: Final = 16_384
"""Commits, and SDS messages, that one transaction follows; one commit at least."""

_CLAIM: Final = np.dtype([("key", f"V{SDS_KEY_BYTES}"), ("ts", ">i8")])
CLAIM_BYTES: Final = _CLAIM.itemsize
"""A claim in ``commits.claims``: the key of an SDS message ID, and its message's timestamp."""

_NEXT: Final = SQL.commits.read_following.format(column="claims")


def _add_missing(messages: str, elsewhere: str = "") -> str:
    return SQL.sds.add_missing.format(
        messages=messages,
        elsewhere=elsewhere,
        of_message=MAX_MISSING_OF_MESSAGE,
        of_day=MAX_MISSING_OF_DAY,
    )


_ADD_CLAIMED: Final = _add_missing(SQL.sds.claimed, SQL.sds.elsewhere)
_ADD_ALL: Final = _add_missing(SQL.sds.all_in_time)
_ADD_AGAIN: Final = _add_missing(SQL.sds.again)


async def count_missing_parents(
    database: Database, channel_id: bytes, bounds: Sequence[Span]
) -> list[int]:
    """Count the parents that messages of a channel name in each span and that are not stored.

    As of some seconds ago. A parent that retention has dropped is not missing to messages that
    named it before. Raises `NotServingError`.
    """
    parameters = {
        "channel": UUID(bytes=channel_key(channel_id)),
        "low": arrays.bigints([low for low, _ in bounds]),
        "end": arrays.bigints([end for _, end in bounds]),
        "most": MAX_COUNTED,
    }
    return [count for (count,) in await database.rows(SQL.sds.count_missing, parameters)]


async def follow_claims(connection: Connection) -> None:
    """Follow the commits up to now, in short transactions of their own.

    ``connection`` must not be in a transaction.

    Raises:
        psycopg.Error: the database did not serve, or another session kept the lock for longer than
            `store.db.locks.UNHURRIED_MS`; committed steps stay.
    """
    ((newest, reached),) = await fetch_rows(connection, SQL.commits.read_claimed)
    while reached < newest:
        async with connection.transaction():
            await lock_unhurried(connection, CLAIMING)
            reached = await _follow_next(connection)


async def find_missing(connection: Connection, bounds: Bounds) -> None:
    """Rebuild the rows of a range of time from ``sds`` alone, in one transaction.

    Parents that retention has dropped count as missing.
    """
    async with connection.transaction():
        await lock_unhurried(connection, CLAIMING)
        await connection.execute(SQL.sds.delete_missing, (bounds.low, bounds.high - 1))
        span = {"low": bounds.low, "last": bounds.high - 1}
        await connection.execute(_ADD_ALL, span, prepare=False)


async def _follow_next(connection: Connection) -> int:
    """Follow the next commits; return the position up to which all are."""
    ((reached,),) = await fetch_rows(connection, SQL.stores.read_claimed_position)
    given = (reached, MAX_CLAIMED_COMMITS, MAX_CLAIMED_KEYS * CLAIM_BYTES)
    commits = await fetch_rows(connection, _NEXT, given)
    if not commits:
        return UNBOUNDED_HIGH
    if joined := b"".join([claims for _, claims in commits]):
        claims = np.unique(np.frombuffer(joined, _CLAIM))
        keys = arrays.uuids(claims["key"].tolist())
        ts = claims["ts"].astype(np.int64)
        span = {"low": int(ts.min()), "last": int(ts.max())}
        added = {"keys": keys, "ts": arrays.bigint_column(ts), **span}
        await connection.execute(_ADD_CLAIMED, added)
        came = await fetch_rows(connection, SQL.sds.delete_stored, (keys,))
        again = await fetch_rows(connection, SQL.sds.delete_lone_more, _positions(came))
        if again:
            await connection.execute(_ADD_AGAIN, _positions(again))
    position: int = commits[-1][0]
    await connection.execute(SQL.stores.set_claimed, (position,))
    return position


def _positions(rows: Sequence[tuple[Any, ...]]) -> dict[str, object]:
    return {
        "channels": arrays.uuids([channel for channel, _ in rows]),
        "ts": arrays.bigints([timestamp for _, timestamp in rows]),
    }
