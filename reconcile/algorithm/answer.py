"""The answer to a payload: its ranges, assembled from pieces in any order.

A piece is a range with a fingerprint or an item set. The range between two pieces is settled and
becomes a Skip. A bound that the encoding cannot express after the one before it is
reached through others (rulings on WAKU-SYNC, "Delta-encoded bounds"): more Skips on the way to a
piece, more sets of the same kind inside a set. Fingerprints need no such help, since they are only
made over spans whose upper bound follows their lower one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reconcile.codec import RangeKind, Ranges, bridge, expressible
from reconcile.ids import LOWEST, Ints, SyncIds, Words, differ, order_of
from reconcile.view import SpanParts, Spans, chain_spans, no_fingerprints

LARGEST_MERGED_SET = 256
"""Items, about, up to which touching sets are put together: together they take fewer bytes."""

GAUGE_PARTS = 64
"""The number of parts into which a gauge is cut before they are merged into larger ones."""

_GAUGE_STARTS = np.array([0, 1, 2, 4, 8, 16, 32])
_MIN_GAUGED_ITEMS = 64


def assemble(pieces: list[Ranges]) -> Ranges:
    """Assemble pieces, each of one kind of ranges that ascend, with Skips between them."""
    sets = RangeKind.ITEM_SET
    parts = [_merged(part) if part.kinds[0] == sets else part for part in pieces if len(part)]
    if not parts:
        return Ranges.empty()
    joined = Ranges.join(parts)
    if len(parts) > 1:
        joined = joined.take(order_of(joined.lower))
    return _expressed(_with_skips(joined))


def _merged(sets: Ranges) -> Ranges:
    """Return item sets, of which those that touch are put together if they are small."""
    lower, upper = sets.lower, sets.upper
    begins = np.ones(len(sets), np.bool_)
    begins[1:] = differ(lower[1:], upper[:-1])
    filled = (np.cumsum(sets.counts) - sets.counts) // LARGEST_MERGED_SET
    begins[1:] |= filled[1:] != filled[:-1]
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(sets)) - 1
    awkward = (lasts > starts) & ~expressible(lower[starts], upper[lasts])
    begins |= np.repeat(awkward, lasts - starts + 1)
    starts = np.flatnonzero(begins)
    spans = Spans(lower[starts], upper[np.append(starts[1:], len(sets)) - 1])
    counts = np.add.reduceat(sets.counts, starts)
    return Ranges.of_sets(spans, counts, sets.items, reconciled=bool(sets.reconciled[0]))


def _with_skips(pieces: Ranges) -> Ranges:
    """Insert a Skip before each piece that does not begin where the one before it ended."""
    lower = pieces.lower
    ends = SyncIds.join([SyncIds.of([LOWEST]), pieces.upper[:-1]])
    gaps = differ(lower, ends).nonzero()[0]
    if len(gaps):
        bounds = lower.take(gaps)
        spans, none = Spans(bounds, bounds), no_fingerprints(len(gaps))
        both = Ranges.join([pieces, Ranges.of_prints(spans, none, RangeKind.SKIP)])
        order = np.concatenate((2 * np.arange(len(pieces)) + 1, 2 * gaps)).argsort()
        pieces = both.take(order)
    return replace(pieces, starts=None)


def _expressed(ranges: Ranges) -> Ranges:
    """Insert bounds so that each can be expressed."""
    rows, upper = bridge(ranges.lower, ranges.upper)
    if len(rows) == len(ranges):
        return ranges
    again = rows[1:][rows[1:] == rows[:-1]]
    assert (ranges.kinds[again] != RangeKind.FINGERPRINT).all(), "a fingerprint's bound is awkward"
    spans = chain_spans(SyncIds.of([LOWEST]), np.zeros(1, np.int64), upper)
    return replace(ranges.cut(rows, spans), starts=None)


def choose_gauges(parts: SpanParts, gauges: int) -> Ints:
    """Choose some parts, evenly spread, that are large enough to be cut ever finer."""
    large = np.flatnonzero(parts.counts >= _MIN_GAUGED_ITEMS)
    if not gauges or not len(large):
        return large[:0]
    return large[:: -(-len(large) // gauges)]


def part_pieces(
    spans: Spans, parts: SpanParts, gauges: Ints, finer: SpanParts | None
) -> list[Ranges]:
    """Return fingerprints of parts, and empty sets where a part has no ID.

    Args:
        spans: the spans of the parts.
        parts: the answer of the view.
        gauges: parts that are replaced by finer ones.
        finer: the parts of those.
    """
    if finer is None:
        return _prints_or_empty(spans, parts.counts, parts.fingerprints)
    rows, cascade, counts, prints = _cascades(spans[gauges], finer)
    kept = np.ones(len(parts.counts), np.bool_)
    kept[gauges[np.unique(rows)]] = False
    rest = spans[kept], parts.counts[kept], parts.fingerprints[kept]
    return _prints_or_empty(*rest) + _prints_or_empty(cascade, counts, prints)


def _prints_or_empty(spans: Spans, counts: Ints, prints: Words) -> list[Ranges]:
    full, hollow = (counts != 0).nonzero()[0], (counts == 0).nonzero()[0]
    empty = Ranges.of_sets(spans[hollow], counts[hollow], SyncIds.empty(), reconciled=False)
    return [Ranges.of_prints(spans[full], prints[full]), empty]


def _cascades(spans: Spans, finer: SpanParts) -> tuple[Ints, Spans, Ints, Words]:
    """Return parts of each span that grow by doubling, with the row of the span of each.

    A span is left out if a bound of its larger parts cannot be expressed.
    """
    sizes = np.diff(finer.offsets)
    rows, at = np.nonzero(sizes[:, None] > _GAUGE_STARTS)
    starts = finer.offsets[rows] + _GAUGE_STARTS[at]
    upper = finer.upper[np.append(starts[1:], finer.offsets[-1]) - 1]
    lower = chain_spans(spans.lower, (at == 0).nonzero()[0], upper).lower
    awkward = np.bincount(rows[~expressible(lower, upper)], minlength=len(spans)) > 0
    keep = ~awkward[rows]
    counts = np.add.reduceat(finer.counts, starts)
    prints = np.bitwise_xor.reduceat(finer.fingerprints, starts, axis=0)
    return rows[keep], Spans(lower[keep], upper[keep]), counts[keep], prints[keep]
