"""The statements that write a batch, in three ways, and a batch as their parameters.

`insert` finds out which messages are new: index rows come only from the rows that were really
inserted. It is right for every batch, in a transaction whose last step gives the batch its
position in the commit order (see ``docs/database.md``).

`insert_at_once` is for a small batch that is probably new: one statement that is its own
transaction, and so does not keep its place in the commit order while it waits for the network.
Either all messages are new, or nothing is stored. The parts of the statement run in the order in
which they refer to each other (PostgreSQL manual, "WITH Queries", "Data-Modifying Statements in
WITH"): the rows first, then the lock of the commit order, then the position.

`copy` is for a large batch of new messages, at half of what an insert costs
(`store.db.writing.bulk`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from store.db import arrays
from store.db.locks import COMMIT_ORDER
from store.db.pool import Connection
from store.db.reading.messages import MESSAGE_AT, position_parameters
from store.db.schema.partitions import PartitionMap
from store.db.summaries.buckets import pack
from store.db.writing.bulk import copy_new
from store.db.writing.unread import TRACK
from store.domain.ports import Source
from store.messages.record import RecordBatch
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES
from storenode.sds.codec import SdsMetadata, channel_key, sds_key

MAX_LISTED_TOPICS: Final = 64
"""A commit lists its topics up to this many, so that followers can pass over it unread."""

MAX_INLINE_PARENTS: Final = 4_096
"""Parents of a batch that are laid out on the event loop, in 10 ms; more are left to a thread."""

MAX_REMEMBERED_TOPICS: Final = 65_536
"""Topic keys of which a node knows that they are named."""

MAX_IDLE_IN_PLACE_MS: Final = 5_000
"""A node that falls silent between taking its place and COMMIT keeps every other from committing:
the server ends its transaction after this time. Its next attempt stores the batch."""

# Messages and their rows of `hashes`, as far as they are new.
_MESSAGES: Final = """
with given as (
    select * from unnest(%(ts)b::bigint[], %(hash)b::bytea[], %(topic)b::uuid[],
                         %(content_digest)b::bytea[], %(head)b::bytea[], %(payload)b::bytea[],
                         %(tail)b::bytea[])
        as given(ts, hash, topic, content_digest, head, payload, tail)
), numbered as materialized (
    select nextval('storenode.batch_seq') as batch
), stored as (
    insert into storenode.messages (ts, hash, topic, batch, content_digest, head, payload, tail)
    select ts, hash, topic, batch, content_digest, head, payload, tail
    from given, numbered order by ts, hash
    on conflict do nothing
    returning ts, hash, topic
), located as (
    insert into storenode.hashes (key, ts, topic)
    select encode(substr(hash, 1, 16), 'hex')::uuid, ts, topic from stored
    on conflict do nothing
    returning 1
)"""

# SDS rows. Rows have different numbers of parents, which no rectangular array carries: these come
# as texts of arrays.
_DESCRIBED: Final = """
    insert into storenode.sds (key, channel_key, ts, hash, channel, message_id, sender, lamport,
                               parent_keys, parent_ids, parent_hints, proof)
    select s.key, s.channel_key, s.ts, s.hash, s.channel, s.message_id, s.sender,
           nullif(s.lamport, '')::bigint, s.parent_keys::uuid[], s.parent_ids::bytea[],
           s.parent_hints::bytea[], s.proof
    from unnest(%(s_key)b::uuid[], %(s_channel_key)b::uuid[], %(s_ts)b::bigint[],
                %(s_hash)b::bytea[], %(s_channel)b::bytea[], %(s_message_id)b::bytea[],
                %(s_sender)b::bytea[], %(s_lamport)b::text[], %(s_parent_keys)b::text[],
                %(s_parent_ids)b::text[], %(s_parent_hints)b::text[],
                %(s_proof)b::boolean[])
        as s(key, channel_key, ts, hash, channel, message_id, sender, lamport,
             parent_keys, parent_ids, parent_hints, proof){stored}
    on conflict do nothing
"""
_DESCRIBED_IF_STORED: Final = (
    f", described as ({_DESCRIBED.format(stored=' join stored using (ts, hash)')} returning 1)"
)
# What was new.
_RESULT: Final = """
select (select batch from numbered), count(*), min(ts), max(ts),
       case when count(*) between 1 and %(given)b::bigint - 1 then string_agg(hash, ''::bytea) end,
       (select array_agg(topic) from (select distinct topic from stored limit 65) as few)
from stored
"""
_INSERT: Final = _MESSAGES + _RESULT
_INSERT_WITH_SDS: Final = _MESSAGES + _DESCRIBED_IF_STORED + _RESULT

# The commit of a batch that is inserted at once. Where only some messages are new, it is refused:
# a commit must have a summary.
_TRACKED: Final = f""", tracked as ({TRACK.format(stored=" join stored using (ts, hash)")}
    returning 1
)"""
_COMMITTED: Final = """, placed as materialized (
    select batch, added, pg_advisory_xact_lock(%(commit_order)b::bigint),
           pg_notify('storenode_feed', '')
    from numbered, (select count(*) as added from stored) as counted{written}
    where added > 0
)
insert into storenode.commits (position, batch, token, messages, min_ts, max_ts, topics, source,
                               summary, claims)
select nextval('storenode.position_seq'), batch, %(token)b::bigint, added, %(min_ts)b::bigint,
       %(max_ts)b::bigint, %(topics)b::uuid[], %(source)s,
       case added when %(given)b::bigint then %(summary)b::bytea end, %(claims)b::bytea
from placed
"""

# The messages of a batch whose hash is stored with other content.
_CONFLICTS: Final = f"""
select k.hash, m.content_digest
from unnest(%(ts)b::bigint[], %(hash)b::bytea[], %(content_digest)b::bytea[])
    as k(ts, hash, content_digest)
cross join {MESSAGE_AT} where m.content_digest <> k.content_digest
"""

# The steps of a transaction that commits a batch.
_NEXT_BATCH: Final = "select nextval('storenode.batch_seq')"
_TAKE_PLACE: Final = """
select pg_advisory_xact_lock(%b::bigint), pg_notify('storenode_feed', ''),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""
_COMMIT_ROW: Final = """
insert into storenode.commits (position, batch, token, messages, min_ts, max_ts, topics, source,
                               summary, claims)
values (nextval('storenode.position_seq'), %b::bigint, %b::bigint, %b::int, %b::bigint, %b::bigint,
        %b::uuid[], %s, %b::bytea, %b::bytea)
"""
# What an attempt has committed whose answer was lost.
_COMMIT_OF: Final = """
select batch from storenode.commits where token = %b::bigint
  and position > (select last_value - 1000000 from storenode.position_seq) limit 1
"""
_HASHES_OF: Final = """
select hash from storenode.messages
where batch = %b::bigint and ts between %b::bigint and %b::bigint
"""

# Names of topic keys, once in each coarse partition.
_TOPICS: Final = """
insert into storenode.topics (key, ts, pubsub_topic, content_topic)
select * from unnest(%b::uuid[], %b::bigint[], %s::text[], %s::text[])
on conflict do nothing
"""


TopicRow = tuple[bytes, int, str, str]
"""Topic key, lower bound of the coarse partition (ns, at least 0), pubsub and content topic."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """The effect of a batch: its ID, counts, the span of timestamps, and which hashes were new.

    ``hashes`` is None when all or none were; ``topics`` are those of the new messages, None when
    there are more than `MAX_LISTED_TOPICS`; ``summary`` is the delta of exactly the new messages
    (`store.db.summaries.buckets.pack`), ``claims`` what their SDS messages claim; both are empty
    when they are known from an earlier attempt or there are none.
    """

    batch_id: int
    count: int
    min_ts: int
    max_ts: int
    hashes: frozenset[bytes] | None
    topics: tuple[bytes, ...] | None
    summary: bytes
    claims: bytes


class NothingNewError(Exception):
    """A batch of which every message is stored already."""


def new_token() -> int:
    """Draw the random signed 64-bit number that identifies a commit."""
    return secrets.randbits(64) - (1 << 63)


def _sds_parameters(batch: RecordBatch) -> dict[str, object]:
    rows = batch.sds
    parents = [_parents(row) for row in rows]
    channel_keys = {channel: channel_key(channel) for channel in {row.channel_id for row in rows}}
    return {
        "s_key": arrays.uuids([sds_key(row.channel_id, row.message_id) for row in rows]),
        "s_channel_key": arrays.uuids([channel_keys[row.channel_id] for row in rows]),
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
        "s_proof": arrays.booleans([row.proven for row in rows]),
    }


def _signed(lamport: int) -> int:
    return lamport - (1 << 64) if lamport >= 1 << 63 else lamport


def _parents(row: SdsMetadata) -> tuple[str, str, str]:
    """Return array literals of a row's parents: keys, IDs, hints."""
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


async def insert(connection: Connection, batch: RecordBatch) -> Inserted:
    """Insert what is new of a batch; the caller's transaction is open."""
    statement = _INSERT_WITH_SDS if batch.sds else _INSERT
    cursor = await connection.execute(statement, await _lay_out(batch), binary=True)
    row = await cursor.fetchone()
    assert row is not None
    batch_id, count, low, high, joined, topics = row
    hashes = None if joined is None else _split(bytes(joined))  # type: ignore[call-overload]
    return Inserted(
        batch_id=batch_id,  # type: ignore[arg-type]
        count=count,  # type: ignore[arg-type]
        min_ts=low or 0,  # type: ignore[arg-type]
        max_ts=high or 0,  # type: ignore[arg-type]
        hashes=hashes,
        topics=_listed(topics),
        summary=_summary(batch, hashes) if count else b"",
        claims=_claims(batch, hashes) if count else b"",
    )


async def find_conflicts(
    connection: Connection, batch: RecordBatch, places: Sequence[int]
) -> dict[bytes, bytes]:
    """Find the messages of a batch whose hash is stored with other content.

    Runs after the insert of the same transaction, which has waited for concurrent ones with these
    hashes: so this statement sees what they have committed.

    Returns:
        The content digest of the stored message, by hash.
    """
    if not places:
        return {}
    digests = [batch.content_digests[place] for place in places]
    positions = [(batch.timestamps[place], batch.hashes[place]) for place in places]
    parameters = position_parameters(positions) | {
        "content_digest": arrays.fixed_bytes(digests, CONTENT_DIGEST_BYTES)
    }
    cursor = await connection.execute(_CONFLICTS, parameters, binary=True)
    rows: list[tuple[bytes, bytes]] = await cursor.fetchall()  # type: ignore[assignment]
    return dict(rows)


async def copy(connection: Connection, batch: RecordBatch) -> Inserted:
    """Insert a batch all of which is new; the caller's transaction is open.

    Raises:
        psycopg.errors.UniqueViolation: a message is there already, or was and was pruned.
    """
    cursor = await connection.execute(_NEXT_BATCH)
    row = await cursor.fetchone()
    assert row is not None
    batch_id: int = row[0]  # type: ignore[assignment]
    await copy_new(connection, batch, batch_id)
    if batch.sds:
        await connection.execute(_DESCRIBED.format(stored=""), await _lay_out_sds(batch))
    return all_new(batch, batch_id)


async def insert_at_once(
    connection: Connection,
    batch: RecordBatch,
    commit: tuple[int, Inserted, Source],
    unread: dict[str, object] | None,
) -> None:
    """Insert a batch and commit it; the caller has no transaction open.

    ``commit`` is its token, what it adds if all of it is new, and where it comes from; ``unread``
    are the parameters of the unread events that are added with it.

    Raises:
        NothingNewError: nothing was written.
        psycopg.errors.NotNullViolation: some messages are there already, and nothing was written.
    """
    token, added, source = commit
    parameters = await _lay_out(batch) | {
        "commit_order": COMMIT_ORDER,
        "token": token,
        "min_ts": added.min_ts,
        "max_ts": added.max_ts,
        "topics": None if added.topics is None else arrays.uuids(added.topics),
        "source": source.value,
        "summary": added.summary,
        "claims": added.claims,
    }
    statement = _at_once(with_sds=bool(batch.sds), with_unread=unread is not None)
    cursor = await connection.execute(statement, parameters | (unread or {}), binary=True)
    if not cursor.rowcount:
        raise NothingNewError


@cache
def _at_once(*, with_sds: bool, with_unread: bool) -> str:
    parts = {
        "described": _DESCRIBED_IF_STORED if with_sds else "",
        "tracked": _TRACKED if with_unread else "",
    }
    names = ["located", *(name for name, part in parts.items() if part)]
    written = "".join(f", (select count(*) from {name}) as {name}_rows" for name in names)
    return _MESSAGES + "".join(parts.values()) + _COMMITTED.format(written=written)


async def find_committed(connection: Connection, batch: RecordBatch, token: int) -> Inserted | None:
    """Return what an attempt with a token has committed; None: it has not."""
    cursor = await connection.execute(_COMMIT_OF, (token,))
    row = await cursor.fetchone()
    if row is None:
        return None
    first, last = min(batch.timestamps), max(batch.timestamps)
    cursor = await connection.execute(_HASHES_OF, (row[0], first, last), binary=True)
    hashes = frozenset(bytes(digest) for (digest,) in await cursor.fetchall())  # type: ignore[call-overload]
    # The commit that was found has its summary and claims already.
    return Inserted(row[0], len(hashes), first, last, hashes, None, b"", b"")  # type: ignore[arg-type]


def all_new(batch: RecordBatch, batch_id: int) -> Inserted:
    """Return what a batch adds if each of its messages is new."""
    topics = tuple(batch.topics) if len(batch.topics) <= MAX_LISTED_TOPICS else None
    first, last = min(batch.timestamps), max(batch.timestamps)
    summary, claims = pack(batch.timestamps, batch.hashes), _claims(batch, None)
    return Inserted(batch_id, len(batch.hashes), first, last, None, topics, summary, claims)


async def _lay_out(batch: RecordBatch) -> dict[str, object]:
    given: dict[str, object] = {
        "ts": arrays.bigints(batch.timestamps),
        "hash": arrays.fixed_bytes(batch.hashes, HASH_BYTES),
        "topic": arrays.uuids(batch.topic_keys),
        "content_digest": arrays.fixed_bytes(batch.content_digests, CONTENT_DIGEST_BYTES),
        "head": arrays.varied_bytes(batch.heads),
        "payload": arrays.varied_bytes(batch.payloads),
        "tail": arrays.varied_bytes(batch.tails),
        "given": len(batch.hashes),
    }
    return given | await _lay_out_sds(batch) if batch.sds else given


async def _lay_out_sds(batch: RecordBatch) -> dict[str, object]:
    if sum(len(row.parents) for row in batch.sds) > MAX_INLINE_PARENTS:
        return await asyncio.to_thread(_sds_parameters, batch)
    return _sds_parameters(batch)


def _summary(batch: RecordBatch, added: frozenset[bytes] | None) -> bytes:
    if added is None:
        return pack(batch.timestamps, batch.hashes)
    # A message may be in the batch twice.
    times = dict(zip(batch.hashes, batch.timestamps, strict=True))
    new = list(added)
    return pack([times[digest] for digest in new], new)


def _claims(batch: RecordBatch, added: frozenset[bytes] | None) -> bytes:
    return b"".join(
        sds_key(row.channel_id, row.message_id) + batch.timestamps[index].to_bytes(8)
        for row, index in zip(batch.sds, batch.sds_index, strict=True)
        if added is None or batch.hashes[index] in added
    )


def _split(joined: bytes) -> frozenset[bytes]:
    return frozenset(
        joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)
    )


def _listed(topics: object) -> tuple[bytes, ...] | None:
    keys = arrays.split_uuids(topics) if isinstance(topics, bytes) else []
    return tuple(keys) if 0 < len(keys) <= MAX_LISTED_TOPICS else None


async def assign_commit_position(
    connection: Connection,
    inserted: Sequence[tuple[int, Inserted]],
    source: Source,
) -> None:
    """Insert commits in commit order; the transaction must commit right after.

    ``inserted`` holds (token, what it added), for batches that added something.
    """
    await connection.execute(_TAKE_PLACE, (COMMIT_ORDER, f"{MAX_IDLE_IN_PLACE_MS}ms"))
    for token, added in inserted:
        topics = None if added.topics is None else arrays.uuids(added.topics)
        counts = (added.batch_id, token, added.count, added.min_ts, added.max_ts)
        said = (source.value, added.summary, added.claims)
        await connection.execute(_COMMIT_ROW, (*counts, topics, *said))


async def insert_topics(connection: Connection, rows: Sequence[TopicRow]) -> None:
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


class KnownTopics:
    """Topic keys known to be in ``storenode.topics``, per coarse partition.

    Forgets everything when the ``era`` changes, which is any value that stands for the partitions
    (one may have been dropped and made again) and for the server (a promoted one may have lost the
    newest names); and the older half when `MAX_REMEMBERED_TOPICS` is passed. A topic that is named
    twice costs one insert that does nothing.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], None] = {}
        self._era: Hashable = None

    def unnamed(
        self, batch: RecordBatch, partitions: PartitionMap, era: Hashable = None
    ) -> list[TopicRow]:
        """Return the rows that must be written before the batch."""
        if self._era != era:
            self._known.clear()
            self._era = era
        low = partitions.coarse_lower(min(batch.timestamps))
        if low == partitions.coarse_lower(max(batch.timestamps)):
            used = {(low, key) for key in batch.topics}
        else:
            lowers = map(partitions.coarse_lower, batch.timestamps)
            used = set(zip(lowers, batch.topic_keys, strict=True))
        return [(key, lower, *batch.topics[key]) for lower, key in used - self._known.keys()]

    def remember(self, rows: Sequence[TopicRow], era: Hashable = None) -> None:
        """Note rows that were written in an era, unless it is over."""
        if self._era == era:
            self._known.update(((lower, key), None) for key, lower, _, _ in rows)
        if len(self._known) > MAX_REMEMBERED_TOPICS:
            for entry in list(self._known)[: len(self._known) // 2]:
                del self._known[entry]
