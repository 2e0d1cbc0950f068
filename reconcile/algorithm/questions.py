"""The questions of a payload: its ranges without the Skips, inside the territory of a session.

Outside its territory (the initiator's window; what the responder was first asked about, not below
its horizon) a session neither compares nor answers: it sends Skip there and splits a range at the
border (rulings on WAKU-SYNC, "Different horizons"). Unless it is equal to ours, the fingerprint of
a range that was cut says nothing about what is left of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reconcile.codec import RangeKind, Ranges, bridge, expressible
from reconcile.errors import PayloadLimitError
from reconcile.ids import LOWEST, Bools, Ints, SyncId, SyncIds, less, match
from reconcile.view import Spans, chain_spans

Territory = tuple[SyncId, SyncId]


@dataclass(frozen=True, slots=True)
class Questions:
    """The ranges to answer, q of them: fingerprints and sets.

    Attributes:
        ranges: (q,) each upper bound can be expressed after its lower one.
        spans: (q,) their bounds.
        is_set: (q,) item sets; the others are fingerprints.
        known: (q,) whether the fingerprint is of just this range; False for sets.
    """

    ranges: Ranges
    spans: Spans
    is_set: Bools
    known: Bools

    @classmethod
    def of(cls, ranges: Ranges, is_whole: Bools | None = None) -> Questions:
        """Return the questions of ranges, of which some were cut."""
        is_set = ranges.kinds == RangeKind.ITEM_SET
        return cls(
            ranges, ranges.spans, is_set, ~is_set if is_whole is None else is_whole & ~is_set
        )

    def __len__(self) -> int:
        return len(self.is_set)

    def cut(self, rows: Ints, upper: SyncIds) -> Questions:
        """Cut all of them into pieces.

        Args:
            rows: ``(n,)`` the question that each piece is of, ascending; all of them occur.
            upper: ``(n,)`` the upper bounds of the pieces, the last of a question being its own.
        """
        starts = rows.searchsorted(np.arange(len(self)))
        spans = chain_spans(self.spans.lower, starts, upper)
        known = self.known & (np.bincount(rows) == 1)
        return Questions.of(self.ranges.cut(rows, spans), known[rows])


def asked_about(ranges: Ranges) -> Territory | None:
    """Return the bounds of the ranges that are no Skips; None if there are none."""
    places = np.flatnonzero(ranges.kinds != RangeKind.SKIP)
    if not len(places):
        return None
    first = int(places[0])
    lower = ranges.upper.at(first - 1) if first else LOWEST
    return lower, ranges.upper.at(int(places[-1]))


def questions(ranges: Ranges, territory: Territory, max_cut_ranges: int) -> Questions:
    """Return the questions of a payload.

    Args:
        ranges: the payload.
        territory: the bounds of the session.
        max_cut_ranges: how many ranges may come of those whose upper bound an encoder cannot
            express after the lower one, which a decoder has to understand nevertheless.

    Raises:
        PayloadLimitError: there would be more.
    """
    asked = _inside(ranges.take((ranges.kinds != RangeKind.SKIP).nonzero()[0]), territory)
    awkward = int(np.count_nonzero(~expressible(asked.spans.lower, asked.spans.upper)))
    if not awkward:
        return asked
    made = 2 * awkward  # at least; each may come to 33
    if made <= max_cut_ranges:
        rows, upper = bridge(asked.spans.lower, asked.spans.upper)
        made = len(rows) - len(asked) + awkward
    if made > max_cut_ranges:
        raise PayloadLimitError("max_cut_ranges", max_cut_ranges, made)
    return asked.cut(rows, upper)


def _inside(ranges: Ranges, territory: Territory) -> Questions:
    """Drop what lies beyond the borders."""
    lower, upper = ranges.lower, ranges.upper
    if not len(ranges) or (lower.at(0) >= territory[0] and upper.at(-1) <= territory[1]):
        return Questions.of(ranges)
    first, end = (SyncIds.of([bound]) for bound in territory)
    rows, every = np.arange(len(ranges)), np.zeros(len(ranges), np.int64)
    below, above = less(lower, first[every]), less(end[every], upper)
    kept = (less(first[every], upper) & less(lower, end[every])).nonzero()[0]
    lower = SyncIds.join([lower, first]).take(np.where(below, len(ranges), rows)[kept])
    upper = SyncIds.join([upper, end]).take(np.where(above, len(ranges), rows)[kept])
    start, stop = match(ranges.items, SyncIds.join([first, end])).places
    ranges = replace(ranges, items=ranges.items[start:stop])
    return Questions.of(ranges.cut(kept, Spans(lower, upper)), ~(below | above)[kept])
