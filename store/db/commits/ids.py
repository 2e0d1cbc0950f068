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
from store.db.reading.messages import content_digests_at
from store.domain.commits import CommitRow
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES

_COLUMNS: Final = "string_agg(int8send(m.ts), ''::bytea), string_agg(m.hash, ''::bytea)"
_CONTENT: Final = "string_agg(m.content_digest, ''::bytea)"

# A probe of the index for each span, whatever a plan was made for (see `MESSAGE_AT`): so rows come
# in the order of the spans, and the limit ends the reading.
# The index alone has the IDs; content digests take the rows.
_IN_SPANS: Final = f"""
select {_COLUMNS}{{content}} from (
    select m.*
    from unnest(%(low_ts)b::bigint[], %(low_hash)b::bytea[],
                %(high_ts)b::bigint[], %(high_hash)b::bytea[])
        as k(low_ts, low_hash, high_ts, high_hash)
    cross join lateral (
        select n.ts, n.hash{{column}} from storenode.messages n
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

_IDS_IN_SPANS: Final = _IN_SPANS.format(content="", column="")
_CONTENTS_IN_SPANS: Final = _IN_SPANS.format(content=f", {_CONTENT}", column=", n.content_digest")

_OF_BATCHES: Final = f"""
select {_COLUMNS}, {_CONTENT}
from unnest(%(batches)b::bigint[], %(lows)b::bigint[], %(highs)b::bigint[]) as k(batch, low, high)
cross join lateral (
    select n.ts, n.hash, n.content_digest from storenode.messages n
    where n.batch = k.batch and n.ts >= k.low and n.ts <= k.high offset 0
) m
"""


async def ids_in(
    connection: Connection, spans: Spans, limit: int, *, contents: bool = False
) -> SyncIds:
    """Return the first IDs, at most ``limit``, in some spans; ascending, or with their digests."""
    parameters = {
        "low_ts": bigint_column(spans.lower.timestamps),
        "low_hash": hash_column(spans.lower.hashes),
        "high_ts": bigint_column(spans.upper.timestamps),
        "high_hash": hash_column(spans.upper.hashes),
        "limit": limit,
    }
    statement = _CONTENTS_IN_SPANS if contents else _IDS_IN_SPANS
    return await _fetch(connection, statement, parameters)


async def with_contents(connection: Connection, ids: SyncIds) -> SyncIds:
    """Return IDs, all of which are stored, with their content digests."""
    pairs = ids.pairs()
    found = await content_digests_at(connection, pairs)
    joined = b"".join([found[digest] for _, digest in pairs])
    digests = np.frombuffer(joined, np.uint8).reshape(len(ids), CONTENT_DIGEST_BYTES)
    return SyncIds(ids.timestamps, ids.hashes, digests)


async def ids_with(connection: Connection, hashes: NDArray[np.uint8]) -> SyncIds:
    """Return the IDs that are stored with some hashes, ``(n, 32)``; in any order."""
    parameters = {"hashes": hash_column(hashes)}
    return await _fetch(connection, _WITH_HASHES, parameters)


async def ids_of(connection: Connection, commits: Sequence[CommitRow]) -> SyncIds:
    """Return the IDs that some commits have added and that are stored, with their digests."""
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
    timestamps, hashes, *contents = row
    if timestamps is None:
        return SyncIds.empty()
    digests = None
    if contents:
        digests = np.frombuffer(contents[0], np.uint8)  # type: ignore[call-overload]
        digests = digests.reshape(-1, CONTENT_DIGEST_BYTES)
    return SyncIds(
        np.frombuffer(timestamps, ">i8").astype(np.int64),  # type: ignore[call-overload]
        np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES),  # type: ignore[call-overload]
        digests,
    )
