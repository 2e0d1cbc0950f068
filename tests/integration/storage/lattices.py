"""The lattice sums that a database must have, added up from its messages."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from psycopg import AsyncConnection

from reconcile.lattice import LatticeSum
from tests.integration.storage.summaries import LENGTHS

Connection = AsyncConnection[Any]
Sums = dict[tuple[int, int], LatticeSum]
"""(level, start) -> sum; hours are level 1, days level 2."""

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


async def assert_true(connection: Connection) -> Sums:
    """Compare every known sum with what is held and folded, in one snapshot; returns them."""
    async with connection.transaction():
        await connection.execute("set transaction isolation level repeatable read")
        found, right = await known(connection), await stored_sums(connection, folded=True)
        assert {key: right.get(key) for key in found} == found
    return found
