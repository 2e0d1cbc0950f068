"""What was said and published, as those know who did it: the measure that all else is held to."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storenode.sds.aio.transport import Route


def hash_of(pubsub_topic: str, payload: bytes, content_topic: str, timestamp_ns: int) -> bytes:
    """The hash of a message without ``meta`` (14/WAKU2-MESSAGE, "Deterministic message hashing").

    It is computed here once more, and not by the room `message`, so that a fault there would show.
    """
    return hashlib.sha256(
        pubsub_topic.encode() + payload + content_topic.encode() + struct.pack(">q", timestamp_ns)
    ).digest()


@dataclass(slots=True)
class Ledger:
    """All messages of a run, by hash; and all lines of each channel, by ID.

    ``offered``: sent to a node, whatever became of it. ``acknowledged``: a node said that it holds
    it. ``asked``: IDs of messages that participants asked each other for; ``answers``: what was
    published again for that (SDS-Repair).
    """

    offered: set[bytes] = field(default_factory=set)
    acknowledged: set[bytes] = field(default_factory=set)
    said: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    answers: set[bytes] = field(default_factory=set)

    def say(self, channel_id: str, message_id: str, content: bytes) -> None:
        """Somebody said something in a channel."""
        self.said.setdefault(channel_id, {})[message_id] = content

    def offer(self, route: Route, payload: bytes, timestamp_ns: int) -> bytes:
        """Something is sent to a node; its hash."""
        digest = hash_of(route.pubsub_topic, payload, route.content_topic, timestamp_ns)
        self.offered.add(digest)
        return digest
