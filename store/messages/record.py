"""Messages as the node keeps them: columns of a batch, and the frame of each message.

A *frame* is what a response carries for one message: field 1 (tag, length, body) holding a
``waku.store.v3.WakuMessageKeyValue``. It is kept in three parts::

    head                                                payload   tail
    0A len( 0A 20 hash  12 len( 0A len                  ...       content topic ... ) 1A pubsub )

so that the payload can be read on its own, and a response is spliced together from stored bytes.
Known fields are in ascending order with their presence as published, but for the payload, which is
always present: nwaku refuses a message without it. What a head has up to the end of the hash
follows from the hash and the length of the rest: batches and rows have heads without it, of 4 to 8
bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from store.messages.transfer import HASH_FIELD_BYTES
from storenode.message.limits import (
    CONTENT_DIGEST_BYTES,
    HASH_BYTES,
    MAX_CACHED_LAYOUTS,
    TOPIC_KEY_BYTES,
)
from storenode.message.varint import delimited, varint
from storenode.sds.codec import SdsMetadata, decode

_TAG_MESSAGE = b"\x12"
_TAG_PUBSUB_TOPIC = b"\x1a"
_MAX_BEGINNING_BYTES = 4 + HASH_FIELD_BYTES
"""The size limit of the beginning of a frame of less than 2 MiB, up to the end of the hash."""

COLUMNS = ("timestamps", "hashes", "topic_keys", "content_digests", "heads", "payloads", "tails")
"""The columns of `RecordBatch` that have an entry for each message."""


@dataclass(slots=True)
class RecordBatch:
    """Admitted messages as columns; entry *i* of each is about the same message.

    ``timestamps`` in nanoseconds, ``hashes`` 32 bytes, ``topic_keys`` 16 bytes, ``content_digests``
    16 bytes (`storenode.message.hashing.content_digest`); ``heads`` have what follows the hash, and
    join with ``payloads`` and ``tails`` to frames. ``topics`` names each key
    of the batch as (pubsub topic, content topic). ``sds[j]`` describes message ``sds_index[j]``;
    messages whose payload is not a readable SDS message are not listed.
    """

    timestamps: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    topic_keys: list[bytes] = field(default_factory=list)
    content_digests: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)
    topics: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    sds_index: list[int] = field(default_factory=list)
    sds: list[SdsMetadata] = field(default_factory=list)

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.hashes)

    @property
    def frame_bytes(self) -> int:
        """The size of all frames together, or a few bytes more."""
        columns = (self.heads, self.payloads, self.tails)
        return sum(sum(map(len, each)) for each in columns) + _MAX_BEGINNING_BYTES * len(self)

    def frame(self, index: int) -> bytes:
        """Join the frame of message ``index``."""
        rest = self.heads[index] + self.payloads[index] + self.tails[index]
        return frame_prefix(len(rest)) + self.hashes[index] + rest

    def extend(self, other: "RecordBatch") -> None:
        """Append another batch; a message of both is in the result twice."""
        offset = len(self)
        for column in COLUMNS:
            getattr(self, column).extend(getattr(other, column))
        self.topics |= other.topics
        self.sds_index += [offset + index for index in other.sds_index]
        self.sds += other.sds

    def select(self, indexes: Sequence[int]) -> "RecordBatch":
        """Return the messages at ascending places as a batch."""
        part = RecordBatch()
        for column in COLUMNS:
            values = getattr(self, column)
            setattr(part, column, [values[index] for index in indexes])
        part.topics = {key: self.topics[key] for key in set(part.topic_keys)}
        places = {index: place for place, index in enumerate(indexes)}
        for index, metadata in zip(self.sds_index, self.sds, strict=True):
            if index in places:
                part.sds_index.append(places[index])
                part.sds.append(metadata)
        return part

    def check(self) -> None:
        """Verify the invariants of the columns.

        Raises:
            ValueError: the columns contradict each other; the text says which.
        """
        if any(len(getattr(self, column)) != len(self.hashes) for column in COLUMNS):
            raise ValueError("the columns of the batch differ in length")
        if any(len(digest) != HASH_BYTES for digest in self.hashes):
            raise ValueError(f"a hash of the batch is not {HASH_BYTES} bytes")
        if any(len(digest) != CONTENT_DIGEST_BYTES for digest in self.content_digests):
            raise ValueError(f"a content digest of the batch is not {CONTENT_DIGEST_BYTES} bytes")
        if len(set(self.hashes)) != len(self.hashes):
            raise ValueError("a hash occurs twice in the batch")
        if set(self.topic_keys) != set(self.topics):
            raise ValueError("the topic keys of the batch are not those of its topics")
        if any(len(key) != TOPIC_KEY_BYTES for key in self.topics):
            raise ValueError(f"a topic key of the batch is not {TOPIC_KEY_BYTES} bytes")
        index = self.sds_index
        if len(index) != len(self.sds):
            raise ValueError("the SDS columns of the batch differ in length")
        if sorted(set(index)) != index or (index and not 0 <= index[0] <= index[-1] < len(self)):
            raise ValueError("the SDS positions of the batch are not ascending or not in it")


def index_batch(batch: RecordBatch, first: int = 0) -> None:
    """Fill the SDS columns of a batch from its payloads, from message ``first`` on."""
    if not first:
        batch.sds_index, batch.sds = [], []
    for position, payload in enumerate(batch.payloads[first:], first):
        metadata = decode(payload)
        if metadata is not None:
            batch.sds_index.append(position)
            batch.sds.append(metadata)


def pubsub_suffix(pubsub_topic: bytes) -> bytes:
    """Encode the field of a frame that follows the message: the pubsub topic."""
    return delimited(_TAG_PUBSUB_TOPIC, pubsub_topic)


def split_frame(body: bytes, payload_bytes: int, suffix: bytes) -> tuple[bytes, bytes]:
    """Lay the frame of a message around its payload: (head, tail), the head without the hash.

    ``body`` is the canonical encoding of the WakuMessage, ``payload_bytes`` the size of its
    payload, ``suffix`` comes from `pubsub_suffix`. Cost: one table lookup and two copies.
    """
    head, tail_start = frame_layout(payload_bytes, len(body))
    return head, body[tail_start:] + suffix


@lru_cache(maxsize=MAX_CACHED_LAYOUTS)
def frame_prefix(rest_bytes: int) -> bytes:
    """Return a frame up to its hash, after which ``rest_bytes`` follow."""
    return b"\x0a%b\x0a%b" % (varint(HASH_FIELD_BYTES + rest_bytes), varint(HASH_BYTES))


@lru_cache(maxsize=MAX_CACHED_LAYOUTS)
def frame_layout(payload_bytes: int, body_bytes: int) -> tuple[bytes, int]:
    """Return a head without the hash, and where the tail begins in the encoded WakuMessage.

    The sizes are those of the payload and of the WakuMessage as protobuf encodes it, which is
    without a payload field where the payload is empty.
    """
    prefix = b"\x0a" + varint(payload_bytes)
    if not payload_bytes:
        return _TAG_MESSAGE + varint(len(prefix) + body_bytes) + prefix, 0
    return _TAG_MESSAGE + varint(body_bytes) + prefix, len(prefix) + payload_bytes
