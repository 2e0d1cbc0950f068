"""Sets of IDs of every shape, and spans over them, for the tests of views."""

import hashlib
import random
from collections.abc import Callable
from itertools import pairwise

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.view import Spans

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BASE = 20_000 * DAY
"""Midnight of a day in 2024."""

NO_HASH = bytes(32)


def hash_of(rng: random.Random) -> bytes:
    """Return any hash."""
    return hashlib.sha256(rng.randbytes(8)).digest()


def _spread(rng: random.Random, count: int) -> list[SyncId]:
    return [(BASE + rng.randrange(400 * DAY), hash_of(rng)) for _ in range(count)]


def _days(rng: random.Random, count: int) -> list[SyncId]:
    return [(BASE + rng.randrange(3 * DAY), hash_of(rng)) for _ in range(count)]


def _minutes(rng: random.Random, count: int) -> list[SyncId]:
    return [(BASE + rng.randrange(3 * MINUTE), hash_of(rng)) for _ in range(count)]


def _seconds(rng: random.Random, count: int) -> list[SyncId]:
    return [(BASE + rng.randrange(90) * 10**9, hash_of(rng)) for _ in range(count)]


def _one_nanosecond(rng: random.Random, count: int) -> list[SyncId]:
    return [(BASE + 5, hash_of(rng)) for _ in range(count)]


def _alike(rng: random.Random, count: int) -> list[SyncId]:
    """Return IDs of one nanosecond whose hashes were made to begin alike."""
    return [(BASE + 5, bytes(30) + number.to_bytes(2, "big")) for number in range(count)] + [
        (BASE + 5, b"\1" * 20 + rng.randbytes(12)) for _ in range(count // 4)
    ]


def _on_edges(rng: random.Random, count: int) -> list[SyncId]:
    edges = [BASE + DAY, BASE + HOUR, BASE + MINUTE, BASE, BASE + DAY - MINUTE]
    return [(rng.choice(edges) + rng.choice((-1, 0, 1)), hash_of(rng)) for _ in range(count)]


def _clustered(rng: random.Random, count: int) -> list[SyncId]:
    crowd = [(BASE + 7 * HOUR + rng.randrange(10**9), hash_of(rng)) for _ in range(count)]
    return crowd + _spread(rng, max(1, count // 8))


def _at_both_ends(rng: random.Random, count: int) -> list[SyncId]:
    first = [(rng.randrange(10), hash_of(rng)) for _ in range(count)]
    return first + [(2**63 - 1 - rng.randrange(10**10), hash_of(rng)) for _ in range(count)]


WORLDS: dict[str, Callable[[random.Random, int], list[SyncId]]] = {
    "spread": _spread,
    "days": _days,
    "minutes": _minutes,
    "seconds": _seconds,
    "one nanosecond": _one_nanosecond,
    "alike": _alike,
    "on edges": _on_edges,
    "clustered": _clustered,
    "at both ends": _at_both_ends,
}


def chunked(ids: list[SyncId], chunk: int) -> IndexView:
    """Return a view of many chunks, with a tail."""
    index = Index(min_chunk_ids=chunk)
    half = len(ids) // 2
    index.load(SyncIds.of(ids[:half]))
    for start in range(half, len(ids), 50):
        index.insert(SyncIds.of(ids[start : start + 50]))
    return index.view()


def random_bound(rng: random.Random, ids: list[SyncId]) -> SyncId:
    """Return a bound: an ID, one beside an ID, an edge of a bucket near an ID, or anything."""
    timestamp, hash_ = rng.choice(ids) if ids else (BASE, NO_HASH)
    kind = rng.randrange(6)
    if kind == 0:
        return timestamp, hash_
    if kind == 1:
        return timestamp, hash_[: rng.randrange(33)].ljust(32, b"\0")
    if kind == 2:
        length = rng.choice((MINUTE, HOUR, DAY))
        edge = timestamp - timestamp % length + rng.choice((0, 0, length))
        return min(max(edge + rng.choice((-1, 0, 0, 1)), 0), 2**63 - 1), NO_HASH
    if kind == 3:
        return min(max(timestamp + rng.randrange(-DAY, DAY), 0), 2**63 - 1), NO_HASH
    if kind == 4:
        return timestamp, hash_of(rng)
    return rng.choice((LOWEST, END))


def random_spans(rng: random.Random, ids: list[SyncId], count: int) -> Spans:
    """Return about ``count`` spans, of which some touch."""
    bounds = sorted({random_bound(rng, ids) for _ in range(count + 1)})
    pairs = [(lower, upper) for lower, upper in pairwise(bounds) if rng.random() < 0.8]
    return Spans.of(pairs)
