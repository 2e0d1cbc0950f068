"""The deterministic hash that names a message (14/WAKU2-MESSAGE)."""

import struct
from collections.abc import Iterable
from hashlib import sha256

from storenode.message.limits import MAX_TIMESTAMP_NS

pack_timestamp = struct.Struct(">q").pack
"""A timestamp as the hash takes it: 8 bytes, big-endian, two's complement."""


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


def _utf8(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
