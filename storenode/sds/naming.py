"""IDs of messages, made so that equal content never collides.

An ID covers the channel, the sender, the clock, the causal history and the content, each after
its length. A sender's clock rises with every message, so two messages have one ID only if they
are the same message.
"""

from collections.abc import Iterable
from hashlib import sha256

from storenode.sds.codec import Entry
from storenode.sds.proofs import joined, message_digest

_SIGNED = b"sds.v1.signed"


def content_id(
    channel_id: str, sender_id: str, lamport: int, history: Iterable[Entry], content: bytes
) -> str:
    """Return the ID of a message with content: 64 lower-case hexadecimal digits."""
    parents = [entry.message_id.encode() for entry in history]
    return message_digest(channel_id.encode(), sender_id.encode(), lamport, parents, content)


def canonical(
    channel_id: str, sender_id: str, lamport: int, history: Iterable[Entry], content: bytes
) -> bytes:
    """Return the bytes that an application signs: what a `content_id` covers, renamed.

    Each part after its length as four bytes, big-endian: ``sds.v1.signed``, channel, sender, the
    Lamport timestamp in decimal digits, the IDs of the causal history, nothing, the content.
    """
    parts = [_SIGNED, channel_id.encode(), sender_id.encode(), str(lamport).encode()]
    parts += [entry.message_id.encode() for entry in history]
    return joined([*parts, b"", content])


def sync_id(channel_id: str, sender_id: str, lamport: int) -> str:
    """Return the ID of a sync message, which need not be unique."""
    parts = [b"sds.v1.sync", channel_id.encode(), sender_id.encode(), str(lamport).encode()]
    return f"sync-{_digest(parts)[:24]}"


def ephemeral_id(channel_id: str, sender_id: str, number: int, content: bytes) -> str:
    """Return the ID of an ephemeral message, the ``number``-th of a participant."""
    parts = [b"sds.v1.ephemeral", channel_id.encode(), sender_id.encode(), str(number).encode()]
    return _digest([*parts, content])


def _digest(parts: list[bytes]) -> str:
    return sha256(joined(parts)).hexdigest()
