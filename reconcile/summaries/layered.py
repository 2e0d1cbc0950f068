"""One view over another: the newest IDs in memory, what is older from summaries.

Each moment of time belongs to one of the two, so what a range is answered with never changes, even
though the two may have been opened one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import Ints, SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.summaries.buckets import Pieces
from reconcile.summaries.cutting import (
    Atoms,
    Cut,
    joined_measures,
    joined_parts,
    merged,
    parts_as_spans,
)
from reconcile.summaries.leaves import pieces_before
from reconcile.summaries.loading import Loading, LoadingView
from reconcile.summaries.summary import SummaryView
from reconcile.view import (
    Items,
    Measured,
    Parts,
    Probed,
    Read,
    Spans,
    no_fingerprints,
)


def reads_below(read: Read, floor: SyncId) -> bool:
    """Does a read ask for anything below a bound."""
    asked = (
        read.measure,
        read.split and read.split[0],
        read.items,
        read.probe and read.probe[0],
    )
    return any(
        spans is not None and len(spans) > 0 and spans.lower.at(0) < floor for spans in asked
    )


class LayeredView(LoadingView):
    """IDs from ``floor`` on out of ``hot``, all others out of ``cold``.

    ``hot`` may have no ID below the floor; what ``cold`` has above it is not asked for. ``floor``
    is at the beginning of a nanosecond: its hash is all zeros.
    """

    def __init__(self, hot: IndexView, floor: SyncId, cold: SummaryView) -> None:
        if any(floor[1]):
            raise ValueError("a floor inside a nanosecond cannot be sent as a bound: move it up")
        self._hot = hot
        self._floor = floor
        self._cold = cold

    def _divided(self, spans: Spans) -> tuple[Pieces, Pieces]:
        """What is below the floor, and what is not; one span may be in both."""
        rows = np.arange(len(spans))
        return pieces_before(Pieces(rows, spans, rows), self._floor)

    def measure(self, spans: Spans) -> Loading[Measured]:
        """Counts and fingerprints of spans."""
        below, above = self._divided(spans)
        counts, fingerprints = np.zeros(len(spans), np.int64), no_fingerprints(len(spans))
        cold = yield from self._cold.measure(below.spans)
        for pieces, measured in ((below, cold), (above, self._hot.measure(above.spans))):
            counts[pieces.keys] += measured.counts
            fingerprints[pieces.keys] ^= measured.fingerprints
        return Measured(counts, fingerprints)

    def items(self, spans: Spans) -> Loading[Items]:
        """The IDs in spans."""
        below, above = self._divided(spans)
        cold = yield from self._cold.items(below.spans)
        hot = self._hot.items(above.spans)
        offsets = np.zeros(len(spans) + 1, np.int64)
        for pieces, items in ((below, cold), (above, hot)):
            offsets[pieces.keys + 1] += np.diff(items.offsets)
        return Items(np.cumsum(offsets), SyncIds.join([cold.ids, hot.ids]))

    def probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """As `LoadingView.probe`."""
        below, above = self._divided(spans)
        times, hits = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
        cold = yield from self._cold.probe(below.spans, hashes[below.keys])
        hot = self._hot.probe(above.spans, hashes[above.keys])
        for pieces, found in ((below, cold), (above, hot)):
            hits[pieces.keys] += found.hit
            times[pieces.keys[found.hit]] = found.found.timestamps[found.hit]
        return Probed(SyncIds(times, hashes.copy().view(np.uint8)), hits == 1)

    def split(self, spans: Spans, wanted: Ints) -> Loading[Parts]:
        """As `LoadingView.split`."""
        below, above = self._divided(spans)
        cold_wanted, hot_wanted = wanted[below.keys], wanted[above.keys]
        if len(below) + len(above) == len(spans):
            cold = yield from self._cold.split(below.spans, cold_wanted)
            return joined_parts([cold, self._hot.split(above.spans, hot_wanted)])
        last = len(below) - 1
        count = yield from self._cold.measure(below.spans[last:])
        measured = joined_measures([count, self._hot.measure(above.spans[:1])])
        total = max(int(measured.counts.sum()), 1)
        parts = max(1, min(int(wanted[last]), total))
        share = round(parts * int(measured.counts[0]) / total)
        cold_wanted[last], hot_wanted[0] = max(1, share), max(1, parts - share)
        cold = yield from self._cold.split(below.spans, cold_wanted)
        hot = self._hot.split(above.spans, hot_wanted)
        halves = joined_parts([_some(cold, last, last + 1), _some(hot, 0, 1)])
        across = _as_one(spans[last : last + 1], halves, total, parts)
        return joined_parts([_some(cold, 0, last), across, _some(hot, 1, len(above))])


def _some(parts: Parts, first: int, end: int) -> Parts:
    """The parts of some consecutive spans."""
    start, stop = int(parts.offsets[first]), int(parts.offsets[end])
    return Parts(
        parts.offsets[first : end + 1] - start,
        parts.upper[start:stop],
        parts.counts[start:stop],
        parts.fingerprints[start:stop],
    )


def _as_one(span: Spans, halves: Parts, count: int, wanted: int) -> Parts:
    """The parts of the two halves of a span as its parts, not more than it should have."""
    whole = np.array([0, len(halves.upper)])
    pieces = parts_as_spans(span, Parts(whole, halves.upper, halves.counts, halves.fingerprints))
    owners = np.zeros(len(pieces), np.int64)
    atoms = Atoms(owners, pieces, halves.counts, halves.fingerprints)
    return merged(Cut(span, np.array([count]), np.array([wanted])), atoms)
