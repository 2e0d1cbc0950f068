"""The statements that write messages, in two ways, and messages as their parameters.

A transaction has a `CommitPart` for each source of its messages, and each part becomes a commit.
Rows of all parts are written together, in the order of their keys: so no two transactions wait for
each other in a circle. Both ways write only messages that are new, and fail where one of them is
stored already; `find_new` says which are not.

`insert_at_once` is for few messages that are probably new: one statement that is its own
transaction, and so does not keep its place in the commit order while it waits for the network. The
parts of the statement run in the order in which they refer to each other (PostgreSQL manual, "WITH
Queries", "Data-Modifying Statements in WITH"): the rows first, then the lock of the commit order,
then the position.

`copy` is for many new messages, at half of what an insert costs, and for what `find_new` has left
of a batch, in a transaction whose last step gives the commits their positions in the commit order
(see ``docs/database.md``). COPY inserts a page of rows at a time, and fails as a whole when one of
them is there already. Rows are laid out in COPY's binary format (PostgreSQL manual, "COPY", "Binary
Format"), in the order of each table's primary key.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Final

import numpy as np

from store.db import arrays
from store.db.buckets import pack
from store.db.connection import Connection, fetch_rows
from store.db.feed import TOKEN_SPAN
from store.db.locks import COMMIT_ORDER
from store.db.messages import HASH_KEY_BYTES, values_at
from store.db.partitions import PartitionMap
from store.db.statements import SQL
from store.domain.hub import Place
from store.domain.ports import Source
from store.messages.record import RecordBatch
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES
from storenode.sds.codec import SdsMetadata, channel_key, sds_key

MAX_LISTED_TOPICS: Final = 64
"""A commit lists its topics up to this many, so that followers can pass over it unread."""

FEWEST_COPIED: Final = 100
"""The number of messages below which an insert is quicker than COPY, which needs two statements."""

MAX_INLINE_PARENTS: Final = 4_096
"""Parents of a batch that are laid out on the event loop, in 10 ms; more are left to a thread."""

MAX_REMEMBERED_TOPICS: Final = 65_536
"""Topic keys that are remembered as registered."""

MAX_IDLE_IN_PLACE_MS: Final = 5_000
"""The time after which the server ends the transaction of a node that is silent between taking its
place and COMMIT, which blocks all other commits. The node's next attempt stores the batch."""

_IF_STORED: Final = " join stored using (ts, hash)"
_DESCRIBED: Final = f", described as ({SQL.sds.insert_sds.format(stored=_IF_STORED)} returning 1)"
_TRACKED: Final = f", tracked as ({SQL.stores.track.format(stored=_IF_STORED)} returning 1)"
"""The rows that the same statement writes for messages which it stores."""

Share = tuple[RecordBatch, int]
"""A batch of one caller, and how many stores must confirm it."""

TopicRow = tuple[bytes, int, str, str]
"""Topic key, lower bound of the coarse partition (ns, at least 0), pubsub and content topic."""


@dataclass(slots=True, eq=False)
class CommitPart:
    """The messages of one source in a transaction, each once, which become a commit.

    Attributes:
        shares: The messages by callers.
        token: The random signed 64-bit number that identifies the commit.
        new: The messages that the latest attempt adds, if it succeeds.
        batch_id: The ID of what it adds.
        needed: How many stores must confirm messages of the transaction, by hash, where any must.
        conflicts: The content digests of stored messages that differ from this part's, by hash.
        position: The position of the commit; 0: there is none.
    """

    batch: RecordBatch
    source: Source
    shares: Sequence[Share] = ()
    token: int = field(default_factory=lambda: secrets.randbits(64) - (1 << 63))
    new: RecordBatch = field(default_factory=RecordBatch)
    batch_id: int = 0
    needed: Mapping[bytes, int] = field(default_factory=dict)
    conflicts: Mapping[bytes, bytes] = field(default_factory=dict)
    position: int = 0

    @property
    def place(self) -> Place:
        """The place of the commit."""
        return self.position, self.token % TOKEN_SPAN

    @property
    def listed_topics(self) -> tuple[bytes, ...] | None:
        """The topics of the new messages; None where there are more than `MAX_LISTED_TOPICS`."""
        return tuple(self.new.topics) if len(self.new.topics) <= MAX_LISTED_TOPICS else None


class AlreadyStoredError(Exception):
    """A batch of which every message is stored already."""


def join(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Return all messages of some batches as one."""
    if len(batches) == 1:
        return batches[0]
    joined = RecordBatch()
    for batch in batches:
        joined.extend(batch)
    return joined


def _sds_parameters(batch: RecordBatch) -> dict[str, bytes]:
    rows = batch.sds
    parents = [_parents(row) for row in rows]
    channel_keys = {channel: channel_key(channel) for channel in {row.channel_id for row in rows}}
    return {
        "s_key": arrays.uuids([sds_key(row.channel_id, row.message_id) for row in rows]),
        "s_channel_key": arrays.uuids([channel_keys[row.channel_id] for row in rows]),
        "s_ts": arrays.bigints([batch.timestamps[at] for at in batch.sds_index]),
        "s_hash": arrays.fixed_bytes([batch.hashes[at] for at in batch.sds_index], HASH_BYTES),
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


async def find_new(connection: Connection, parts: Sequence[CommitPart]) -> int:
    """Find the messages of each part that are not stored, and those that conflict.

    A message that several parts have is new in the first one.

    Returns:
        The number of messages that are not new.
    """
    seen: set[bytes] = set()
    for part in parts:
        batch = part.batch
        pairs = list(zip(batch.timestamps, batch.hashes, strict=True))
        stored = await values_at(connection, "content_digest", pairs)
        own = zip(batch.hashes, batch.content_digests, strict=True)
        part.conflicts = {
            digest: stored[digest]
            for digest, content in own
            if stored.get(digest, content) != content
        }
        seen |= stored.keys()
        part.new = batch.select([n for n, each in enumerate(batch.hashes) if each not in seen])
        seen.update(batch.hashes)
    return sum(len(part.batch) - len(part.new) for part in parts)


async def copy(connection: Connection, parts: Sequence[CommitPart]) -> None:
    """Insert the new messages of parts; the caller's transaction is open.

    Raises:
        psycopg.errors.UniqueViolation: one is stored already.
    """
    rows = await fetch_rows(connection, SQL.messages.next_batches, (len(parts),))
    for part, (number,) in zip(parts, rows, strict=True):
        part.batch_id = number
    batch = join([part.new for part in parts])
    batch_ids = [part.batch_id for part in parts for _ in part.new.hashes]
    ordered, ordered_ids = in_order(batch, batch_ids)
    await _copy(connection, SQL.messages.copy_messages, message_blocks(ordered, ordered_ids))
    await _copy(connection, SQL.messages.copy_hashes, (hash_block(ordered),))
    if batch.sds:
        await connection.execute(SQL.sds.insert_sds.format(stored=""), await lay_out_sds(batch))


async def insert_at_once(
    connection: Connection,
    parts: Sequence[CommitPart],
    notice: str,
    unread: dict[str, bytes] | None,
) -> None:
    """Insert parts, all of which are new, and commit; the caller has no transaction open.

    ``notice``: the payload of the notification. ``unread``: the parameters of the unread events
    that are added with them.

    Raises:
        AlreadyStoredError: all messages are stored already.
        psycopg.errors.NotNullViolation: some messages are stored already; nothing was written.
    """
    parameters = await _lay_out(parts) | (unread or {}) | {"notice": notice}
    statement = _at_once(with_sds="s_key" in parameters, with_unread=unread is not None)
    cursor = await connection.execute(statement, parameters, binary=True)
    rows = await cursor.fetchall()
    if not rows:
        raise AlreadyStoredError
    _note_positions(parts, rows)


@cache
def _at_once(*, with_sds: bool, with_unread: bool) -> str:
    parts = {"described": _DESCRIBED} if with_sds else {}
    parts |= {"tracked": _TRACKED} if with_unread else {}
    written = "".join(
        f", (select count(*) from {name}) as {name}_rows" for name in ("located", *parts)
    )
    return (
        SQL.messages.insert_messages
        + "".join(parts.values())
        + SQL.commits.insert_at_once.format(written=written)
    )


async def find_committed(connection: Connection, part: CommitPart) -> None:
    """Find what an earlier attempt has committed of a part, if it has."""
    rows = await fetch_rows(connection, SQL.commits.find_batch, (part.token,))
    if not rows:
        return
    ((part.position, part.batch_id),) = rows
    batch = part.batch
    given = (part.batch_id, min(batch.timestamps), max(batch.timestamps))
    stored = set(await fetch_rows(connection, SQL.messages.read_hashes_of_batch, given))
    part.new = batch.select([n for n, each in enumerate(batch.hashes) if (each,) in stored])


async def _lay_out(parts: Sequence[CommitPart]) -> dict[str, object]:
    batch = join([part.new for part in parts])
    sizes = [len(part.new) for part in parts]
    given = _commits(parts) | {
        "ts": arrays.bigints(batch.timestamps),
        "hash": arrays.fixed_bytes(batch.hashes, HASH_BYTES),
        "topic": arrays.uuids(batch.topic_keys),
        "content_digest": arrays.fixed_bytes(batch.content_digests, CONTENT_DIGEST_BYTES),
        "head": arrays.varied_bytes(batch.heads),
        "payload": arrays.varied_bytes(batch.payloads),
        "tail": arrays.varied_bytes(batch.tails),
        "part": arrays.bigints([n for n, size in enumerate(sizes, 1) for _ in range(size)]),
        "parts": len(sizes),
    }
    return given | await lay_out_sds(batch) if batch.sds else given


async def lay_out_sds(batch: RecordBatch) -> dict[str, bytes]:
    """Return the parameters of the rows of ``sds`` of a batch."""
    if sum(len(row.parents) for row in batch.sds) > MAX_INLINE_PARENTS:
        return await asyncio.to_thread(_sds_parameters, batch)
    return _sds_parameters(batch)


def _claims(batch: RecordBatch) -> bytes:
    return b"".join(
        sds_key(row.channel_id, row.message_id) + batch.timestamps[index].to_bytes(8)
        for row, index in zip(batch.sds, batch.sds_index, strict=True)
    )


async def assign_commit_position(
    connection: Connection, parts: Sequence[CommitPart], notice: str
) -> None:
    """Insert the commits of the parts that have something new, in commit order.

    The transaction must commit right after. ``notice``: the payload of its notification.
    """
    new = [part for part in parts if part.new.hashes]
    parameters = _commits(new) | {
        "notice": notice,
        "batch": arrays.bigints([part.batch_id for part in new]),
        "idle": f"{MAX_IDLE_IN_PLACE_MS}ms",
    }
    _note_positions(new, await fetch_rows(connection, SQL.commits.insert_commits, parameters))


def _commits(parts: Sequence[CommitPart]) -> dict[str, object]:
    """Return the parameters of the commits of parts."""
    new = [part.new for part in parts]
    topics = [part.listed_topics for part in parts]
    return {
        "commit_order": COMMIT_ORDER,
        "token": arrays.bigints([part.token for part in parts]),
        "given": arrays.bigints([len(each) for each in new]),
        "min_ts": arrays.bigints([min(each.timestamps) for each in new]),
        "max_ts": arrays.bigints([max(each.timestamps) for each in new]),
        "topics": arrays.texts(
            ["" if keys is None else _array_literal(map(bytes.hex, keys)) for keys in topics]
        ),
        "source": arrays.texts([part.source.value for part in parts]),
        "summary": arrays.varied_bytes([pack(each.timestamps, each.hashes) for each in new]),
        "claims": arrays.varied_bytes([_claims(each) for each in new]),
    }


def _note_positions(parts: Sequence[CommitPart], rows: Iterable[Iterable[int]]) -> None:
    """Note where the commits of parts are: rows of position, batch and token."""
    found = {token: (position, batch_id) for position, batch_id, token in rows}
    for part in parts:
        part.position, part.batch_id = found[part.token]


# Rows for COPY

HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
TRAILER: Final = b"\xff\xff"

_BLOCK_ROWS: Final = 500
_BEGIN: Final = struct.Struct(">hiqi32si16siqi16si")
"""A row of ``messages`` up to the length of its head: the number of columns, then each value after
its length."""

_HASH: Final = np.dtype(
    [("columns", ">i2"), ("key_bytes", ">i4"), ("key", ">i8"), ("ts_bytes", ">i4"), ("ts", ">i8")]
)
"""A row of ``hashes``."""


def in_order(batch: RecordBatch, batch_ids: Sequence[int]) -> tuple[RecordBatch, Sequence[int]]:
    """Return messages, and the ID of the batch of each, ascending by timestamp and hash."""
    keys = list(zip(batch.timestamps, batch.hashes, strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if order == list(range(len(keys))):
        return batch, batch_ids
    return batch.select(order), [batch_ids[place] for place in order]


def message_blocks(rows: RecordBatch, batch_ids: Sequence[int]) -> Iterator[bytes]:
    """Lay out rows of ``messages``, without header and trailer."""
    begin, length = _BEGIN.pack, struct.Struct(">i").pack
    columns = zip(
        *(rows.timestamps, rows.hashes, rows.topic_keys, batch_ids, rows.content_digests),
        *(rows.heads, rows.payloads, rows.tails),
        strict=True,
    )
    while some := list(islice(columns, _BLOCK_ROWS)):
        parts: list[bytes] = []
        for ts, digest, topic, batch_id, content, head, payload, tail in some:
            parts += (
                begin(8, 8, ts, 32, digest, 16, topic, 8, batch_id, 16, content, len(head)),
                *(head, length(len(payload)), payload, length(len(tail)), tail),
            )
        yield b"".join(parts)


def hash_block(rows: RecordBatch) -> bytes:
    """Lay out rows of ``hashes``, without header and trailer, ascending by the key.

    In any other order the index is entered at random: that costs Postgres an eighth more of all.
    """
    laid_out = np.empty(len(rows), _HASH)
    laid_out["columns"], laid_out["key_bytes"], laid_out["ts_bytes"] = 2, 8, 8
    keys = np.frombuffer(b"".join(rows.hashes), ">i8")[:: HASH_BYTES // HASH_KEY_BYTES]
    laid_out["key"], laid_out["ts"] = keys, rows.timestamps
    return laid_out[np.argsort(keys.astype(np.int64))].tobytes()


async def _copy(connection: Connection, statement: str, blocks: Iterable[bytes]) -> None:
    async with connection.cursor() as cursor, cursor.copy(statement) as copy:
        await copy.write(HEADER)
        for block in blocks:
            await copy.write(block)
        await copy.write(TRAILER)


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
    newest names). A topic that is named twice costs one insert that does nothing.
    """

    def __init__(self) -> None:
        self._known = BoundedDict[tuple[int, bytes], None](MAX_REMEMBERED_TOPICS)
        self._era: Hashable = None

    async def ensure(
        self,
        connection: Connection,
        batches: Iterable[RecordBatch],
        partitions: PartitionMap,
        era: Hashable = None,
    ) -> None:
        """Make sure that the topics of batches are named, which comes before the batches."""
        if self._era != era:
            self._known.clear()
            self._era = era
        rows: set[TopicRow] = set()
        for batch in batches:
            low = partitions.coarse_lower(min(batch.timestamps))
            if low == partitions.coarse_lower(max(batch.timestamps)):
                used = {(low, key) for key in batch.topics}
            else:
                lowers = map(partitions.coarse_lower, batch.timestamps)
                used = set(zip(lowers, batch.topic_keys, strict=True))
            unnamed = (each for each in used if each not in self._known)
            rows |= {(key, lower, *batch.topics[key]) for lower, key in unnamed}
        if rows:
            await insert_topics(connection, rows)
            if self._era == era:
                self._known.update(((lower, key), None) for key, lower, _, _ in rows)
