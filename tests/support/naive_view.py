"""Views over a sorted list: slow, and plain enough to see that they are right.

The oracle of every other view. It splits exactly at the wanted places, with as many further
bounds as it takes to reach them; other views may choose other bounds.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from reconcile.ids import HASH_WORDS, SyncId, SyncIds
from reconcile.summaries.buckets import TimeBuckets as Buckets
from reconcile.view import (
    Items,
    Loaded,
    Loading,
    Measured,
    NeedBuckets,
    NeedHashes,
    NeedIds,
    Needs,
    Probed,
    SpanParts,
    Spans,
    proceed,
)
from tests.support.spec_peer import between, xor

NO_HASH = bytes(32)


def steps_to(previous: SyncId, target: SyncId) -> list[SyncId]:
    """Return bounds that lead there, each of which can follow the one before it."""
    steps = []
    while previous != target:
        previous = between(previous, target)
        steps.append(previous)
    return steps


class NaiveView:
    """A fixed set of IDs.

    Attributes:
        ids: all of them, ascending.
    """

    def __init__(self, ids: Iterable[SyncId]) -> None:
        self.ids = sorted(set(ids))

    def within(self, lower: SyncId, upper: SyncId) -> list[SyncId]:
        """Return the IDs from one bound to, but without, another."""
        return self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]

    @property
    def memory(self) -> None:
        """The absent index: compiled code cannot read a list."""

    def measure(self, spans: Spans) -> Loading[Measured]:
        yield from ()
        return self.measured(spans.pairs())

    def split(self, spans: Spans, wanted: np.ndarray) -> Loading[SpanParts]:
        yield from ()
        return self._parts(spans, wanted.tolist())

    def items(self, spans: Spans) -> Loading[Items]:
        yield from ()
        found = [self.within(*span) for span in spans.pairs()]
        offsets = np.cumsum([0, *map(len, found)], dtype=np.int64)
        return Items(offsets, SyncIds.of(item for ids in found for item in ids))

    def probe(self, spans: Spans, hashes: np.ndarray) -> Loading[Probed]:
        yield from ()
        found: list[SyncId] = []
        hit: list[bool] = []
        for span, words in zip(spans.pairs(), hashes, strict=True):
            matching = [item for item in self.within(*span) if item[1] == words.tobytes()]
            hit.append(len(matching) == 1)
            found.append(matching[0] if hit[-1] else (0, NO_HASH))
        return Probed(SyncIds.of(found), np.array(hit, np.bool_))

    def measured(self, spans: list[tuple[SyncId, SyncId]]) -> Measured:
        """Return counts and fingerprints; these spans need not ascend."""
        found = [self.within(*span) for span in spans]
        return _sums(found)

    def _parts(self, spans: Spans, wanted: list[int]) -> SpanParts:
        upper: list[SyncId] = []
        found: list[list[SyncId]] = []
        offsets = [0]
        for (lower, end), parts in zip(spans.pairs(), wanted, strict=True):
            bounds = self._bounds(lower, end, parts)
            found += [self.within(*part) for part in pairwise([lower, *bounds])]
            upper += bounds
            offsets.append(len(upper))
        sums = _sums(found)
        return SpanParts(
            np.array(offsets, np.int64), SyncIds.of(upper), sums.counts, sums.fingerprints
        )

    def _bounds(self, lower: SyncId, upper: SyncId, parts: int) -> list[SyncId]:
        ids = self.within(lower, upper)
        parts = max(1, min(parts, len(ids)))
        bounds: list[SyncId] = []
        for part in range(1, parts):
            place = len(ids) * part // parts
            target = between(ids[place - 1], ids[place])
            previous = bounds[-1] if bounds else lower
            if target > previous:
                bounds += steps_to(previous, target)
        return [*bounds, upper]


def _sums(found: list[list[SyncId]]) -> Measured:
    hashes = b"".join(map(xor, found))
    return Measured(
        np.array([len(ids) for ids in found], np.int64),
        np.frombuffer(bytearray(hashes), np.uint64).reshape(-1, HASH_WORDS),
    )


# The reads of a view over summaries

T = TypeVar("T")


@dataclass
class NaiveStorage:
    """Meets what views need, and remembers what that was.

    Attributes:
        ids: what is held, ascending.
        needs: everything that was needed, in its order.
        loaded_ids: how many IDs were loaded in all.
    """

    ids: list[SyncId]
    needs: list[Needs] = field(default_factory=list)
    loaded_ids: int = 0

    @classmethod
    def of(cls, ids: Iterable[SyncId]) -> "NaiveStorage":
        return cls(sorted(set(ids)))

    def buckets(self, length_ns: int) -> Buckets:
        """Return all buckets of a length."""
        return Buckets.of_ids(length_ns, SyncIds.of(self.ids))

    def load(self, needs: Needs) -> Loaded:
        """Return what is needed."""
        self.needs.append(needs)
        match needs:
            case NeedBuckets(length_ns, parents, parent_ns):
                assert len(parents)
                assert bool(np.all(parents % parent_ns == 0))
                return self.buckets(length_ns).within(parents, parent_ns)
            case NeedIds(spans, limit):
                spans.check()
                found: list[SyncId] = []
                for lower, upper in spans.pairs():
                    found += self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]
                self.loaded_ids += min(len(found), limit)
                return SyncIds.of(found[:limit])
            case NeedHashes(hashes):
                wanted = {hash_.tobytes() for hash_ in hashes}
                return SyncIds.of(each for each in reversed(self.ids) if each[1] in wanted)


def run(work: Loading[T], load: Callable[[Needs], Loaded] | None = None) -> T:
    """Return the result of a computation; without ``load`` it must not need anything."""
    found = proceed(work)
    while isinstance(found, Needs):
        assert load is not None, found
        found = proceed(work, load(found))
    return found
