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
from typing import Any, Final, LiteralString
from uuid import UUID

import numpy as np
from psycopg import AsyncConnection

from store.db import arrays
from store.db.commits.pages import following_commits
from store.db.locks import CLAIMING
from store.db.pool import Database
from store.domain.coverage import Span
from store.domain.partitioning import DAY_NS, UNBOUNDED_HIGH, Bounds
from storenode.sds.codec import channel_key
from storenode.sds.limits import SDS_KEY_BYTES

MAX_COUNTED: Final = 100_000
"""Missing references of one step that are looked at."""

MAX_MISSING_OF_MESSAGE: Final = 16
MAX_MISSING_OF_DAY: Final = 10_000
"""Rows of a message, and of the messages of a channel with timestamps of one day; see above."""

MORE: Final = "'00000000-0000-0000-0000-000000000000'::uuid"

MAX_CLAIMED_COMMITS: Final = 4_096
MAX_CLAIMED_KEYS: Final = 16_384
"""Commits, and SDS messages, that one transaction follows; one commit at least."""

LOCK_TIMEOUT_MS: Final = 10_000

_CLAIM: Final = np.dtype([("key", f"V{SDS_KEY_BYTES}"), ("ts", ">i8")])
CLAIM_BYTES: Final = _CLAIM.itemsize
"""A claim in ``commits.claims``: the key of an SDS message ID, and its message's timestamp."""

# What a crash of the server takes back is done again: it need not wait for the disk.
_SETTINGS: Final = """
select set_config('synchronous_commit', 'off', true), set_config('lock_timeout', %s, true)
"""
_LOCK: Final = "select pg_advisory_xact_lock(%s)"
_REACHED: Final[LiteralString] = "select claimed_position from storenode.store"
_PENDING: Final[LiteralString] = """
select (select coalesce(max(position), 0) from storenode.commits), claimed_position
from storenode.store
"""
_NEXT: Final = following_commits("claims")
PARENT_STORED: Final[LiteralString] = """
exists (select from storenode.sds h where h.key = named.key and (
    h.ts >= (select horizon_ns from storenode.store)
    or exists (select from storenode.messages m where m.ts = h.ts and m.hash = h.hash)))
"""
"""Whether the parent ``named.key`` is held; rows outlive what is pruned for a while."""

_SINCE: Final = """
s.ts >= greatest(%(low)b::bigint, (select horizon_ns from storenode.store))
  and s.ts <= %(last)b::bigint
"""
_CLAIMED: Final = f"""
unnest(%(keys)b::uuid[], %(ts)b::bigint[]) as c(key, ts)
join storenode.sds s on s.key = c.key and s.ts = c.ts and {_SINCE}
"""
_ALL: Final = f"(select * from storenode.sds s where {_SINCE}) s"
_AGAIN: Final = """
unnest(%(channels)b::uuid[], %(ts)b::bigint[]) as c(channel_key, ts)
join storenode.sds s on s.channel_key = c.channel_key and s.ts = c.ts
    and s.ts >= (select horizon_ns from storenode.store)
"""

# Most parents came shortly before: a hash table finds these, without a search in every partition.
_ELSEWHERE: Final = """
where not exists (select from unnest(%(keys)b::uuid[]) as c(key) where c.key = p.key)
"""
_ADD: Final[LiteralString] = f"""
with lacking as materialized (
    select given.channel_key, given.ts, given.ts / {DAY_NS} as day, parent.key as parent_key,
           row_number() over (partition by given.channel_key, given.ts) as place
    from (
        select s.channel_key, s.ts, array_agg(distinct p.key) as keys
        from {{messages}} cross join unnest(s.parent_keys) as p(key) {{elsewhere}}
        group by s.channel_key, s.ts
    ) as given cross join lateral (
        select named.key from unnest(given.keys) as named(key)
        where not {PARENT_STORED} limit {MAX_MISSING_OF_MESSAGE + 1}
    ) as parent
), days as materialized (
    select channel_key, day, (
        select count(*) from storenode.missing_parents m
        where m.channel_key = lacking.channel_key
          and m.ts >= lacking.day * {DAY_NS} and m.ts < (lacking.day + 1) * {DAY_NS}
    ) as used from lacking group by channel_key, day
)
insert into storenode.missing_parents (channel_key, ts, parent_key)
select channel_key, ts, case
    when place = 1 then parent_key
    when place <= {MAX_MISSING_OF_MESSAGE} and used + rank <= {MAX_MISSING_OF_DAY} then parent_key
    else {MORE} end
from (
    select lacking.*, row_number() over (partition by channel_key, day order by place, ts) as rank
    from lacking
) as ranked join days using (channel_key, day)
on conflict do nothing
"""
_ADD_CLAIMED: Final = _ADD.format(messages=_CLAIMED, elsewhere=_ELSEWHERE)
_ADD_ALL: Final = _ADD.format(messages=_ALL, elsewhere="")
_ADD_AGAIN: Final = _ADD.format(messages=_AGAIN, elsewhere="")
_CAME: Final = """
with came as (
    delete from storenode.missing_parents where parent_key = any(%b::uuid[])
    returning channel_key, ts
)
select uuid_send(channel_key), ts from came group by channel_key, ts
"""
_ONLY_MORE: Final = f"""
with lone as (
    delete from storenode.missing_parents m
    using unnest(%(channels)b::uuid[], %(ts)b::bigint[]) as c(channel_key, ts)
    where m.channel_key = c.channel_key and m.ts = c.ts and m.parent_key = {MORE}
      and not exists (select from storenode.missing_parents o
                      where o.channel_key = c.channel_key and o.ts = c.ts
                        and o.parent_key <> {MORE})
    returning m.channel_key, m.ts
)
select uuid_send(channel_key), ts from lone
"""
_MOVE: Final = "update storenode.store set claimed_position = %s"
_FORGET: Final = """
delete from storenode.missing_parents where ts >= %s::bigint and ts <= %s::bigint
"""
_DROPPED: Final = """
delete from storenode.missing_parents where ts < (select horizon_ns from storenode.store)
"""
_COUNT: Final = """
select (
    select count(distinct few.parent_key) from (
        select m.parent_key from storenode.missing_parents m
        where m.channel_key = %(channel)b::uuid and m.ts < step.last
          and m.ts >= greatest(step.low, (select horizon_ns from storenode.store))
        limit %(most)b::bigint
    ) as few
)
from unnest(%(low)b::bigint[], %(end)b::bigint[]) with ordinality as step(low, last, number)
order by step.number
"""


class DatabaseMissingParents:
    """Implements `store.domain.coverage.MissingParents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def missing_parents(self, channel_id: bytes, bounds: Sequence[Span]) -> Sequence[int]:
        """Count the parents that are named in each span and not stored; see the protocol."""
        parameters = {
            "channel": UUID(bytes=channel_key(channel_id)),
            "low": arrays.bigints([low for low, _ in bounds]),
            "end": arrays.bigints([end for _, end in bounds]),
            "most": MAX_COUNTED,
        }
        return [count for (count,) in await self._database.rows(_COUNT, parameters)]


async def follow_claims(connection: AsyncConnection[Any]) -> None:
    """Follow the commits up to now, in short transactions of their own.

    ``connection`` must not be in a transaction.

    Raises:
        psycopg.Error: the database did not serve, or another session kept the lock for longer than
            `LOCK_TIMEOUT_MS`; committed steps stay.
    """
    ((newest, reached),) = await (await connection.execute(_PENDING)).fetchall()
    while reached < newest:
        async with connection.transaction():
            await _begin(connection)
            reached = await _follow_next(connection)


async def forget_dropped(connection: AsyncConnection[Any]) -> None:
    """Delete the rows of messages before the horizon."""
    await connection.execute(_DROPPED)


async def find_missing(connection: AsyncConnection[Any], bounds: Bounds) -> None:
    """Rebuild the rows of a range of time from ``sds`` alone, in one transaction.

    Parents that retention has dropped count as missing.
    """
    async with connection.transaction():
        await _begin(connection)
        await connection.execute(_FORGET, (bounds.low, bounds.high - 1))
        span = {"low": bounds.low, "last": bounds.high - 1}
        await connection.execute(_ADD_ALL, span, prepare=False)


async def _begin(connection: AsyncConnection[Any]) -> None:
    await connection.execute(_SETTINGS, (f"{LOCK_TIMEOUT_MS}ms",))
    await connection.execute(_LOCK, (CLAIMING,))


async def _follow_next(connection: AsyncConnection[Any]) -> int:
    """Follow the next commits; return the position up to which all are."""
    ((reached,),) = await (await connection.execute(_REACHED)).fetchall()
    cursor = connection.cursor(binary=True)
    # The caller may have opened the connection for something else.
    arrays.register(cursor)
    most_bytes = MAX_CLAIMED_KEYS * CLAIM_BYTES
    await cursor.execute(_NEXT, (reached, MAX_CLAIMED_COMMITS, most_bytes))
    commits = await cursor.fetchall()
    if not commits:
        return UNBOUNDED_HIGH
    if joined := b"".join([bytes(claims) for _, claims in commits]):
        claims = np.unique(np.frombuffer(joined, _CLAIM))
        keys = arrays.uuids(claims["key"].tolist())
        ts = claims["ts"].astype(np.int64)
        span = {"low": int(ts.min()), "last": int(ts.max())}
        await cursor.execute(_ADD_CLAIMED, {"keys": keys, "ts": arrays.bigint_column(ts), **span})
        await cursor.execute(_CAME, (keys,))
        came = await cursor.fetchall()
        await cursor.execute(_ONLY_MORE, _positions(came))
        if again := await cursor.fetchall():
            await cursor.execute(_ADD_AGAIN, _positions(again))
    position: int = commits[-1][0]
    await connection.execute(_MOVE, (position,))
    return position


def _positions(rows: Sequence[tuple[Any, ...]]) -> dict[str, object]:
    return {
        "channels": arrays.uuids([bytes(channel) for channel, _ in rows]),
        "ts": arrays.bigints([timestamp for _, timestamp in rows]),
    }
