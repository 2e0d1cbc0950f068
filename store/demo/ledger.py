"""The record of what was said and published, against which everything else is compared."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field


def hash_of(pubsub_topic: str, payload: bytes, content_topic: str, timestamp_ns: int) -> bytes:
    """Return the hash of a message without ``meta`` (14/WAKU2-MESSAGE).

    It is computed here once more, and not by the room `message`, so that a fault there would show.
    """
    return hashlib.sha256(
        pubsub_topic.encode() + payload + content_topic.encode() + struct.pack(">q", timestamp_ns)
    ).digest()


@dataclass(slots=True)
class Ledger:
    """The hashes of all messages of a run, and the lines of each channel by ID.

    ``offered``: sent to a node to be stored. ``acknowledged``: a node answered that it holds it.
    ``asked``: IDs that participants asked each other for. ``answers``: published for that, by the
    sender or by another participant (SDS-Repair).
    """

    offered: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    said: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    answers: set[bytes] = field(default_factory=set)

    def say(self, channel_id: str, message_id: str, content: bytes) -> None:
        """Record a line of a channel."""
        self.said.setdefault(channel_id, {})[message_id] = content
