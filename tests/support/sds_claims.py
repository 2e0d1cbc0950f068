"""A genuine SDS message, and others that claim its ID."""

from __future__ import annotations

from storenode.sds.codec import SdsMessage, encode_message
from storenode.sds.proofs import content_id

SENDER = "alice"
CLOCK = 7


def genuine_id(channel_id: str, content: bytes) -> str:
    """Return the ID that proves Alice's message of a content."""
    return content_id(channel_id, SENDER, CLOCK, (), content)


def claiming(channel_id: str, message_id: str, content: bytes) -> bytes:
    """Return a message of Alice, under whatever ID."""
    return encode_message(SdsMessage(channel_id, message_id, SENDER, CLOCK, content=content))


def genuine(channel_id: str, content: bytes) -> bytes:
    """Return Alice's message with a content."""
    return claiming(channel_id, genuine_id(channel_id, content), content)
