"""Pieces of spans with the sums of their IDs, the parts that are made of them, and cuts of spans.

A span is first cut into *atoms*, finer and finer where they have too many IDs, then neighbours are
merged until they have about the wanted count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from reconcile.errors import SummaryMismatchError
from reconcile.ids import LOWEST, Bools, Ints, SyncId, SyncIds, Words, differ, less, match, rank
from reconcile.view import Measured, SpanParts, Spans, chain_spans, no_fingerprints


@dataclass(frozen=True, eq=False)
class Pieces:
    """Disjoint, ascending spans, with the sums of the IDs in them.

    Attributes:
        keys: ``(m,)``, what each is of.
        spans: ``(m,)``.
        counts: ``(m,)``.
        xors: ``(m, 4)``.
    """

    keys: Ints
    spans: Spans
    counts: Ints
    xors: Words

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, selection: Ints | Bools) -> Pieces:
        spans, counts = self.spans[selection], self.counts[selection]
        return Pieces(self.keys[selection], spans, counts, self.xors[selection])

    @classmethod
    def join(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return all pieces, one part after the other."""
        return cls(
            np.concatenate([part.keys for part in parts]),
            Spans(
                SyncIds.join([part.spans.lower for part in parts]),
                SyncIds.join([part.spans.upper for part in parts]),
            ),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.xors for part in parts]),
        )

    @cached_property
    def _running(self) -> tuple[Ints, Words]:
        """The sums of all pieces before each, and of all."""
        counts, xors = np.zeros(len(self) + 1, np.int64), no_fingerprints(len(self) + 1)
        np.cumsum(self.counts, out=counts[1:])
        np.bitwise_xor.accumulate(self.xors, axis=0, out=xors[1:])
        return counts, xors

    def holding(self, edges: SyncIds) -> Ints:
        """Return the numbers of the pieces that have one of some ascending edges inside."""
        at = match(self.spans.lower, edges)
        chosen = np.flatnonzero(~at.found & (at.places > 0))
        numbers = at.places[chosen] - 1
        inside = less(edges[chosen], self.spans.upper[numbers])
        return np.unique(numbers[inside])

    def places(self, spans: Spans) -> tuple[Ints, Ints]:
        """Return which pieces are in spans, whose edges are inside of none: first and end."""
        lower = self.spans.lower
        return match(lower, spans.lower).places, match(lower, spans.upper).places

    def measure(self, spans: Spans) -> Measured:
        """Return the sums of the pieces in spans, whose edges are inside of none."""
        (first, end), (counts, xors) = self.places(spans), self._running
        return Measured(counts[end] - counts[first], xors[end] ^ xors[first])

    def replace(self, numbers: Ints, places: Ints, pieces: Pieces) -> Pieces:
        """Replace some of these by smaller ones; ``places``: of which each of them is a piece.

        Raises:
            SummaryMismatchError: the pieces of one do not sum up to it.
        """
        totals = np.zeros(len(numbers), np.int64), no_fingerprints(len(numbers))
        at = np.searchsorted(numbers, places)
        np.add.at(totals[0], at, pieces.counts)
        np.bitwise_xor.at(totals[1], at, pieces.xors)
        same = (totals[0] == self.counts[numbers]) & (totals[1] == self.xors[numbers]).all(axis=1)
        if not same.all():
            lower, upper = self.spans.lower, self.spans.upper
            wrong = int(numbers[np.argmin(same)])
            raise SummaryMismatchError(int(lower.timestamps[wrong]), int(upper.timestamps[wrong]))
        kept = np.ones(len(self), np.bool_)
        kept[numbers] = False
        order = np.argsort(np.concatenate((np.flatnonzero(kept), places)), kind="stable")
        return Pieces.join([self[kept], pieces])[order]


def parts_within(atoms: Pieces, counts: Ints, wanted: Ints) -> Ints:
    """Return how many parts each atom should become, the nearest number.

    Args:
        atoms: pieces, with the numbers of their spans as keys.
        counts: ``(n,)``, IDs in the spans.
        wanted: ``(n,)``, into how many parts each span is to be cut.
    """
    totals = np.maximum(counts, 1)[atoms.keys]
    return np.asarray((2 * atoms.counts * wanted[atoms.keys] + totals) // (2 * totals))


def ends_of_parts(atoms: Pieces, counts: Ints, wanted: Ints) -> Ints:
    """Return the numbers of atoms with which a part ends, for parts of about equal counts."""
    owners = atoms.keys
    before = np.cumsum(atoms.counts) - atoms.counts
    before -= before[np.searchsorted(owners, np.arange(len(counts)))][owners]
    # The middle of an atom decides its part; an empty atom joins the part before it.
    totals = np.maximum(2 * counts, 1)[owners]
    groups = (2 * before + atoms.counts) * wanted[owners] // totals
    groups[atoms.counts == 0] = 0
    groups = np.maximum.accumulate((np.cumsum(wanted) - wanted)[owners] + groups)
    ends = np.ones(len(atoms), np.bool_)
    ends[:-1] = (groups[1:] != groups[:-1]) | (owners[1:] != owners[:-1])
    return ends.nonzero()[0]


def join_measures(found: Sequence[Measured]) -> Measured:
    """Join measures, one after the other."""
    if not found:
        return Measured(np.empty(0, np.int64), no_fingerprints(0))
    return Measured(
        np.concatenate([some.counts for some in found]),
        np.concatenate([some.fingerprints for some in found]),
    )


def join_parts(found: Sequence[SpanParts]) -> SpanParts:
    """Join the parts of several spans, one after the other."""
    if not found:
        return SpanParts(
            np.zeros(1, np.int64), SyncIds.empty(), np.empty(0, np.int64), no_fingerprints(0)
        )
    sizes = np.concatenate([np.diff(some.offsets) for some in found])
    return SpanParts(
        np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))),
        SyncIds.join([some.upper for some in found]),
        np.concatenate([some.counts for some in found]),
        np.concatenate([some.fingerprints for some in found]),
    )


def last_cut(ids: SyncIds) -> SyncId:
    """Return the greatest bound with IDs before it and one behind it, expressible if possible.

    ``ids`` ascend and are two at least. The bound is at the beginning of the last one's
    nanosecond, or where all share that, between the last two.
    """
    timestamp, last = ids.at(len(ids) - 1)
    if ids.timestamps[0] < timestamp:
        return timestamp, LOWEST[1]
    before = ids.hashes[-2].tobytes()
    length = next(place for place in range(len(last)) if before[place] != last[place]) + 1
    return timestamp, last[:length].ljust(len(last), b"\0")


def join_spans(spans: Spans) -> Spans:
    """Join spans that touch."""
    if not len(spans):
        return spans
    apart = differ(spans.upper[:-1], spans.lower[1:])
    first = np.concatenate(([True], apart))
    last = np.concatenate((apart, [True]))
    return Spans(spans.lower[first], spans.upper[last])


def divide_spans(keys: Ints, spans: Spans, bound: SyncId) -> tuple[Ints, Spans, Ints, Spans]:
    """Divide spans at a bound; one may be on both sides, cut in two.

    Returns:
        The keys and the spans before the bound, and those behind it.
    """
    begun, ended = rank(spans.lower, bound), rank(spans.upper, bound)
    ended += int(ended < len(spans) and spans.upper.at(ended) == bound)
    before, after = spans[:begun], spans[ended:]
    if begun > ended:
        cut = SyncIds.of([bound])
        before = Spans(before.lower, SyncIds.join([before.upper[:-1], cut]))
        after = Spans(SyncIds.join([cut, after.lower[1:]]), after.upper)
    return keys[:begun], before, keys[ended:], after


def cut_spans(spans: Spans, edges: SyncIds) -> tuple[Ints, Spans]:
    """Cut spans at ascending edges inside of them; return the number of its span for each part."""
    at = match(edges, spans.lower)
    first, end = at.places + at.found, match(edges, spans.upper).places
    counts = end - first
    ends = np.cumsum(counts + 1)
    total = int(ends[-1]) if len(ends) else 0
    owners = np.repeat(np.arange(len(spans)), counts + 1)
    places = np.arange(total) - (ends - counts - 1 - first)[owners]
    is_last = np.zeros(total, np.bool_)
    is_last[ends - 1] = True
    bounds = SyncIds.join([edges, spans.upper])
    upper = bounds[np.where(is_last, len(edges) + owners, places)]
    return owners, chain_spans(spans.lower, ends - counts - 1, upper)


def are_covered(spans: Spans, by: Spans) -> Bools:
    """Return ``(n,)``: does each span lie in one of some others."""
    at = match(by.lower, spans.lower)
    places = at.places + at.found - 1
    covered = places >= 0
    chosen = np.flatnonzero(covered)
    covered[chosen] = ~less(by.upper[places[chosen]], spans.upper[chosen])
    return covered
