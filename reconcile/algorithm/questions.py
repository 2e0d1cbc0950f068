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
from reconcile.ids import LOWEST, Bools, Ints, SyncId, SyncIds, Words, less, match
from reconcile.view import Items, Spans, chain_spans

Territory = tuple[SyncId, SyncId]


@dataclass(frozen=True, slots=True)
class Questions:
    """The ranges to answer, q of them.

    Attributes:
        spans: (q,) the ranges; each upper bound can be expressed after its lower one.
        is_set: (q,) item sets; the others are fingerprints.
        fingerprints: (q, 4), zeros for sets.
        known: (q,) whether the fingerprint is of just this range; False for sets.
        reconciled: (q,) False for fingerprints.
        counts: (q,) the items of each set.
        items: the items of all sets, ascending.
    """

    spans: Spans
    is_set: Bools
    fingerprints: Words
    known: Bools
    reconciled: Bools
    counts: Ints
    items: SyncIds

    def __len__(self) -> int:
        return len(self.is_set)

    def sets(self, at: Ints) -> Items:
        """Return the items of some sets, which ascend."""
        chosen = np.zeros(len(self), np.bool_)
        chosen[at] = True
        offsets = np.concatenate(([0], self.counts[at].cumsum()))
        if int(offsets[-1]) == len(self.items):
            return Items(offsets, self.items)
        return Items(offsets, self.items[chosen.repeat(self.counts)])


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
    at = (ranges.kinds != RangeKind.SKIP).nonzero()[0]
    is_set = ranges.kinds.take(at) == RangeKind.ITEM_SET
    spans = Spans(ranges.lower.take(at), ranges.upper.take(at))
    reconciled, counts = ranges.reconciled.take(at), ranges.counts.take(at)
    prints = ranges.fingerprints.take(at, 0)
    asked = Questions(spans, is_set, prints, ~is_set, reconciled, counts, ranges.items)
    if not len(asked):
        return asked
    if spans.lower.at(0) < territory[0] or territory[1] < spans.upper.at(-1):
        asked = _inside(asked, territory)
    awkward = int(np.count_nonzero(~expressible(asked.spans.lower, asked.spans.upper)))
    if not awkward:
        return asked
    made = 2 * awkward  # at least; each may come to 33
    if made <= max_cut_ranges:
        sources, upper = bridge(asked.spans.lower, asked.spans.upper)
        made = len(sources) - len(asked) + awkward
    if made > max_cut_ranges:
        raise PayloadLimitError("max_cut_ranges", max_cut_ranges, made)
    return cut_questions(asked, sources, upper)


def _inside(asked: Questions, territory: Territory) -> Questions:
    """Drop what lies beyond the borders."""
    first, end = (SyncIds.of([bound]) for bound in territory)
    every = np.zeros(len(asked), np.int64)
    lower, upper = asked.spans.lower, asked.spans.upper
    below, above = less(lower, first[every]), less(end[every], upper)
    kept = (less(first[every], upper) & less(lower, end[every])).nonzero()[0]
    lower = SyncIds.join([lower, first]).take(np.where(below, len(asked), np.arange(len(asked))))
    upper = SyncIds.join([upper, end]).take(np.where(above, len(asked), np.arange(len(asked))))
    start, stop = match(asked.items, SyncIds.join([first, end])).places
    return _with_spans(
        replace(asked, known=asked.known & ~below & ~above, items=asked.items[start:stop]),
        Spans(lower.take(kept), upper.take(kept)),
        kept,
    )


def _with_spans(asked: Questions, spans: Spans, rows: Ints) -> Questions:
    """Return questions about parts of the spans of some rows; no item is outside of them."""
    is_set, places = asked.is_set[rows], match(asked.items, spans.upper).places
    return Questions(
        spans,
        is_set,
        asked.fingerprints[rows],
        asked.known[rows],
        asked.reconciled[rows],
        np.where(is_set, np.diff(places, prepend=0), 0),
        asked.items,
    )


def cut_questions(asked: Questions, sources: Ints, upper: SyncIds) -> Questions:
    """Cut questions into pieces.

    Args:
        asked: all questions.
        sources: ``(n,)`` the question that each piece is of, ascending; all of them occur.
        upper: ``(n,)`` the upper bounds of the pieces, the last of a question being its own.
    """
    starts = sources.searchsorted(np.arange(len(asked)))
    asked = replace(asked, known=asked.known & (np.bincount(sources) == 1))
    return _with_spans(asked, chain_spans(asked.spans.lower, starts, upper), sources)
