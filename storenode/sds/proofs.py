"""The IDs of messages, and those that prove their message: they can be recomputed from its fields.

An ID covers the channel, the sender, the clock, the causal history and the content, each after
its length. A sender's clock rises with every message, so two messages have one ID only if they
are the same message. Nodes and participants judge alike: an ID that covers all of these proves all
of them; one that is the SHA-256 of the content, as `@waku/sds` makes it, proves the content.
Filters, repair requests and hints are in no ID.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from storenode.sds.codec import Entry

ID_BYTES: Final = 64
"""The length of an ID that can be a proof: the hexadecimal digits of a SHA-256."""

_NAMED: Final = b"sds.v1"
_SIGNED: Final = b"sds.v1.signed"


def joined(parts: Iterable[bytes]) -> bytes:
    """Return parts one after the other, each behind its length as four bytes, big-endian."""
    return b"".join([len(part).to_bytes(4) + part for part in parts])


def message_digest(
    channel_id: bytes, sender_id: bytes, lamport: int, parents: Iterable[bytes], content: bytes
) -> str:
    """Return the ID that proves a message: 64 lower-case hexadecimal digits.

    IDs are UTF-8, ``parents`` those of the causal history.
    """
    parts = (_NAMED, channel_id, sender_id, b"%d" % lamport, *parents, b"", content)
    return sha256(joined(parts)).hexdigest()


def proves_content(message_id: str, content: bytes) -> bool:
    """Return True if an ID is the SHA-256 of the content.

    With the bytes that another's ID is made of as content, anybody would prove that ID: such
    content proves nothing.
    """
    if content.startswith(_DIGESTED):
        return False
    return message_id == sha256(content).hexdigest()


_DIGESTED: Final = joined([_NAMED])


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
