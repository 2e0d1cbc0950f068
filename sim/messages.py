"""Messages as clients make them, in their encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from storenode.message.hashing import message_hash
from storenode.message.varint import delimited, varint

_EPHEMERAL: Final = b"\xf8\x01\x01"


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its encoding as ``WakuMessageAndTopic``, and what it is known by.

    ``size_bytes``: of the encoded ``WakuMessage`` in it, which is what limits are about.
    """

    timestamp_ns: int
    digest: bytes
    encoded: bytes
    size_bytes: int = 0
    ephemeral: bool = False


def message_of(
    pubsub: str, content: str, payload: bytes, timestamp_ns: int, *, ephemeral: bool = False
) -> Message:
    """A message with these fields (14/WAKU2-MESSAGE, "Wire format"), in canonical order."""
    body = delimited(b"\x0a", payload) if payload else b""
    body += delimited(b"\x12", content.encode())
    body += b"\x50" + varint(2 * timestamp_ns)
    if ephemeral:
        body += _EPHEMERAL
    encoded = delimited(b"\x0a", body) + delimited(b"\x12", pubsub.encode())
    digest = message_hash(pubsub, payload, content, b"", timestamp_ns)
    return Message(timestamp_ns, digest, encoded, len(body), ephemeral)
