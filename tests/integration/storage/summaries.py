"""The summaries and lattice sums that a database must have, added up from its messages."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection

from reconcile.lattice import LatticeSum

MINUTE = 60 * 10**9
LENGTHS = (MINUTE, 60 * MINUTE, 24 * 60 * MINUTE)
"""Nanoseconds of a bucket of each level."""

RECORD = struct.Struct("<qq32s")
Sums = dict[tuple[int, int], LatticeSum]
"""(level, start) -> sum; hours are level 1, days level 2."""

Summary = dict[tuple[int, int], tuple[int, int]]
"""(level, start) -> count and XOR of the hashes, as little-endian numbers."""

Connection = AsyncConnection[Any]

_UNFOLDED = """
select summary from storenode.commits
where position > (select folded_position from storenode.store) order by position
"""
_STORED = """
select m.ts, int8send(m.ts) || m.hash || m.content_digest,
       c.position <= (select folded_position from storenode.store)
from storenode.messages m join storenode.commits c using (batch)
"""
_KNOWN = """
select level, start_ns, lattice_count, lattice from storenode.buckets where lattice_count = count
"""
_UNKNOWN = """
select level, start_ns from storenode.buckets
where level > 0 and lattice_count is distinct from count
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


async def stored_sums(connection: Connection, *, folded: bool) -> Sums:
    """Return the sums of the messages that are there, or of those whose commits are folded."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_STORED)
    found: dict[tuple[int, int], list[bytes]] = defaultdict(list)
    for ts, element, is_folded in await cursor.fetchall():
        for level in (1, 2):
            if is_folded or not folded:
                found[level, ts - ts % LENGTHS[level]].append(bytes(element))
    return {key: LatticeSum.of(b"".join(each)) for key, each in found.items()}


async def known(connection: Connection) -> Sums:
    """Return the sums that buckets say are known."""
    cursor = connection.cursor(binary=True)
    await cursor.execute(_KNOWN)
    return {
        (level, start): LatticeSum.stored(count, bytes(state))
        for level, start, count, state in await cursor.fetchall()
    }


async def unknown(connection: Connection) -> set[tuple[int, int]]:
    """Return the hours and days whose sums are not known."""
    return set(await (await connection.execute(_UNKNOWN)).fetchall())


async def assert_true(connection: Connection) -> Summary:
    """Compare what is claimed, and known sums, with what is held, in one snapshot; returns it."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        right = await stored_summaries(connection)
        assert await claimed(connection) == right
        found, sums = await known(connection), await stored_sums(connection, folded=True)
        assert {key: sums.get(key) for key in found} == found
    return right


async def assert_folded(connection: Connection) -> Summary:
    """Check `assert_true`, and that buckets alone account for everything."""
    right = await assert_true(connection)
    assert await buckets(connection) == right
    return right


def _add(found: Summary, key: tuple[int, int], count: int, xor: int) -> None:
    before = found.get(key, (0, 0))
    found[key] = before[0] + count, before[1] ^ xor
