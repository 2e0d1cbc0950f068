"""The summaries that a database must have, added up one message at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

MINUTE = 60 * 10**9
LENGTHS = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""Nanoseconds of a bucket of each level."""

RECORD = struct.Struct("<qq32s")
Summary = dict[tuple[int, int], tuple[int, int]]
"""(level, start) -> count and XOR of the hashes, as little-endian numbers."""

Connection = AsyncConnection[Any]

_UNFOLDED = """
select summary from storenode.commits
where position > (select folded_position from storenode.store) order by position
"""


def summed(stored: Iterable[tuple[int, bytes]]) -> Summary:
    """Return the summaries of (timestamp, hash) pairs, at every level."""
    found: Summary = {}
    for ts, digest in stored:
        for level, length in enumerate(LENGTHS):
            _add(found, (level, ts - ts % length), 1, int.from_bytes(digest, "little"))
    return found


async def stored_summaries(connection: Connection) -> Summary:
    """Return the summaries of the messages that are there."""
    cursor = connection.cursor(binary=True)
    await cursor.execute("select ts, hash from storenode.messages")
    return summed([(ts, bytes(digest)) for ts, digest in await cursor.fetchall()])


async def buckets(connection: Connection) -> Summary:
    """Return what the buckets say."""
    cursor = connection.cursor(binary=True)
    await cursor.execute("select level, start_ns, count, x0, x1, x2, x3 from storenode.buckets")
    return {
        (level, start): (count, int.from_bytes(struct.pack("<qqqq", *words), "little"))
        for level, start, count, *words in await cursor.fetchall()
    }


async def claimed(connection: Connection) -> Summary:
    """Return what buckets and unfolded deltas say together."""
    found = await buckets(connection)
    cursor = connection.cursor(binary=True)
    await cursor.execute(_UNFOLDED)
    for (summary,) in await cursor.fetchall():
        assert len(summary) > 0
        for start, count, xor in RECORD.iter_unpack(summary):
            for level, length in enumerate(LENGTHS):
                key = level, start - start % length
                _add(found, key, count, int.from_bytes(xor, "little"))
    return {key: value for key, value in found.items() if value != (0, 0)}


async def assert_true(connection: Connection) -> Summary:
    """Compare what is claimed with what is held, in one snapshot; returns it."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        right = await stored_summaries(connection)
        assert await claimed(connection) == right
    return right


async def assert_folded(connection: Connection) -> Summary:
    """Check `assert_true`, and that buckets alone account for everything."""
    right = await assert_true(connection)
    assert await buckets(connection) == right
    return right


def _add(found: Summary, key: tuple[int, int], count: int, xor: int) -> None:
    before = found.get(key, (0, 0))
    found[key] = before[0] + count, before[1] ^ xor
