"""The answer to a payload: its ranges, assembled from pieces in any order, and its bytes.

A piece is a range with a fingerprint or an item set. The range between two pieces is settled and
becomes a Skip. A bound that the encoding cannot express after the one before it is
reached through others (rulings on WAKU-SYNC, "Delta-encoded bounds"): more Skips on the way to a
piece, more sets of the same kind inside a set. Fingerprints need no such help, since they are only
made over spans whose upper bound follows their lower one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import RangeKind, Ranges, bridge, expressible
from reconcile.ids import Bools, Ints, SyncIds, Words, match, rows_differ
from reconcile.view import SpanParts, Spans, chain_spans, no_fingerprints

LARGEST_MERGED_SET = 256
"""Items, about, up to which touching sets are put together: together they take fewer bytes."""

_PLACE_BITS = 32


def piece_keys(sources: Ints, places: Ints | int = 0) -> Ints:
    """Return keys of pieces that answer these questions, at these places in each answer."""
    return np.asarray((sources << _PLACE_BITS) + places)


@dataclass(frozen=True, slots=True)
class AnswerPieces:
    """The ranges, k of them, that are answered alike.

    Attributes:
        keys: (k,) which question each answers, and its place in that answer; ascending.
        spans: (k,).
        kinds: (k,), of ``RangeKind``.
        fingerprints: (k, 4); zeros for sets.
        counts: (k,) the items of each set.
        items: the items of all sets, one set after the other.
        reconciled: (k,) whether the peer's items in a set are known already.
    """

    keys: Ints
    spans: Spans
    kinds: NDArray[np.uint8]
    fingerprints: Words
    counts: Ints
    items: SyncIds
    reconciled: Bools

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of_prints(
        cls, keys: Ints, spans: Spans, fingerprints: Words, kind: int = RangeKind.FINGERPRINT
    ) -> AnswerPieces:
        """Return ranges that are answered by fingerprints, or without those by a Skip."""
        kinds, counts = np.full(len(keys), kind, np.uint8), np.zeros(len(keys), np.int64)
        never = np.zeros(len(keys), np.bool_)
        return cls(keys, spans, kinds, fingerprints, counts, SyncIds.empty(), never)

    @classmethod
    def of_sets(
        cls, keys: Ints, spans: Spans, counts: Ints, items: SyncIds, reconciled: bool
    ) -> AnswerPieces:
        """Return ranges that are answered by their items."""
        kinds = np.full(len(keys), RangeKind.ITEM_SET, np.uint8)
        prints = no_fingerprints(len(keys))
        return cls(keys, spans, kinds, prints, counts, items, np.full(len(keys), reconciled))

    @classmethod
    def join(cls, parts: Sequence[AnswerPieces]) -> AnswerPieces:
        """Return all pieces, one part after the other."""
        lower = SyncIds.join([part.spans.lower for part in parts])
        upper = SyncIds.join([part.spans.upper for part in parts])
        return cls(
            np.concatenate([part.keys for part in parts]),
            Spans(lower, upper),
            np.concatenate([part.kinds for part in parts]),
            np.concatenate([part.fingerprints for part in parts]),
            np.concatenate([part.counts for part in parts]),
            SyncIds.join([part.items for part in parts]),
            np.concatenate([part.reconciled for part in parts]),
        )

    def take(self, order: Ints) -> AnswerPieces:
        """Return some pieces, in another order."""
        counts = self.counts.take(order)
        items = self.items
        if len(items):
            starts, ends = np.cumsum(self.counts) - self.counts, np.cumsum(counts)
            items = items[
                np.repeat(starts[order] - ends + counts, counts) + np.arange(counts.sum())
            ]
        return AnswerPieces(
            self.keys.take(order),
            Spans(self.spans.lower.take(order), self.spans.upper.take(order)),
            self.kinds.take(order),
            self.fingerprints.take(order, 0),
            counts,
            items,
            self.reconciled.take(order),
        )

    def before(self, cut: int) -> AnswerPieces:
        """Return the pieces that answer earlier questions."""
        return self.take(np.arange(self.keys.searchsorted(cut << _PLACE_BITS)))

    def merged(self) -> AnswerPieces:
        """Return the sets, of which those that touch are put together if they are small."""
        lower, upper = self.spans.lower, self.spans.upper
        begins = np.ones(len(self), np.bool_)
        begins[1:] = lower.timestamps[1:] != upper.timestamps[:-1]
        begins[1:] |= rows_differ(lower.words[1:], upper.words[:-1])
        filled = (np.cumsum(self.counts) - self.counts) // LARGEST_MERGED_SET
        begins[1:] |= filled[1:] != filled[:-1]
        starts = np.flatnonzero(begins)
        lasts = np.append(starts[1:], len(self)) - 1
        awkward = (lasts > starts) & ~expressible(lower[starts], upper[lasts])
        begins |= np.repeat(awkward, lasts - starts + 1)
        starts = np.flatnonzero(begins)
        spans = Spans(lower[starts], upper[np.append(starts[1:], len(self)) - 1])
        counts = np.add.reduceat(self.counts, starts)
        reconciled = bool(self.reconciled[0])
        return AnswerPieces.of_sets(self.keys[starts], spans, counts, self.items, reconciled)


def assemble(pieces: list[AnswerPieces]) -> Ranges:
    """Assemble all pieces in the order of their keys, with Skips between them."""
    sets = RangeKind.ITEM_SET
    parts = [part.merged() if part.kinds[0] == sets else part for part in pieces if len(part)]
    return _expressed(_with_skips(_ordered(parts))) if parts else Ranges.empty()


def _ordered(parts: list[AnswerPieces]) -> AnswerPieces:
    joined = AnswerPieces.join(parts)
    return joined.take(joined.keys.argsort(kind="stable")) if len(parts) > 1 else joined


def _with_skips(pieces: AnswerPieces) -> Ranges:
    """Insert a Skip before each piece that does not begin where the one before it ended."""
    lower, upper = pieces.spans.lower, pieces.spans.upper
    apart = np.empty(len(pieces), np.bool_)
    apart[0] = lower.timestamps[0] or lower.words[0].any()
    apart[1:] = lower.timestamps[1:] != upper.timestamps[:-1]
    if not (lower.plain and upper.plain):
        apart[1:] |= rows_differ(lower.words[1:], upper.words[:-1])
    gaps = apart.nonzero()[0]
    if len(gaps):
        bounds, none = lower.take(gaps), no_fingerprints(len(gaps))
        spans = Spans(bounds, bounds)
        skips = AnswerPieces.of_prints(pieces.keys[gaps], spans, none, RangeKind.SKIP)
        pieces = _ordered([skips, pieces])
    return Ranges(
        pieces.spans.upper,
        pieces.kinds,
        pieces.fingerprints,
        pieces.counts,
        pieces.reconciled,
        pieces.items,
    )


def _expressed(ranges: Ranges) -> Ranges:
    """Insert bounds so that each can be expressed."""
    sources, upper = bridge(ranges.lower, ranges.upper)
    if len(sources) == len(ranges):
        return ranges
    again = sources[1:][sources[1:] == sources[:-1]]
    assert (ranges.kinds[again] != RangeKind.FINGERPRINT).all(), "a fingerprint's bound is awkward"
    return Ranges(
        upper,
        ranges.kinds[sources],
        ranges.fingerprints[sources],
        np.diff(match(ranges.items, upper).places, prepend=0),
        ranges.reconciled[sources],
        ranges.items,
    )


# Pieces of what a view returned

GAUGE_PARTS = 64
"""Into how many parts a gauge is cut before they are put together to larger and larger ones."""

_GAUGE_STARTS = np.array([0, 1, 2, 4, 8, 16, 32])
_MIN_GAUGED_ITEMS = 64
_FINER_BITS = 8


def choose_gauges(parts: SpanParts, gauges: int) -> Ints:
    """Choose some parts, evenly spread, that are large enough to be cut ever finer."""
    large = np.flatnonzero(parts.counts >= _MIN_GAUGED_ITEMS)
    if not gauges or not len(large):
        return large[:0]
    return large[:: -(-len(large) // gauges)]


def part_pieces(
    sources: Ints, spans: Spans, parts: SpanParts, gauges: Ints, finer: SpanParts | None
) -> list[AnswerPieces]:
    """Return fingerprints of parts, and empty sets where a part has no ID.

    Args:
        sources: the question that each cut span belongs to.
        spans: the spans of the parts.
        parts: the answer of the view.
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
        order = np.argsort(np.concatenate((keys[keep], new_keys)))
        keys = np.concatenate((keys[keep], new_keys))[order]
        spans = Spans(
            SyncIds.join([spans.lower[keep], cut.lower])[order],
            SyncIds.join([spans.upper[keep], cut.upper])[order],
        )
        counts = np.concatenate((counts[keep], cut_counts))[order]
        prints = np.concatenate((prints[keep], cut_prints))[order]
    full, hollow = (counts != 0).nonzero()[0], (counts == 0).nonzero()[0]
    nothing = counts[hollow], SyncIds.empty()
    return [
        AnswerPieces.of_prints(keys[full], spans[full], prints[full]),
        AnswerPieces.of_sets(keys[hollow], spans[hollow], *nothing, False),
    ]


def _cascades(spans: Spans, finer: SpanParts) -> tuple[Ints, Spans, Ints, NDArray[np.uint64]]:
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
