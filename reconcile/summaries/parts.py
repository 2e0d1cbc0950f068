"""Pieces of spans with the sums of their IDs, and the parts that are made of them.

A span is first cut into *atoms*, finer and finer where they have too many IDs, then neighbours are
merged until they have about the wanted count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.errors import SummaryMismatchError
from reconcile.ids import Bools, Ints, SyncIds
from reconcile.view import Measured, SpanParts, Spans, no_fingerprints


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
    # An atom is in the part that its middle is in; what is empty goes with what is before it.
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
