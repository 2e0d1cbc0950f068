"""Checks of a stored message against its own columns and the rows that find it.

Pure: rows come in, faults come out. `store.db.check` reads the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from store.messages.record import FrameError, unframe
from store.messages.transfer import DecodedMessage
from storenode.message.hashing import content_digest, message_hash
from storenode.message.topics import topic_key
from storenode.sds.codec import channel_key, decode, sds_key

_LAMPORT_WRAP: Final = 1 << 64
_LAMPORT_SIGN: Final = 1 << 63


class RowFault(StrEnum):
    """A defect of a message or of the rows about it."""

    FRAME = "damaged frame"
    HASH = "wrong hash"
    CONTENT_DIGEST = "wrong content digest"
    TIMESTAMP = "wrong timestamp"
    TOPIC = "wrong topic"
    NO_HASH_ROW = "message without a row in hashes"
    NO_TOPIC_ROW = "message without a row in topics"
    WRONG_TOPIC_ROW = "row in topics has other names"
    NO_SDS_ROW = "SDS message without a row in sds"
    WRONG_SDS_ROW = "row in sds differs from its message"
    LOST_MESSAGE = "row in hashes without a message"
    LOST_SDS_MESSAGE = "row in sds without a message"
    STRANGE_SDS_ROW = "row in sds about a message that is none of SDS"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A row of ``messages``: timestamp in ns, 32-byte hash, 16-byte topic key and content digest.

    The other columns are the frame, from behind the hash.
    """

    ts: int
    hash: bytes
    topic: bytes
    content_digest: bytes
    head: bytes
    payload: bytes
    tail: bytes


SdsRow = tuple[Any, ...]
"""A row of ``sds`` behind (ts, hash): keys as bytes, arrays as tuples, Lamport time as two's
complement."""


def audit(message: StoredMessage) -> tuple[Sequence[RowFault], tuple[str, str] | None]:
    """Check a row of ``messages`` against itself; hash and digest are computed again.

    Returns:
        Its faults, and its topics; None when the frame is damaged.
    """
    try:
        item = unframe(message.head, message.payload, message.tail)
    except FrameError:
        return (RowFault.FRAME,), None
    return tuple(_faults(message, item)), (item.pubsub_topic, item.content_topic)


def _faults(message: StoredMessage, item: DecodedMessage) -> Iterator[RowFault]:
    if item.timestamp != message.ts:
        yield RowFault.TIMESTAMP
    if topic_key(item.pubsub_topic, item.content_topic) != message.topic:
        yield RowFault.TOPIC
    named = (item.pubsub_topic, item.payload, item.content_topic, item.meta)
    if not item.timestamp or message_hash(*named, item.timestamp) != message.hash:
        yield RowFault.HASH
    if content_digest(*named, item.timestamp or 0) != message.content_digest:
        yield RowFault.CONTENT_DIGEST


def sds_row(payload: bytes) -> SdsRow | None:
    """Return the row that a payload must have; None when it is no readable SDS message."""
    metadata = decode(payload)
    if metadata is None:
        return None
    channel, lamport = metadata.channel_id, metadata.lamport
    if lamport is not None and lamport >= _LAMPORT_SIGN:
        lamport -= _LAMPORT_WRAP
    parents = [parent for parent, _ in metadata.parents]
    return (
        sds_key(channel, metadata.message_id),
        channel_key(channel),
        channel,
        metadata.message_id,
        metadata.sender_id,
        lamport,
        tuple(sds_key(channel, parent) for parent in parents),
        tuple(parents),
        tuple(hint for _, hint in metadata.parents),
        metadata.proven,
    )
