"""The buckets of a history: counts and XORs of slices of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_WORDS, Ints, SyncIds
from reconcile.view import Measured, Spans, no_fingerprints


@dataclass(frozen=True, slots=True, eq=False)
class TimeBuckets:
    """The slices of time of one length that have IDs in them, ascending, each once.

    Attributes:
        length_ns: how long each is; it begins at a multiple of that since the epoch.
        starts: ``(n,)``, nanoseconds.
        counts: ``(n,)``, of the IDs in it.
        xors: ``(n, 4)``, of their hashes.
    """

    length_ns: int
    starts: Ints
    counts: Ints
    xors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def empty(cls, length_ns: int) -> TimeBuckets:
        """Return no buckets."""
        none = np.empty(0, np.int64)
        return cls(length_ns, none, none, no_fingerprints(0))

    @classmethod
    def of_ids(cls, length_ns: int, ids: SyncIds) -> TimeBuckets:
        """Return the buckets of some ascending IDs."""
        return cls.total(length_ns, ids.timestamps, np.ones(len(ids), np.int64), ids.words)

    @classmethod
    def total(
        cls, length_ns: int, times: Ints, counts: Ints, xors: NDArray[np.uint64]
    ) -> TimeBuckets:
        """Return the buckets of parts that begin at ``times``, in any order."""
        starts = times - times % length_ns
        if not len(starts):
            return cls.empty(length_ns)
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        first = np.flatnonzero(np.concatenate(([True], starts[1:] != starts[:-1])))
        return cls(
            length_ns,
            starts[first],
            np.add.reduceat(counts[order], first),
            np.bitwise_xor.reduceat(xors[order], first, axis=0),
        )

    @classmethod
    def join(cls, length_ns: int, parts: Iterable[TimeBuckets]) -> TimeBuckets:
        """Return the buckets of all that is in some shorter ones, or ones of this length."""
        listed = list(parts)
        return cls.total(
            length_ns,
            np.concatenate([part.starts for part in listed]),
            np.concatenate([part.counts for part in listed]),
            np.concatenate([part.xors for part in listed]),
        )

    def of(self, starts: Ints) -> TimeBuckets:
        """Return the buckets with some starts."""
        return self._select(np.isin(self.starts, starts))

    def _select(self, wanted: NDArray[np.bool_]) -> TimeBuckets:
        starts, counts = self.starts[wanted], self.counts[wanted]
        return TimeBuckets(self.length_ns, starts, counts, self.xors[wanted])

    def first_difference(self, other: TimeBuckets) -> int | None:
        """Return the start of the first bucket that is not the same in another, or None."""
        both = TimeBuckets.join(self.length_ns, [self, other])
        twice = np.zeros(len(both), np.int64)
        for each in (self, other):
            twice += np.isin(both.starts, each.starts)
        wrong = twice != 2
        here = np.isin(self.starts, both.starts[~wrong])
        there = np.isin(other.starts, both.starts[~wrong])
        same = self.counts[here] == other.counts[there]
        same &= (self.xors[here] == other.xors[there]).all(axis=1)
        wrong[~wrong] = ~same
        return int(both.starts[np.argmax(wrong)]) if wrong.any() else None

    def within(self, parents: Ints, parent_ns: int) -> TimeBuckets:
        """Return the buckets that lie in one of some longer slices, whose starts are given."""
        return self._select(np.isin(self.starts - self.starts % parent_ns, parents))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The spans that must still be measured, or cut.

    Attributes:
        keys: ``(m,)``: rows of totals, or the numbers of the spans to be cut.
        spans: ``(m,)``, disjoint.
        parents: ``(m,)`` start of the slice of time in which each lies.
    """

    keys: Ints
    spans: Spans
    parents: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, selection: slice | Ints | NDArray[np.bool_]) -> Pieces:
        return Pieces(self.keys[selection], self.spans[selection], self.parents[selection])

    @classmethod
    def join(cls, parts: Iterable[Pieces]) -> Pieces:
        """Return all pieces, in the order of their keys."""
        listed = list(parts)
        keys = np.concatenate([part.keys for part in listed])
        spans = Spans(
            SyncIds.join([part.spans.lower for part in listed]),
            SyncIds.join([part.spans.upper for part in listed]),
        )
        parents = np.concatenate([part.parents for part in listed])
        return cls(keys, spans, parents)[np.argsort(keys, kind="stable")]


class BucketSums:
    """The running totals of buckets.

    Attributes:
        buckets: the buckets themselves.
    """

    def __init__(self, buckets: TimeBuckets) -> None:
        self.buckets = buckets
        count = len(buckets)
        self._counts = np.zeros(count + 1, np.int64)
        np.cumsum(buckets.counts, out=self._counts[1:])
        self._xors = np.zeros((count + 1, HASH_WORDS), np.uint64)
        np.bitwise_xor.accumulate(buckets.xors, axis=0, out=self._xors[1:])

    def take(self, pieces: Pieces, totals: Measured) -> Pieces:
        """Add up the buckets that lie wholly in a piece, and return what is left of it.

        ``keys`` of the pieces are rows of ``totals``, of which each span has two: a span that is
        longer than a slice of time has a piece at its beginning and one at its end. Row ``2 i`` is
        for the first piece of span i, or its only one, and row ``2 i + 1`` for the last. What is
        left are at most two pieces, each of which lies in one bucket.
        """
        starts, length = self.buckets.starts, self.buckets.length_ns
        lower, upper = pieces.spans.lower, pieces.spans.upper
        first = _starts_before(starts, lower)
        # Compared this way round, nothing passes 63 bits: a slice may end behind the last time.
        last = np.searchsorted(starts, upper.timestamps - length, "right")
        inner = np.flatnonzero(first < last)
        begin, end = first[inner], last[inner]
        totals.counts[pieces.keys[inner]] += self._counts[end] - self._counts[begin]
        totals.fingerprints[pieces.keys[inner]] ^= self._xors[end] ^ self._xors[begin]
        left = np.maximum(first - 1, 0)
        right = np.minimum(last, max(len(starts) - 1, 0))
        if not len(starts):
            return pieces[:0]
        has_left = (first > 0) & (lower.timestamps - starts[left] < length)
        has_right = (last < len(starts)) & (last < _starts_before(starts, upper))
        same = has_left & (last == first - 1)
        begins, ends = has_left & ~same, has_right & ~same
        first_of, last_of = starts[left[begins]], starts[right[ends]]
        beginnings = Spans(lower[begins], SyncIds.at_times(first_of + length))
        endings = Spans(SyncIds.at_times(last_of), upper[ends])
        return Pieces.join(
            (
                Pieces(pieces.keys[same], pieces.spans[same], starts[left[same]]),
                Pieces(pieces.keys[begins] & ~np.int64(1), beginnings, first_of),
                Pieces(pieces.keys[ends] | np.int64(1), endings, last_of),
            )
        )

    def edges_inside(self, spans: Spans) -> tuple[Ints, Ints]:
        """Return which buckets begin inside spans, but not where these begin: first and end."""
        starts = self.buckets.starts
        first = np.searchsorted(starts, spans.lower.timestamps, "right")
        return first, np.maximum(first, _starts_before(starts, spans.upper))

    def counts_of(self, starts: Ints) -> Ints:
        """Return the counts of the buckets with these starts, which there must be."""
        return self.buckets.counts[np.searchsorted(self.buckets.starts, starts)]


def _starts_before(starts: Ints, bounds: SyncIds) -> Ints:
    """Count the slices that begin before each bound."""
    places = np.searchsorted(starts, bounds.timestamps)
    if bounds.has_hashes():
        inside = bounds.words.any(axis=1)
        places[inside] = np.searchsorted(starts, bounds.timestamps[inside], "right")
    return places
