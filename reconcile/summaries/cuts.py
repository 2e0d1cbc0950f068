"""Cuts of spans into parts of about equal counts, along edges that happen to be there.

A span is first cut into *atoms*, finer and finer where they have too many IDs, then neighbours are
joined until they have about the wanted count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import reach
from reconcile.codec.bounds import expressible
from reconcile.errors import SummaryMismatchError
from reconcile.ids import Ints, SyncIds
from reconcile.index import IndexView
from reconcile.summaries.buckets import BucketSums, Pieces
from reconcile.view import Measured, SpanParts, Spans, chain_spans, no_fingerprints


@dataclass(frozen=True, slots=True)
class CutPlan:
    """A plan of cuts.

    Attributes:
        spans: ``(n,)``.
        counts: ``(n,)``, IDs in them.
        wanted: ``(n,)``, into how many parts; not more than IDs, but 1 at least.
    """

    spans: Spans
    counts: Ints
    wanted: Ints

    def too_big(self, atoms: Atoms) -> NDArray[np.bool_]:
        """Return which atoms have more than one and a half parts in them."""
        most: Ints = 3 * self.counts[atoms.owners]
        return most < 2 * self.wanted[atoms.owners] * atoms.counts

    def parts_of(self, owners: Ints, counts: Ints) -> Ints:
        """Return how many parts so many IDs of a span should become; at least 1."""
        totals = self.counts[owners]
        parts: Ints = (2 * counts * self.wanted[owners] + totals) // (2 * totals)
        return np.maximum(parts, 1)


@dataclass(frozen=True, slots=True)
class Atoms:
    """The pieces of spans, ascending; those of one span touch, and together are the span.

    Attributes:
        owners: ``(m,)``, numbers of the spans.
        spans: ``(m,)``.
        counts: ``(m,)``.
        xors: ``(m, 4)``.
    """

    owners: Ints
    spans: Spans
    counts: Ints
    xors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def of(cls, spans: Spans, measured: Measured) -> Atoms:
        """Return spans that are whole yet."""
        return cls(np.arange(len(spans)), spans, measured.counts, measured.fingerprints)

    def replace(self, numbers: Ints, spans: Spans, measured: Measured) -> Atoms:
        """Replace some atoms by pieces; ``numbers``, ascending, say of which each is one.

        Raises:
            SummaryMismatchError: the pieces of an atom do not sum up to it.
        """
        if not len(numbers):
            return self
        first = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        replaced = numbers[first]
        counts = np.add.reduceat(measured.counts, first)
        xors = np.bitwise_xor.reduceat(measured.fingerprints, first, axis=0)
        same = counts == self.counts[replaced]
        same &= (xors == self.xors[replaced]).all(axis=1)
        if not same.all():
            wrong = int(replaced[np.argmin(same)])
            raise SummaryMismatchError(
                int(self.spans.lower.timestamps[wrong]), int(self.spans.upper.timestamps[wrong])
            )
        kept = np.ones(len(self), np.bool_)
        kept[replaced] = False
        places = np.concatenate((np.flatnonzero(kept), numbers))
        order = np.argsort(places, kind="stable")
        lower = SyncIds.join([self.spans.lower[kept], spans.lower])
        upper = SyncIds.join([self.spans.upper[kept], spans.upper])
        return Atoms(
            self.owners[places[order]],
            Spans(lower[order], upper[order]),
            np.concatenate((self.counts[kept], measured.counts))[order],
            np.concatenate((self.xors[kept], measured.fingerprints))[order],
        )


def cut_along_edges(sums: BucketSums, pieces: Pieces) -> tuple[Ints, Spans]:
    """Cut pieces where a bucket begins inside of them; return their keys and the spans."""
    first, last = sums.edges_inside(pieces.spans)
    counts = last - first
    ends = np.cumsum(counts + 1)
    total = int(ends[-1]) if len(ends) else 0
    inner = np.ones(total, np.bool_)
    inner[ends - 1] = False
    offsets = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(first - offsets, counts)
    timestamps = np.empty(total, np.int64)
    words = no_fingerprints(total)
    timestamps[inner] = sums.buckets.starts[places]
    timestamps[ends - 1] = pieces.spans.upper.timestamps
    words[ends - 1] = pieces.spans.upper.words
    upper = SyncIds(timestamps, words.view(np.uint8))
    return np.repeat(pieces.keys, counts + 1), chain_spans(
        pieces.spans.lower, ends - counts - 1, upper
    )


def same_spans(left: Spans, right: Spans) -> NDArray[np.bool_]:
    """Return ``(n,)``: are two spans the same."""
    same: NDArray[np.bool_] = left.lower.timestamps == right.lower.timestamps
    same &= left.upper.timestamps == right.upper.timestamps
    same &= (left.lower.words == right.lower.words).all(axis=1)
    same &= (left.upper.words == right.upper.words).all(axis=1)
    return same


def order_parts(found: Sequence[tuple[Ints, SpanParts]]) -> SpanParts:
    """Return the parts of spans in the order of the numbers of these, each there once."""
    numbers = np.concatenate([some for some, _ in found])
    parts = join_parts([some for _, some in found])
    if (numbers[1:] > numbers[:-1]).all():
        return parts
    sizes = np.diff(parts.offsets)
    order = np.argsort(np.repeat(numbers, sizes), kind="stable")
    sizes = sizes[np.argsort(numbers)]
    return SpanParts(
        np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))),
        parts.upper[order],
        parts.counts[order],
        parts.fingerprints[order],
    )


def make_ends_expressible(view: IndexView, spans: Spans, parts: SpanParts) -> SpanParts:
    """Make the last bounds of spans, too, expressible after the ones before them.

    Where one cannot, further bounds lead there.
    """
    pieces = parts.spans(spans.lower)
    last = parts.offsets[1:] - 1
    awkward = ~expressible(pieces.lower[last], pieces.upper[last])
    if not awkward.any():
        return parts
    uppers: list[SyncIds] = []
    sizes = np.diff(parts.offsets)
    done = 0
    for number in np.flatnonzero(awkward).tolist():
        end = int(last[number])
        chain = reach(pieces.lower.at(end), pieces.upper.at(end))
        uppers += [parts.upper[done:end], SyncIds.of(chain)]
        sizes[number] += len(chain) - 1
        done = end + 1
    upper = SyncIds.join([*uppers, parts.upper[done:]])
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    measured = view.measure(chain_spans(spans.lower, offsets[:-1], upper))
    return SpanParts(offsets, upper, measured.counts, measured.fingerprints)


def merge_atoms(cut: CutPlan, atoms: Atoms) -> SpanParts:
    """Merge neighbouring atoms to parts of about equal counts."""
    owners = atoms.owners
    last_of_span = np.ones(len(atoms), np.bool_)
    last_of_span[:-1] = owners[1:] != owners[:-1]
    kept = last_of_span.copy()
    groups = _groups(cut, atoms)
    kept[:-1] |= groups[1:] != groups[:-1]
    _keep_what_leads(atoms, kept, last_of_span)
    ends = np.flatnonzero(kept)
    first = np.concatenate((np.zeros(1, np.int64), ends + 1))[:-1]
    sizes = np.bincount(owners[ends], minlength=len(cut.spans))
    return SpanParts(
        np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))),
        atoms.spans.upper[ends],
        np.add.reduceat(atoms.counts, first),
        np.bitwise_xor.reduceat(atoms.xors, first, axis=0),
    )


def _groups(cut: CutPlan, atoms: Atoms) -> Ints:
    """Return ascending numbers, the same for atoms that become one part."""
    owners, counts = atoms.owners, atoms.counts
    before = np.cumsum(counts) - counts
    starts = np.searchsorted(owners, np.arange(len(cut.spans)))
    before -= before[starts][owners]
    wanted = cut.wanted[owners]
    group = (2 * before + counts) * wanted // np.maximum(2 * cut.counts[owners], 1)
    # What is empty goes with what is before it.
    group[counts == 0] = 0
    span_starts = np.cumsum(cut.wanted) - cut.wanted
    return np.maximum.accumulate(span_starts[owners] + group)


def _keep_what_leads(
    atoms: Atoms, kept: NDArray[np.bool_], last_of_span: NDArray[np.bool_]
) -> None:
    """Keep further bounds where one could not be expressed without them (WAKU-SYNC, bounds).

    Each atom's upper bound can be expressed after the one before it, but for a span's last.
    """
    upper = atoms.spans.upper
    while True:
        ends = np.flatnonzero(kept)
        previous = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
        wrong = ~expressible(atoms.spans.lower[previous], upper[ends]) & ~last_of_span[ends]
        again = np.flatnonzero(wrong & (previous < ends))
        if not len(again):
            return
        for number in again.tolist():
            kept[previous[number] : ends[number]] = True


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


def slice_parts(parts: SpanParts, first: int, end: int) -> SpanParts:
    """Return the parts of some consecutive spans."""
    start, stop = int(parts.offsets[first]), int(parts.offsets[end])
    return SpanParts(
        parts.offsets[first : end + 1] - start,
        parts.upper[start:stop],
        parts.counts[start:stop],
        parts.fingerprints[start:stop],
    )
