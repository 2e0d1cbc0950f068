"""A cache of the IDs that were loaded from storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.algorithm.differences import match
from reconcile.ids import HASH_WORDS, SyncId, SyncIds, less
from reconcile.index import IndexView
from reconcile.summaries.buckets import Pieces
from reconcile.view import Spans

_NO_HASH = bytes(8 * HASH_WORDS)


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """The IDs of some spans, all of them.

    Attributes:
        spans: which spans, ascending.
        view: their IDs, and no others.
    """

    spans: Spans
    view: IndexView

    @property
    def weight(self) -> int:
        """The number of IDs that would take as much memory."""
        return len(self.view) + 2 * len(self.spans)

    def cover(self, spans: Spans) -> NDArray[np.bool_]:
        """Return ``(n,)``: are all the IDs of these spans, ascending, among the loaded ones."""
        at = match(self.spans.lower, spans.lower)
        places = at.places + at.found - 1
        covered = places >= 0
        chosen = np.flatnonzero(covered)
        ends = self.spans.upper[places[chosen]]
        covered[chosen] = ~less(ends, spans.upper[chosen])
        return covered


class LeafCache:
    """The leaves used last, as many as there is room for."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._leaves: list[Leaves] = []

    @property
    def weight(self) -> int:
        """The number of IDs that would take as much memory."""
        return sum(leaves.weight for leaves in self._leaves)

    def add(self, leaves: Leaves) -> None:
        """Add leaves, and drop those used least recently to make room."""
        self._leaves.append(leaves)
        while self.weight > self._room and len(self._leaves) > 1:
            del self._leaves[0]

    def serve(self, pieces: Pieces) -> tuple[list[tuple[Leaves, Pieces]], Pieces]:
        """Return leaves with the pieces that they cover, and the pieces that none covers.

        ``pieces`` must ascend.
        """
        served = []
        for leaves in reversed(self._leaves[:]):
            if not len(pieces):
                break
            covered = leaves.cover(pieces.spans)
            if covered.any():
                self._leaves.remove(leaves)
                self._leaves.append(leaves)
                served.append((leaves, pieces[covered]))
                pieces = pieces[~covered]
        return served, pieces


def join_spans(spans: Spans) -> Spans:
    """Join spans that touch."""
    if not len(spans):
        return spans
    upper, lower = spans.upper[:-1], spans.lower[1:]
    apart = (upper.timestamps != lower.timestamps) | (upper.words != lower.words).any(axis=1)
    first = np.concatenate(([True], apart))
    last = np.concatenate((apart, [True]))
    return Spans(spans.lower[first], spans.upper[last])


def spans_before(spans: Spans, bound: SyncId) -> Spans:
    """Return the parts of ascending spans that lie before a bound."""
    begun, ended = rank(spans.lower, bound), _ended(spans, bound)
    if begun == ended:
        return spans[:ended]
    upper = SyncIds.join([spans.upper[:ended], SyncIds.of_bounds([bound])])
    return Spans(spans.lower[:begun], upper)


def divide_pieces(pieces: Pieces, bound: SyncId) -> tuple[Pieces, Pieces]:
    """Divide ascending pieces at a bound; one may be in both, cut in two."""
    begun, ended = rank(pieces.spans.lower, bound), _ended(pieces.spans, bound)
    before, after = pieces[:begun], pieces[ended:]
    if begun > ended:
        cut = SyncIds.of_bounds([bound])
        upper = SyncIds.join([before.spans.upper[:-1], cut])
        lower = SyncIds.join([cut, after.spans.lower[1:]])
        before = Pieces(before.keys, Spans(before.spans.lower, upper), before.parents)
        after = Pieces(after.keys, Spans(lower, after.spans.upper), after.parents)
    return before, after


def rank(ids: SyncIds, bound: SyncId) -> int:
    """Count the ascending IDs that are before a bound."""
    timestamp, hash_ = bound
    low = int(np.searchsorted(ids.timestamps, timestamp))
    high = int(np.searchsorted(ids.timestamps, timestamp, "right"))
    while low < high:
        middle = (low + high) // 2
        if ids.hashes[middle].tobytes() < hash_:
            low = middle + 1
        else:
            high = middle
    return low


def last_cut(ids: SyncIds) -> SyncId:
    """Return the greatest bound with IDs before it and one behind it, expressible if possible.

    ``ids`` ascend and are two at least. The bound is at the beginning of the last one's
    nanosecond, or where all share that, between the last two.
    """
    timestamp, last = ids.at(len(ids) - 1)
    if ids.timestamps[0] < timestamp:
        return timestamp, _NO_HASH
    before = ids.hashes[-2].tobytes()
    length = next(place for place in range(len(last)) if before[place] != last[place]) + 1
    return timestamp, last[:length].ljust(len(last), b"\0")


def _ended(spans: Spans, bound: SyncId) -> int:
    """Count the spans that end at a bound or before it."""
    before = rank(spans.upper, bound)
    return before + int(before < len(spans) and spans.upper.at(before) == bound)
