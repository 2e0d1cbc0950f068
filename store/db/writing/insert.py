"""The statements that write messages, in three ways, and messages as their parameters.

A transaction has a `CommitPart` for each source of its messages, and each part becomes a commit.
Rows of all parts are written together, in the order of their keys: so no two transactions wait for
each other in a circle.

`insert` finds out which messages are new: index rows come only from the rows that were really
inserted. It is right for all messages, in a transaction whose last step gives the commits their
positions in the commit order (see ``docs/database.md``).

`insert_at_once` is for few messages that are probably new: one statement that is its own
transaction, and so does not keep its place in the commit order while it waits for the network.
Either all messages are new, or nothing is stored. The parts of the statement run in the order in
which they refer to each other (PostgreSQL manual, "WITH Queries", "Data-Modifying Statements in
WITH"): the rows first, then the lock of the commit order, then the position.

`copy` is for many new messages, at half of what an insert costs
(`store.db.writing.bulk`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

import numpy as np

from store.db import arrays
from store.db.connection import Connection
from store.db.locks import COMMIT_ORDER
from store.db.reading.messages import position_parameters
from store.db.schema.partitions import PartitionMap
from store.db.statements import SQL
from store.db.summaries.buckets import pack
from store.db.writing.bulk import copy_new
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


_IF_STORED: Final = " join stored using (ts, hash)"
_DESCRIBED: Final = f", described as ({SQL.sds.insert_sds.format(stored=_IF_STORED)} returning 1)"
_TRACKED: Final = f", tracked as ({SQL.stores.track.format(stored=_IF_STORED)} returning 1)"
"""The rows that the same statement writes for messages which it stores."""

_INSERT: Final = SQL.messages.insert_messages + SQL.messages.return_inserted
_INSERT_WITH_SDS: Final = SQL.messages.insert_messages + _DESCRIBED + SQL.messages.return_inserted

TopicRow = tuple[bytes, int, str, str]
"""Topic key, lower bound of the coarse partition (ns, at least 0), pubsub and content topic."""


def new_token() -> int:
    """Draw the random signed 64-bit number that identifies a commit."""
    return secrets.randbits(64) - (1 << 63)


@dataclass(frozen=True, slots=True)
class CommitPart:
    """The messages of one source in a transaction, which become the commit with this token."""

    batch: RecordBatch
    source: Source
    token: int = field(default_factory=new_token)


@dataclass(frozen=True, slots=True)
class Inserted:
    """The effect of a part: the ID of its batch, its counts and span, and which hashes were new.

    ``hashes`` is None when all or none were; ``topics`` are those of the new messages, None when
    there are more than `MAX_LISTED_TOPICS`; ``summary`` is the delta of exactly the new messages
    (`store.db.summaries.buckets.pack`), ``claims`` what their SDS messages claim; both are empty
    when they are known from an earlier attempt or there are none.
    """

    batch_id: int
    count: int
    min_ts: int = 0
    max_ts: int = 0
    hashes: frozenset[bytes] | None = None
    topics: tuple[bytes, ...] | None = None
    summary: bytes = b""
    claims: bytes = b""


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """A commit of this node: its position, and what it added of its part."""

    position: int
    part: CommitPart
    added: Inserted


class NothingNewError(Exception):
    """A batch of which every message is stored already."""


def join(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Return all messages of some batches as one."""
    if len(batches) == 1:
        return batches[0]
    joined = RecordBatch()
    for batch in batches:
        joined.extend(batch)
    return joined


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


def _uuid_literal(keys: Iterable[bytes]) -> str:
    return _array_literal(key.hex() for key in keys)


def _bytea_literal(values: Iterable[bytes | None]) -> str:
    return _array_literal("NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values)


def _array_literal(elements: Iterable[str]) -> str:
    return "{" + ",".join(elements) + "}"


async def insert(connection: Connection, parts: Sequence[CommitPart]) -> list[Inserted]:
    """Insert what is new of each part; the caller's transaction is open."""
    parameters = await _lay_out(parts)
    statement = _INSERT_WITH_SDS if "s_key" in parameters else _INSERT
    cursor = await connection.execute(statement, parameters, binary=True)
    inserted = [Inserted(0, 0)] * len(parts)
    for row in await cursor.fetchall():
        number, batch_id, count, low, high, joined, topics = row
        batch = parts[number - 1].batch
        hashes = None if joined is None else _split(bytes(joined))
        inserted[number - 1] = Inserted(
            batch_id=batch_id,
            count=count,
            min_ts=low,
            max_ts=high,
            hashes=hashes,
            topics=_listed(topics),
            summary=_summary(batch, hashes),
            claims=_claims(batch, hashes),
        )
    return inserted


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
    cursor = await connection.execute(SQL.messages.find_conflicts, parameters, binary=True)
    rows: list[tuple[bytes, bytes]] = await cursor.fetchall()
    return dict(rows)


async def copy(connection: Connection, parts: Sequence[CommitPart]) -> list[Inserted]:
    """Insert parts all of which are new; the caller's transaction is open.

    Raises:
        psycopg.errors.UniqueViolation: a message is there already, or was and was pruned.
    """
    cursor = await connection.execute(SQL.messages.next_batches, (len(parts),))
    numbers: list[int] = [row[0] for row in await cursor.fetchall()]
    batch = join([part.batch for part in parts])
    sizes = [len(part.batch) for part in parts]
    await copy_new(connection, batch, np.repeat(np.array(numbers, np.int64), sizes))
    if batch.sds:
        await connection.execute(SQL.sds.insert_sds.format(stored=""), await _lay_out_sds(batch))
    return [all_new(part.batch, number) for part, number in zip(parts, numbers, strict=True)]


async def insert_at_once(
    connection: Connection,
    parts: Sequence[CommitPart],
    new: Sequence[Inserted],
    unread: dict[str, object] | None,
) -> list[OwnCommit]:
    """Insert parts and commit them; the caller has no transaction open.

    ``new`` is what each part adds if all of it is new; ``unread`` are the parameters of the unread
    events that are added with them.

    Raises:
        NothingNewError: nothing was written.
        psycopg.errors.NotNullViolation: some messages are there already, and nothing was written.
    """
    parameters = await _lay_out(parts) | {
        "commit_order": COMMIT_ORDER,
        "notice": notice_of(parts),
        "token": arrays.bigints([part.token for part in parts]),
        "min_ts": arrays.bigints([each.min_ts for each in new]),
        "max_ts": arrays.bigints([each.max_ts for each in new]),
        "topics": [None if each.topics is None else _uuid_literal(each.topics) for each in new],
        "source": arrays.texts([part.source.value for part in parts]),
        "summary": arrays.varied_bytes([each.summary for each in new]),
        "claims": arrays.varied_bytes([each.claims for each in new]),
    }
    statement = _at_once(with_sds="s_key" in parameters, with_unread=unread is not None)
    cursor = await connection.execute(statement, parameters | (unread or {}), binary=True)
    rows: list[tuple[int, int, int]] = await cursor.fetchall()
    if not rows:
        raise NothingNewError
    found = {token: (position, batch_id) for position, batch_id, token in rows}
    committed = []
    for part, added in zip(parts, new, strict=True):
        position, batch_id = found[part.token]
        committed.append(OwnCommit(position, part, replace(added, batch_id=batch_id)))
    return committed


@cache
def _at_once(*, with_sds: bool, with_unread: bool) -> str:
    parts = {
        "described": _DESCRIBED if with_sds else "",
        "tracked": _TRACKED if with_unread else "",
    }
    names = ["located", *(name for name, part in parts.items() if part)]
    written = "".join(f", (select count(*) from {name}) as {name}_rows" for name in names)
    return (
        SQL.messages.insert_messages
        + "".join(parts.values())
        + SQL.commits.insert_at_once.format(written=written)
    )


async def find_committed(connection: Connection, part: CommitPart) -> Inserted | None:
    """Return what an earlier attempt has committed of a part; None: nothing."""
    cursor = await connection.execute(SQL.commits.find_batch, (part.token,))
    row = await cursor.fetchone()
    if row is None:
        return None
    first, last = min(part.batch.timestamps), max(part.batch.timestamps)
    cursor = await connection.execute(
        SQL.messages.read_hashes_of_batch, (row[0], first, last), binary=True
    )
    hashes = frozenset(bytes(digest) for (digest,) in await cursor.fetchall())
    # The commit that was found has its summary and claims already.
    return Inserted(row[0], len(hashes), first, last, hashes)


def all_new(batch: RecordBatch, batch_id: int) -> Inserted:
    """Return what a batch adds if each of its messages is new."""
    topics = tuple(batch.topics) if len(batch.topics) <= MAX_LISTED_TOPICS else None
    first, last = min(batch.timestamps), max(batch.timestamps)
    summary, claims = pack(batch.timestamps, batch.hashes), _claims(batch, None)
    return Inserted(batch_id, len(batch.hashes), first, last, None, topics, summary, claims)


async def _lay_out(parts: Sequence[CommitPart]) -> dict[str, object]:
    batch = join([part.batch for part in parts])
    sizes = [len(part.batch) for part in parts]
    given: dict[str, object] = {
        "ts": arrays.bigints(batch.timestamps),
        "hash": arrays.fixed_bytes(batch.hashes, HASH_BYTES),
        "topic": arrays.uuids(batch.topic_keys),
        "content_digest": arrays.fixed_bytes(batch.content_digests, CONTENT_DIGEST_BYTES),
        "head": arrays.varied_bytes(batch.heads),
        "payload": arrays.varied_bytes(batch.payloads),
        "tail": arrays.varied_bytes(batch.tails),
        "part": arrays.bigints([n for n, size in enumerate(sizes, 1) for _ in range(size)]),
        "parts": len(parts),
        "given": arrays.bigints(sizes),
    }
    return given | await _lay_out_sds(batch) if batch.sds else given


async def _lay_out_sds(batch: RecordBatch) -> dict[str, object]:
    if sum(len(row.parents) for row in batch.sds) > MAX_INLINE_PARENTS:
        return await asyncio.to_thread(_sds_parameters, batch)
    return _sds_parameters(batch)


def _summary(batch: RecordBatch, added: frozenset[bytes] | None) -> bytes:
    if added is None:
        return pack(batch.timestamps, batch.hashes)
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


def notice_of(parts: Sequence[CommitPart]) -> str:
    """Return the payload of the notification of a transaction: the token of its first part."""
    return str(parts[0].token) if parts else ""


async def assign_commit_position(
    connection: Connection, parts: Sequence[CommitPart], inserted: Sequence[Inserted]
) -> list[OwnCommit]:
    """Insert the commits of the parts that added something, in commit order.

    The transaction must commit right after.
    """
    idle = f"{MAX_IDLE_IN_PLACE_MS}ms"
    await connection.execute(SQL.commits.take_place, (COMMIT_ORDER, notice_of(parts), idle))
    committed: list[OwnCommit] = []
    for part, added in zip(parts, inserted, strict=True):
        if not added.count:
            continue
        topics = None if added.topics is None else arrays.uuids(added.topics)
        counts = (added.batch_id, part.token, added.count, added.min_ts, added.max_ts)
        said = (part.source.value, added.summary, added.claims)
        cursor = await connection.execute(SQL.commits.insert_commit, (*counts, topics, *said))
        row = await cursor.fetchone()
        assert row is not None
        committed.append(OwnCommit(row[0], part, added))
    return committed


async def insert_topics(connection: Connection, rows: Iterable[TopicRow]) -> None:
    """Name topic keys: rows of (key, lower bound of the coarse partition, pubsub, content)."""
    ordered = sorted(rows)
    await connection.execute(
        SQL.messages.insert_topics,
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

    def remember(self, rows: Iterable[TopicRow], era: Hashable = None) -> None:
        """Note rows that were written in an era, unless it is over."""
        if self._era == era:
            self._known.update(((lower, key), None) for key, lower, _, _ in rows)
        if len(self._known) > MAX_REMEMBERED_TOPICS:
            for entry in list(self._known)[: len(self._known) // 2]:
                del self._known[entry]
