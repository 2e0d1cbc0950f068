"""The statements that write a batch, and a batch as their parameters.

One statement inserts messages, hashes and SDS rows: index rows come only from the rows that were
really inserted. A second step, the last one before COMMIT, gives the batch its place in the
commit order (see ``docs/database.md``). Passing columns as arrays measured as fast as COPY into
a staging table and needs one round trip less.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from message.limits import HASH_BYTES
from message.record import RecordBatch, SdsMetadata
from sds.codec import sds_key
from store.db import arrays
from store.db.locks import COMMIT_ORDER
from store.db.pool import Connection
from store.domain.ports import Source

MAX_LISTED_TOPICS: Final = 64
"""A commit lists its topics up to this many, so that followers can pass over it unread."""

MAX_IDLE_IN_PLACE_MS: Final = 5_000
"""A node that falls silent between taking its place and COMMIT keeps every other from committing:
the server ends its transaction after this time. Its next attempt stores the batch."""

MAX_INLINE_PARENTS: Final = 4_096
"""Parents of a batch that are laid out on the event loop, in 10 ms; more are left to a thread."""

_INT64: Final = 1 << 64

_MESSAGES: Final = """
with given as (
    select * from unnest(%(ts)b::bigint[], %(hash)b::bytea[], %(topic)b::uuid[],
                         %(head)b::bytea[], %(payload)b::bytea[], %(tail)b::bytea[])
        as given(ts, hash, topic, head, payload, tail)
), stored as (
    insert into storenode.messages (ts, hash, topic, batch, head, payload, tail)
    select ts, hash, topic, %(batch)b::bigint, head, payload, tail from given order by ts, hash
    on conflict do nothing
    returning ts, hash, topic
), located as (
    insert into storenode.hashes (hash, ts, topic) select hash, ts, topic from stored{tolerant}
)"""

# Only a message that was pruned and comes again finds its hash there already. To look for it
# costs a sixth of the whole statement, so that is done only after an insert without it has failed.
_TOLERANT: Final = " on conflict do nothing"

_SDS: Final = """, described as (
    insert into storenode.sds (key, channel_key, ts, hash, channel, message_id, sender, lamport,
                               parent_keys, parent_ids, parent_hints)
    select s.key, s.channel_key, s.ts, s.hash, s.channel, s.message_id, s.sender,
           nullif(s.lamport, '')::bigint, s.parent_keys::uuid[], s.parent_ids::bytea[],
           s.parent_hints::bytea[]
    from unnest(%(s_key)b::uuid[], %(s_channel_key)b::uuid[], %(s_ts)b::bigint[],
                %(s_hash)b::bytea[], %(s_channel)b::bytea[], %(s_message_id)b::bytea[],
                %(s_sender)b::bytea[], %(s_lamport)b::text[], %(s_parent_keys)b::text[],
                %(s_parent_ids)b::text[], %(s_parent_hints)b::text[])
        as s(key, channel_key, ts, hash, channel, message_id, sender, lamport,
             parent_keys, parent_ids, parent_hints)
    join stored using (ts, hash)
    on conflict do nothing
)"""

_RESULT: Final = """
select count(*), min(ts), max(ts),
       case when count(*) between 1 and %(given)b::bigint - 1 then string_agg(hash, ''::bytea) end,
       (select array_agg(topic) from (select distinct topic from stored limit 65) as few)
from stored
"""


@cache
def insert_statement(*, with_sds: bool, tolerant: bool) -> str:
    """The statement that writes a batch; ``tolerant`` of hashes that are there already."""
    messages = _MESSAGES.format(tolerant=_TOLERANT if tolerant else "")
    return messages + (_SDS if with_sds else "") + _RESULT


_TAKE_PLACE: Final = """
select pg_advisory_xact_lock(%b::bigint),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""
_COMMIT_ROW: Final = """
insert into storenode.commits (position, batch, token, messages, min_ts, max_ts, topics, source)
values (nextval('storenode.position_seq'), %b::bigint, %b::bigint, %b::int, %b::bigint, %b::bigint,
        %b::uuid[], %s)
"""
_NOTIFY: Final = "select pg_notify('storenode_feed', '')"
_TOPICS: Final = """
insert into storenode.topics (key, ts, pubsub_topic, content_topic)
select * from unnest(%b::uuid[], %b::bigint[], %s::text[], %s::text[])
on conflict do nothing
"""


@dataclass(frozen=True, slots=True)
class Inserted:
    """What a batch added: counts, the span of timestamps, and which hashes were new.

    ``hashes`` is None when all or none were; ``topics`` are those of the new messages, None when
    there are more than `MAX_LISTED_TOPICS`.
    """

    count: int
    min_ts: int
    max_ts: int
    hashes: frozenset[bytes] | None
    topics: tuple[bytes, ...] | None


def channel_key(channel: bytes) -> bytes:
    """Index key of an SDS channel: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(channel).digest()[:16]


def new_token() -> int:
    """Draw the random signed 64-bit number that identifies a commit."""
    return secrets.randbits(64) - (1 << 63)


def parameters(batch: RecordBatch, batch_id: int) -> dict[str, object]:
    """Lay a batch out for `insert_statement`."""
    given: dict[str, object] = {
        "ts": arrays.bigints(batch.timestamps),
        "hash": arrays.fixed_bytes(batch.hashes, HASH_BYTES),
        "topic": arrays.uuids(batch.topic_keys),
        "head": arrays.varied_bytes(batch.heads),
        "payload": arrays.varied_bytes(batch.payloads),
        "tail": arrays.varied_bytes(batch.tails),
        "batch": batch_id,
        "given": len(batch),
    }
    if batch.sds:
        given |= _sds_parameters(batch)
    return given


def _sds_parameters(batch: RecordBatch) -> dict[str, object]:
    rows = batch.sds
    parents = [_parents(row) for row in rows]
    return {
        "s_key": arrays.uuids([sds_key(row.channel_id, row.message_id) for row in rows]),
        "s_channel_key": arrays.uuids([channel_key(row.channel_id) for row in rows]),
        "s_ts": arrays.bigints([batch.timestamps[index] for index in batch.sds_index]),
        "s_hash": arrays.fixed_bytes(
            [batch.hashes[index] for index in batch.sds_index], HASH_BYTES
        ),
        "s_channel": arrays.varied_bytes([row.channel_id for row in rows]),
        "s_message_id": arrays.varied_bytes([row.message_id for row in rows]),
        "s_sender": arrays.varied_bytes([row.sender_id for row in rows]),
        "s_lamport": arrays.texts(
            ["" if row.lamport is None else str(_signed(row.lamport)) for row in rows]
        ),
        "s_parent_keys": arrays.texts([keys for keys, _, _ in parents]),
        "s_parent_ids": arrays.texts([ids for _, ids, _ in parents]),
        "s_parent_hints": arrays.texts([hints for _, _, hints in parents]),
    }


def _signed(lamport: int) -> int:
    return lamport - _INT64 if lamport >= _INT64 // 2 else lamport


def _parents(row: SdsMetadata) -> tuple[str, str, str]:
    """Array literals of a row's parents: keys, IDs, hints.

    Rows have different numbers of parents, which no rectangular array parameter can carry.
    """
    keys = [sds_key(row.channel_id, parent).hex() for parent, _ in row.parents]
    return (
        _array_literal(keys),
        _bytea_literal(parent for parent, _ in row.parents),
        _bytea_literal(hint for _, hint in row.parents),
    )


def _bytea_literal(values: Iterable[bytes | None]) -> str:
    return _array_literal("NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values)


def _array_literal(elements: Iterable[str]) -> str:
    return "{" + ",".join(elements) + "}"


async def insert(
    connection: Connection, batch: RecordBatch, batch_id: int, *, tolerant: bool = True
) -> Inserted:
    """Insert what is new of a batch; the caller's transaction is open.

    Raises:
        psycopg.errors.UniqueViolation: not ``tolerant``, and a message that was pruned comes again.
    """
    statement = insert_statement(with_sds=bool(batch.sds), tolerant=tolerant)
    if sum(len(row.parents) for row in batch.sds) > MAX_INLINE_PARENTS:
        given = await asyncio.to_thread(parameters, batch, batch_id)
    else:
        given = parameters(batch, batch_id)
    cursor = await connection.execute(statement, given, binary=True)
    row = await cursor.fetchone()
    assert row is not None
    count, low, high, joined, topics = row
    return Inserted(
        count=count,  # type: ignore[arg-type]
        min_ts=low or 0,  # type: ignore[arg-type]
        max_ts=high or 0,  # type: ignore[arg-type]
        hashes=None if joined is None else _split(bytes(joined)),  # type: ignore[call-overload]
        topics=_listed(topics),
    )


def _split(joined: bytes) -> frozenset[bytes]:
    return frozenset(
        joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)
    )


def _listed(topics: object) -> tuple[bytes, ...] | None:
    keys = arrays.split_uuids(topics) if isinstance(topics, bytes) else []
    return tuple(keys) if 0 < len(keys) <= MAX_LISTED_TOPICS else None


async def take_place(
    connection: Connection,
    inserted: Sequence[tuple[int, int, Inserted]],
    source: Source,
) -> None:
    """Give batches their places in the commit order; the transaction must commit right after.

    ``inserted`` holds (batch ID, token, what it added), for batches that added something.
    """
    await connection.execute(_TAKE_PLACE, (COMMIT_ORDER, f"{MAX_IDLE_IN_PLACE_MS}ms"))
    for batch_id, token, added in inserted:
        topics = None if added.topics is None else arrays.uuids(added.topics)
        values = (batch_id, token, added.count, added.min_ts, added.max_ts, topics, source.value)
        await connection.execute(_COMMIT_ROW, values)
    await connection.execute(_NOTIFY)


async def insert_topics(
    connection: Connection, rows: Sequence[tuple[bytes, int, str, str]]
) -> None:
    """Name topic keys: rows of (key, lower bound of the coarse partition, pubsub, content)."""
    ordered = sorted(rows)
    await connection.execute(
        _TOPICS,
        (
            arrays.uuids([row[0] for row in ordered]),
            arrays.bigints([row[1] for row in ordered]),
            [row[2] for row in ordered],
            [row[3] for row in ordered],
        ),
    )
