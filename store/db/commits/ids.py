"""IDs out of Postgres as arrays: two values per statement, however many rows.

The server joins the column of timestamps and that of hashes into one value each. That takes a
sixth of the time of a binary COPY, of which the driver hands out every row by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds
from reconcile.view import Spans
from store.db.arrays import bigint_column, bigints, hash_column
from store.db.pool import Connection
from store.domain.commits import CommitRow
from storenode.message.limits import HASH_BYTES

_COLUMNS: Final = "string_agg(int8send(m.ts), ''::bytea), string_agg(m.hash, ''::bytea)"

# A probe of the index for each span, whatever a plan was made for (see `MESSAGE_AT`): so rows come
# in the order of the spans, and the limit ends the reading.
_IN_SPANS: Final = f"""
select {_COLUMNS} from (
    select m.ts, m.hash
    from unnest(%(low_ts)b::bigint[], %(low_hash)b::bytea[],
                %(high_ts)b::bigint[], %(high_hash)b::bytea[])
        as k(low_ts, low_hash, high_ts, high_hash)
    cross join lateral (
        select n.ts, n.hash from storenode.messages n
        where n.ts >= k.low_ts and n.ts <= k.high_ts
          and (n.ts, n.hash) >= (k.low_ts, k.low_hash)
          and (n.ts, n.hash) < (k.high_ts, k.high_hash)
        order by n.ts, n.hash offset 0
    ) m
    limit %(limit)b::bigint
) m
"""

_WITH_HASHES: Final = f"""
select {_COLUMNS}
from unnest(%(hashes)b::bytea[]) as w(hash)
cross join lateral (
    select h.ts from storenode.hashes h
    where h.key = encode(substr(w.hash, 1, 16), 'hex')::uuid
    offset 0
) h
cross join lateral (
    select n.ts, n.hash from storenode.messages n where n.ts = h.ts and n.hash = w.hash offset 0
) m
"""

_OF_BATCHES: Final = f"""
select {_COLUMNS}
from unnest(%(batches)b::bigint[], %(lows)b::bigint[], %(highs)b::bigint[]) as k(batch, low, high)
cross join lateral (
    select n.ts, n.hash from storenode.messages n
    where n.batch = k.batch and n.ts >= k.low and n.ts <= k.high offset 0
) m
"""


async def ids_in(connection: Connection, spans: Spans, limit: int) -> SyncIds:
    """The first IDs, at most ``limit``, that are held in some spans; ascending."""
    parameters = {
        "low_ts": bigint_column(spans.lower.timestamps),
        "low_hash": hash_column(spans.lower.hashes),
        "high_ts": bigint_column(spans.upper.timestamps),
        "high_hash": hash_column(spans.upper.hashes),
        "limit": limit,
    }
    return await _fetch(connection, _IN_SPANS, parameters)


async def ids_with(connection: Connection, hashes: NDArray[np.uint8]) -> SyncIds:
    """The IDs that are held with some hashes, ``(n, 32)``; in any order."""
    parameters = {"hashes": hash_column(hashes)}
    return await _fetch(connection, _WITH_HASHES, parameters)


async def ids_of(connection: Connection, commits: Sequence[CommitRow]) -> SyncIds:
    """The IDs that some commits have added, as far as they are held; in any order."""
    parameters = {
        "batches": bigints([commit.batch for commit in commits]),
        "lows": bigints([commit.min_ts for commit in commits]),
        "highs": bigints([commit.max_ts for commit in commits]),
    }
    return await _fetch(connection, _OF_BATCHES, parameters)


async def _fetch(
    connection: Connection, statement: str, parameters: Mapping[str, object]
) -> SyncIds:
    cursor = await connection.execute(statement, parameters, binary=True)
    row = await cursor.fetchone()
    assert row is not None
    timestamps, hashes = row
    if timestamps is None:
        return SyncIds.empty()
    return SyncIds(
        np.frombuffer(timestamps, ">i8").astype(np.int64),  # type: ignore[call-overload]
        np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES),  # type: ignore[call-overload]
    )
