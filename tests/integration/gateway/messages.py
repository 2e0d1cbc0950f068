"""The messages behind the gateway of these tests, and a naive model of what a query finds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storenode.client.message import Message
from tests.support.gateway import GENEROUS

CLUSTER: Final = 1
SHARD: Final = 2
PUBSUB: Final = f"/waku/2/rs/{CLUSTER}/{SHARD}"
NETWORK: Final = (*GENEROUS, "--cluster", str(CLUSTER), "--shard", str(SHARD))
"""Options of a gateway of this network whose clients are all at one address."""
TOPICS: Final = tuple(f"/gateway/1/topic-{number}/proto" for number in range(4))
NS_PER_MS: Final = 1_000_000
START_MS: Final = (int(time.time()) - 3 * 86_400) * 1_000
SPAN_MS: Final = 20 * 3_600 * 1_000
"""Less than a day: js-waku does not ask for the rest of a longer range."""
NODE_PAGE: Final = 20
"""Messages of a page whose size was not asked for."""

_OTHER_SHARDS: Final = (f"/waku/2/rs/{CLUSTER}/{SHARD + 1}", "/waku/2/rs/7/2")
_COUNT: Final = 700
_LARGE_BYTES: Final = 100 * 1024


def made() -> list[Message]:
    """Return messages of several topics and shards, many with the same timestamp."""
    rng = random.Random(17)
    times = [(START_MS + rng.randrange(SPAN_MS)) * NS_PER_MS for _ in range(_COUNT // 3)]
    return [
        Message(
            _payload(rng, number),
            rng.choice(TOPICS),
            PUBSUB if rng.random() < 0.9 else rng.choice(_OTHER_SHARDS),
            timestamp=rng.choice(times) + rng.choice((0, 0, 1, 255)),
        )
        for number in range(_COUNT)
    ]


def _payload(rng: random.Random, number: int) -> bytes:
    if number % 100 == 1:
        return b""
    # Some are so large that a page takes many frames of a multiplexer.
    return b"%d " % number + bytes(_LARGE_BYTES if number % 300 == 0 else rng.randrange(200))


@dataclass(frozen=True, slots=True)
class Query:
    """A query of an application of js-waku: times in milliseconds, ``most`` in pages."""

    topics: tuple[str, ...]
    start: int | None
    end: int | None
    hashes: tuple[str, ...] | None
    forward: bool
    limit: int | None
    cursor: str | None
    most: int


def drawn(rng: random.Random, messages: Sequence[Message]) -> Query:
    """Draw a random query that an application may send."""
    start = end = hashes = cursor = None
    topics = tuple(rng.sample(TOPICS, rng.randrange(1, len(TOPICS) + 1)))
    if rng.random() < 0.25:
        known = [each.hash.hex() for each in rng.sample(messages, rng.randrange(1, 60))]
        hashes = (*known, *(rng.randbytes(32).hex() for _ in range(rng.randrange(3))))
        # js-waku decodes what it has a decoder for.
        topics = TOPICS
    elif rng.random() < 0.7:
        start, end = sorted(START_MS + rng.randrange(SPAN_MS) for _ in range(2))
        start, end = rng.choice(((start, end), (start, None), (None, end)))
    if rng.random() < 0.3:
        within = [each for each in messages if each.pubsub_topic == PUBSUB]
        cursor = rng.choice(within).hash.hex()
    limit = rng.choice((None, 1, 7, 20, rng.randrange(1, 101), 100))
    forward = rng.random() < 0.5
    return Query(topics, start, end, hashes, forward, limit, cursor, rng.randrange(1, 5))


def expected(query: Query, messages: Sequence[Message]) -> list[list[str]]:
    """Compute the pages of a query: the hashes of each page's messages in ascending order."""
    start_ns, end_ns = _as_js_waku(query.start), _as_js_waku(query.end)
    found = sorted(
        (each.timestamp, each.hash.hex())
        for each in messages
        if each.pubsub_topic == PUBSUB
        and (
            each.hash.hex() in query.hashes if query.hashes else each.content_topic in query.topics
        )
        and (start_ns is None or each.timestamp >= start_ns)
        and (end_ns is None or each.timestamp <= end_ns)
    )
    if query.cursor is not None:
        (at,) = ((m.timestamp, m.hash.hex()) for m in messages if m.hash.hex() == query.cursor)
        found = [each for each in found if (each > at if query.forward else each < at)]
    size = query.limit or NODE_PAGE
    pages: list[list[str]] = []
    while found and len(pages) < query.most:
        page, found = (
            (found[:size], found[size:]) if query.forward else (found[-size:], found[:-size])
        )
        pages.append([each for _, each in page])
    return pages


def _as_js_waku(time_ms: int | None) -> int | None:
    """Convert milliseconds to nanoseconds as js-waku does: by a product of 64-bit floats."""
    return None if time_ms is None else int(float(time_ms) * float(NS_PER_MS))


RIGHTS: Final = {
    "gateway": ("read", "publish", "follow", "backfill"),
    "writer": ("read", "publish", "backfill"),
    "timid": ("read", "publish", "follow"),
}
