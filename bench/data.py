"""The same data for every benchmark: messages with 200-byte payloads on 50 content topics."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storenode.message.hashing import message_hash
from storenode.wire.storenode.v1.store_pb2 import PublishRequest

PUBSUB_TOPIC = "/waku/2/rs/1/0"
TOPICS = 50
PAYLOAD_BYTES = 200
STEP_NS = 20_000
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Row:
    """A message before it is encoded."""

    timestamp: int
    content_topic: str
    payload: bytes


def content_topic(number: int) -> str:
    """Name of a topic."""
    return f"/bench/1/topic-{number % TOPICS:02d}/proto"


def rows(
    count: int, *, seed: int = 1, start_ns: int | None = None, step_ns: int = STEP_NS
) -> list[Row]:
    """Generate messages that end about now, in ascending order, with random payloads."""
    first = time.time_ns() - count * step_ns if start_ns is None else start_ns
    return _rows_at(range(first, first + count * step_ns, step_ns), random.Random(seed))


def scattered(count: int, start_ns: int, end_ns: int, *, seed: int | None = None) -> list[Row]:
    """Generate messages at random times, in ascending order; without a seed, new ones each time."""
    rng = random.Random(seed)
    return _rows_at(sorted(rng.randrange(start_ns, end_ns) for _ in range(count)), rng)


def _rows_at(times_ns: Sequence[int], rng: random.Random) -> list[Row]:
    return [
        Row(time_ns, content_topic(n), rng.randbytes(PAYLOAD_BYTES))
        for n, time_ns in enumerate(times_ns)
    ]


def publish_request(batch: list[Row]) -> PublishRequest:
    """Build the request of a batch, as a client does."""
    request = PublishRequest()
    add = request.messages.add
    for row in batch:
        item = add()
        item.pubsub_topic = PUBSUB_TOPIC
        message = item.message
        message.payload = row.payload
        message.content_topic = row.content_topic
        message.timestamp = row.timestamp
    return request


def batches(data: list[Row], size: int = BATCH) -> Iterator[list[Row]]:
    """Split rows."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def hashes(data: list[Row]) -> list[bytes]:
    """Hash of every row."""
    return [
        message_hash(PUBSUB_TOPIC, row.payload, row.content_topic, None, row.timestamp)
        for row in data
    ]
