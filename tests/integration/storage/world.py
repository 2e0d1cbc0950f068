"""Messages for the tests of storage, and what is held of them as plain lists."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from reconcile.ids import SyncId
from store.domain.ports import TopicFilter
from store.messages.frames import presence
from store.messages.record import RecordBatch
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import ScanPage
from tests.support.admission import admit
from tests.unit.builders import entry

NOW = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()) * NS_PER_S
DAY = 86_400 * NS_PER_S
PUBSUBS = ("/waku/2/rs/1/0", "/waku/2/rs/1/7", "named")
CONTENTS = tuple(f"/app-{number % 2}/1/{number}/proto" for number in range(6))

Topic = tuple[str, str]
TOPICS: tuple[Topic, ...] = tuple((pubsub, content) for pubsub in PUBSUBS for content in CONTENTS)


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message as an oracle remembers it."""

    at: SyncId
    topic: Topic
    frame: bytes

    @property
    def hash(self) -> bytes:
        """The hash of the message."""
        return self.at[1]

    @property
    def presence(self) -> bytes:
        """The frame without data."""
        return presence(self.hash)


class World(list[KnownMessage]):
    """Messages that a failed test does not print."""

    def __repr__(self) -> str:
        return f"<{len(self)} messages>"


def batch_of(messages: Iterable[tuple[int, Topic, bytes]]) -> RecordBatch:
    """Lay out (timestamp, topic, payload) as a node would, whatever the age."""
    items = [
        entry(payload, pubsub=pubsub, content=content, timestamp=timestamp)
        for timestamp, (pubsub, content), payload in messages
    ]
    admission = admit(items, NOW, Policy(max_drift_ns=None, publisher=False))
    assert not admission.refusals, admission.refusals
    return admission.batch


def messages_of(batch: RecordBatch) -> list[KnownMessage]:
    """Return the messages of a batch, in its order."""
    return [
        KnownMessage((timestamp, digest), batch.topics[key], batch.frame(index))
        for index, (timestamp, digest, key) in enumerate(
            zip(batch.timestamps, batch.hashes, batch.topic_keys, strict=True)
        )
    ]


def in_order(stored: Iterable[KnownMessage]) -> list[KnownMessage]:
    """Return messages sorted by SyncID."""
    return sorted(stored, key=lambda message: message.at)


def matching(stored: Iterable[KnownMessage], wanted: TopicFilter) -> list[KnownMessage]:
    """Return those that a filter selects."""
    return [message for message in stored if wanted.matches(*message.topic)]


def random_batch(
    rng: random.Random,
    count: int,
    timestamps: Sequence[int],
    topics: Sequence[Topic] = TOPICS,
    size: int = 40,
) -> RecordBatch:
    """``count`` distinct messages with random payloads."""
    return batch_of(
        (rng.choice(timestamps), rng.choice(topics), rng.randbytes(size)) for _ in range(count)
    )


def as_query(frames: Iterable[bytes]) -> bytes:
    """Encode frames as the entries of a ``StoreQueryResponse`` (field 20)."""
    return b"".join([b"\xa2\x01" + frame[1:] for frame in frames])


def hashes_in(frames: bytes) -> list[bytes]:
    """Return the hashes of a page of frames (field 1)."""
    return [message.message_hash for message in ScanPage.FromString(frames).messages]
