"""The hash that names a message (14/WAKU2-MESSAGE), and the digest that determines its content.

The Waku hash joins its fields without their lengths, so two messages whose fields end elsewhere
have one hash: payload ``ab`` on content topic ``/c``, and payload ``a`` on content topic ``b/c``.
The content digest puts a length before each field, so that no two contents share what is hashed.
"""

import struct
from collections.abc import Iterable
from hashlib import sha256

from storenode.message.limits import CONTENT_DIGEST_BYTES, MAX_TIMESTAMP_NS

pack_timestamp = struct.Struct(">q").pack
"""A timestamp as the hash takes it: 8 bytes, big-endian, two's complement."""

pack_length = struct.Struct(">I").pack
"""The length of a field as the content digest takes it: 4 bytes, big-endian."""


def message_hash(
    pubsub_topic: str | bytes,
    payload: bytes,
    content_topic: str | bytes,
    meta: bytes | None,
    timestamp: int,
) -> bytes:
    """Hash one message into 32 bytes.

    SHA-256 over pubsub topic, payload, content topic, ``meta`` and timestamp (nanoseconds), one
    after the other without separators; an absent ``meta`` adds nothing. Source: 14/WAKU2-MESSAGE,
    "Deterministic message hashing".

    Raises:
        ValueError: the timestamp is 0, where implementations disagree on the hash, or does not
            fit a ``sint64``.
    """
    if timestamp == 0 or not -MAX_TIMESTAMP_NS - 1 <= timestamp <= MAX_TIMESTAMP_NS:
        raise ValueError(
            f"a message with timestamp {timestamp} has no hash: set a timestamp in nanoseconds"
        )
    stamp = pack_timestamp(timestamp)
    parts = (_utf8(pubsub_topic), payload, _utf8(content_topic), meta or b"", stamp)
    return message_hashes((parts,))[0]


def message_hashes(messages: Iterable[tuple[bytes, ...]]) -> list[bytes]:
    """Hash messages, each given as the parts that follow one another (see `message_hash`)."""
    join = b"".join
    return [sha256(join(parts)).digest() for parts in messages]


def content_digest(
    pubsub_topic: str | bytes,
    payload: bytes,
    content_topic: str | bytes,
    meta: bytes | None,
    timestamp: int,
) -> bytes:
    """Compute the digest, 16 bytes, that determines the content of one message.

    The first 128 bits of SHA-256 over pubsub topic, payload, content topic and ``meta``, each after
    its length in four bytes big-endian, and the timestamp (nanoseconds, eight bytes big-endian). An
    absent ``meta`` and an empty one are the same, as they are to the Waku hash. Version and
    rate_limit_proof do not belong to it: the Waku hash does not cover them, no one signs them, they
    differ by the path of a message, and if they counted, a relay could make a conflict for any
    message by flipping one of their bits.

    Decision 24 in ``docs/decisions`` computes why 128 bits are enough.
    """
    fields = (_utf8(pubsub_topic), payload, _utf8(content_topic), meta or b"")
    framed = b"".join(map(length_framed, fields))
    return sha256(framed + pack_timestamp(timestamp)).digest()[:CONTENT_DIGEST_BYTES]


def content_digests(messages: Iterable[tuple[bytes, ...]]) -> list[bytes]:
    """Compute the content digests of messages, each given as the parts that follow one another.

    Those are the framed pubsub topic, the packed length of the payload, the payload, all framed
    fields after it (see `framed_after_payload`), and the packed timestamp.
    """
    join, size = b"".join, CONTENT_DIGEST_BYTES
    return [sha256(join(parts)).digest()[:size] for parts in messages]


def framed_after_payload(content_topic: bytes, meta: bytes = b"") -> bytes:
    """Frame the fields of a content digest between the payload and the timestamp."""
    return length_framed(content_topic) + length_framed(meta)


def length_framed(field: bytes) -> bytes:
    """Return a field after its length in four bytes big-endian."""
    return pack_length(len(field)) + field


def _utf8(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
