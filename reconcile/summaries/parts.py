"""Pieces of spans with the sums of their IDs, and the parts that are made of them.

A span is first cut into *atoms*, finer and finer where they have too many IDs, then neighbours are
merged until they have about the wanted count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import reach
from reconcile.codec.bounds import expressible
from reconcile.errors import SummaryMismatchError
from reconcile.ids import Bools, Ints, SyncIds
from reconcile.index import IndexView
from reconcile.view import Measured, SpanParts, Spans, chain_spans, no_fingerprints


@dataclass(frozen=True, slots=True, eq=False)
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
    xors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, selection: Ints | Bools) -> Pieces:
        spans = Spans(self.spans.lower[selection], self.spans.upper[selection])
        return Pieces(self.keys[selection], spans, self.counts[selection], self.xors[selection])

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

    def too_big(self, atoms: Pieces) -> NDArray[np.bool_]:
        """Return which atoms have more than one and a half parts in them."""
        most: Ints = 3 * self.counts[atoms.keys]
        return most < 2 * self.wanted[atoms.keys] * atoms.counts

    def parts_of(self, owners: Ints, counts: Ints) -> Ints:
        """Return how many parts so many IDs of a span should become; at least 1."""
        totals = self.counts[owners]
        parts: Ints = (2 * counts * self.wanted[owners] + totals) // (2 * totals)
        return np.maximum(parts, 1)


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


def merge_atoms(cut: CutPlan, atoms: Pieces) -> SpanParts:
    """Merge neighbouring atoms to parts of about equal counts."""
    owners = atoms.keys
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


def _groups(cut: CutPlan, atoms: Pieces) -> Ints:
    """Return ascending numbers, the same for atoms that become one part."""
    owners, counts = atoms.keys, atoms.counts
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
    atoms: Pieces, kept: NDArray[np.bool_], last_of_span: NDArray[np.bool_]
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
