"""Pieces of an answer from what a view returned."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reconcile.algorithm.answer import FingerprintPieces, SetPieces, piece_keys
from reconcile.codec import expressible
from reconcile.ids import HASH_DTYPE, Ints, SyncIds
from reconcile.view import Items, Parts, Spans
from storenode.message.limits import HASH_BYTES

GAUGE_PARTS = 64
"""Into how many parts a gauge is cut before they are put together to larger and larger ones."""

_GAUGE_STARTS = np.array([0, 1, 2, 4, 8, 16, 32])
_MIN_GAUGED_ITEMS = 64
_FINER_BITS = 8


def whole_sets(sources: Ints, spans: Spans, items: Items) -> SetPieces:
    """Unreconciled sets of all that is held in some questions' spans."""
    counts = items.offsets[1:] - items.offsets[:-1]
    return SetPieces(piece_keys(sources), spans.lower, spans.upper, counts, items.ids, False)


def shown_sets(sources: Ints, spans: Spans, items: Items) -> SetPieces:
    """Reconciled sets of all that is held in spans inside some questions'."""
    counts = items.offsets[1:] - items.offsets[:-1]
    return SetPieces(piece_keys(sources), spans.lower, spans.upper, counts, items.ids, True)


def part_spans(lower: SyncIds, parts: Parts) -> Spans:
    """The span of every part; `lower` are the lower bounds of the spans that were cut."""
    starts, upper = parts.offsets[:-1], parts.upper
    timestamps = np.empty_like(upper.timestamps)
    timestamps[1:] = upper.timestamps[:-1]
    timestamps[starts] = lower.timestamps
    if lower.plain and upper.plain:
        return Spans(SyncIds.at_times(timestamps), upper)
    hashes = np.empty((len(timestamps), HASH_BYTES), HASH_DTYPE)
    hashes[1:] = upper.hashes[:-1]
    hashes[starts] = lower.hashes
    return Spans(SyncIds(timestamps, hashes), upper)


def gauged(parts: Parts, gauges: int) -> Ints:
    """Some parts, evenly spread, that are large enough to be cut ever finer."""
    large = np.flatnonzero(parts.counts >= _MIN_GAUGED_ITEMS)
    if not gauges or not len(large):
        return large[:0]
    return large[:: -(-len(large) // gauges)]


def part_pieces(
    sources: Ints, spans: Spans, parts: Parts, gauges: Ints, finer: Parts | None
) -> tuple[FingerprintPieces, SetPieces]:
    """Fingerprints of parts, and empty sets where a part holds nothing.

    Args:
        sources: the question that each cut span belongs to.
        spans: of the parts.
        parts: what the view returned.
        gauges: parts that are replaced by finer ones.
        finer: the parts of those.
    """
    owners = sources.repeat(parts.offsets[1:] - parts.offsets[:-1])
    places = np.arange(len(owners)) << _FINER_BITS
    keys, counts, prints = piece_keys(owners, places), parts.counts, parts.fingerprints
    if finer is not None:
        rows, cut, cut_counts, cut_prints = _cascades(spans[gauges], finer)
        keep = np.ones(len(keys), np.bool_)
        keep[gauges[np.unique(rows)]] = False
        new_keys = keys[gauges[rows]] + np.arange(len(rows)) % (1 << _FINER_BITS)
        keys = np.concatenate((keys[keep], new_keys))
        order = np.argsort(keys)
        keys = keys[order]
        spans = Spans(
            SyncIds.join([spans.lower[keep], cut.lower])[order],
            SyncIds.join([spans.upper[keep], cut.upper])[order],
        )
        counts = np.concatenate((counts[keep], cut_counts))[order]
        prints = np.concatenate((prints[keep], cut_prints))[order]
    if np.count_nonzero(counts) == len(counts):
        return FingerprintPieces(keys, spans.lower, spans.upper, prints), no_sets()
    empty = counts == 0
    hollow = spans[empty]
    spans = spans[~empty]
    return (
        FingerprintPieces(keys[~empty], spans.lower, spans.upper, prints[~empty]),
        SetPieces(keys[empty], hollow.lower, hollow.upper, counts[empty], SyncIds.empty(), False),
    )


def _cascades(spans: Spans, finer: Parts) -> tuple[Ints, Spans, Ints, NDArray[np.uint64]]:
    """Parts of each span that grow by doubling, with the row of the span that each is in.

    A span is left out if a bound of its larger parts cannot be expressed.
    """
    sizes = np.diff(finer.offsets)
    rows, at = np.nonzero(sizes[:, None] > _GAUGE_STARTS)
    starts = finer.offsets[rows] + _GAUGE_STARTS[at]
    upper = finer.upper[np.append(starts[1:], finer.offsets[-1]) - 1]
    timestamps, hashes = np.empty(len(rows), np.int64), np.empty((len(rows), 32), HASH_DTYPE)
    timestamps[1:], hashes[1:] = upper.timestamps[:-1], upper.hashes[:-1]
    firsts = at == 0
    timestamps[firsts], hashes[firsts] = spans.lower.timestamps, spans.lower.hashes
    lower = SyncIds(timestamps, hashes)
    awkward = np.bincount(rows[~expressible(lower, upper)], minlength=len(spans)) > 0
    keep = ~awkward[rows]
    counts = np.add.reduceat(finer.counts, starts)
    prints = np.bitwise_xor.reduceat(finer.fingerprints, starts, axis=0)
    return rows[keep], Spans(lower[keep], upper[keep]), counts[keep], prints[keep]


def no_sets() -> SetPieces:
    """No sets at all."""
    nothing = np.empty(0, np.int64)
    return SetPieces(nothing, SyncIds.empty(), SyncIds.empty(), nothing, SyncIds.empty(), False)
