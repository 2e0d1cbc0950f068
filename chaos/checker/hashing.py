"""The hash of a message, and a fingerprint of all of its fields."""

from __future__ import annotations

import hashlib

from storenode.wire.waku.message.v1.message_pb2 import WakuMessage


def message_hash(message: WakuMessage, pubsub_topic: str) -> bytes:
    """Return the 32-byte hash of a message (14/WAKU2-MESSAGE, deterministic message hashing)."""
    digest = hashlib.sha256(pubsub_topic.encode())
    digest.update(message.payload)
    digest.update(message.content_topic.encode())
    digest.update(message.meta)
    if message.HasField("timestamp"):
        digest.update(message.timestamp.to_bytes(8, "big", signed=True))
    return digest.digest()


def fingerprint(message: WakuMessage, pubsub_topic: str) -> bytes:
    """Return 16 bytes that differ when any field differs, or is set on one side only."""
    fields = (
        pubsub_topic,
        message.payload,
        message.content_topic,
        message.version if message.HasField("version") else None,
        message.timestamp if message.HasField("timestamp") else None,
        message.meta if message.HasField("meta") else None,
        message.rate_limit_proof if message.HasField("rate_limit_proof") else None,
        message.ephemeral if message.HasField("ephemeral") else None,
    )
    return hashlib.sha256(repr(fields).encode()).digest()[:16]
