"""The answer to a payload: its ranges, assembled from pieces in any order, and its bytes.

A piece is a range with a fingerprint or an item set. The range between two pieces is settled and
becomes a Skip. A bound that the encoding cannot express after the one before it is
reached through others (rulings on WAKU-SYNC, "Delta-encoded bounds"): more Skips on the way to a
piece, more sets of the same kind inside a set. Fingerprints need no such help, since they are only
made over spans whose upper bound follows their lower one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import Payload, RangeKind, Ranges, encode, expressible
from reconcile.ids import (
    HASH_DTYPE,
    HASH_WORDS,
    OPAQUE_HASH,
    Ints,
    SyncIds,
    Words,
    from_opaque,
    less,
    rows_differ,
)
from reconcile.view import Items, SpanParts, Spans

LARGEST_MERGED_SET = 256
"""Items, about, up to which touching sets are put together: together they take fewer bytes."""

_PLACE_BITS = 32
_PLACES = np.arange(32)


def piece_keys(sources: Ints, places: Ints | int = 0) -> Ints:
    """Return keys of pieces that answer these questions, at these places in each answer."""
    return np.asarray((sources << _PLACE_BITS) + places)


@dataclass(frozen=True, slots=True)
class FingerprintPieces:
    """The ranges, k of them, that are answered by fingerprints.

    Attributes:
        keys: (k,) which question each answers, and its place in that answer; ascending.
        lower: (k,) bounds.
        upper: (k,) bounds.
        fingerprints: (k, 4).
    """

    keys: Ints
    lower: SyncIds
    upper: SyncIds
    fingerprints: Words

    def __len__(self) -> int:
        return len(self.keys)

    def before(self, cut: int) -> FingerprintPieces:
        """Return the pieces that answer earlier questions."""
        end = int(np.searchsorted(self.keys, cut << _PLACE_BITS))
        return FingerprintPieces(
            self.keys[:end], self.lower[:end], self.upper[:end], self.fingerprints[:end]
        )


@dataclass(frozen=True, slots=True)
class SetPieces:
    """The ranges, k of them, that are answered by their items.

    Attributes:
        keys: (k,) which question each answers, and its place in that answer; ascending.
        lower: (k,) bounds.
        upper: (k,) bounds.
        counts: (k,) items of each.
        items: all items, one set after the other.
        reconciled: whether the peer's items in them are known already.
    """

    keys: Ints
    lower: SyncIds
    upper: SyncIds
    counts: Ints
    items: SyncIds
    reconciled: bool

    def __len__(self) -> int:
        return len(self.keys)

    def before(self, cut: int) -> SetPieces:
        """Return the pieces that answer earlier questions."""
        end = int(np.searchsorted(self.keys, cut << _PLACE_BITS))
        items = self.items[: int(self.counts[:end].sum())]
        return SetPieces(
            self.keys[:end],
            self.lower[:end],
            self.upper[:end],
            self.counts[:end],
            items,
            self.reconciled,
        )


def _merge(pieces: SetPieces) -> SetPieces:
    """Merge sets that touch, as long as they are not too large."""
    if len(pieces) < 2:
        return pieces
    begins = np.ones(len(pieces), np.bool_)
    begins[1:] = pieces.lower.timestamps[1:] != pieces.upper.timestamps[:-1]
    if not begins.all():
        begins[1:] |= rows_differ(pieces.lower.words[1:], pieces.upper.words[:-1])
    if begins.all():
        return pieces
    total = np.cumsum(pieces.counts)
    filled = (total - pieces.counts) // LARGEST_MERGED_SET
    begins[1:] |= filled[1:] != filled[:-1]
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(pieces)) - 1
    lower, upper = pieces.lower[starts], pieces.upper[lasts]
    awkward = (lasts > starts) & ~expressible(lower, upper)
    if awkward.any():
        begins |= np.repeat(awkward, lasts - starts + 1)
        starts = np.flatnonzero(begins)
        lasts = np.append(starts[1:], len(pieces)) - 1
        lower, upper = pieces.lower[starts], pieces.upper[lasts]
    counts = np.add.reduceat(pieces.counts, starts)
    return SetPieces(pieces.keys[starts], lower, upper, counts, pieces.items, pieces.reconciled)


@dataclass(frozen=True, slots=True)
class ComposedPayload:
    """The payload that pieces make.

    Attributes:
        ranges: how many.
        items: in all sets.
        payload: encoded; empty without ranges, None if there are more of either than allowed.
    """

    ranges: int
    items: int
    payload: bytes | None


def compose(
    cluster: int,
    shards: tuple[int, ...],
    fingerprints: list[FingerprintPieces],
    sets: list[SetPieces],
    allowed: tuple[int, int],
) -> ComposedPayload:
    """Assemble pieces and encode them.

    Args:
        cluster: sent with the payload.
        shards: likewise.
        fingerprints: pieces in several orders of making.
        sets: likewise.
        allowed: how many ranges and items a payload may have.
    """
    ranges = assemble(fingerprints, sets)
    count, items = len(ranges), len(ranges.items)
    if count > allowed[0] or items > allowed[1]:
        return ComposedPayload(count, items, None)
    return ComposedPayload(count, items, encode(Payload(cluster, shards, ranges)))


def assemble(fingerprints: list[FingerprintPieces], sets: list[SetPieces]) -> Ranges:
    """Assemble all pieces in the order of their keys, with Skips between them."""
    fingerprints = [pieces for pieces in fingerprints if len(pieces)]
    sets = [_merge(pieces) for pieces in sets if len(pieces)]
    groups: list[FingerprintPieces | SetPieces] = [*fingerprints, *sets]
    if not groups:
        return Ranges.empty()
    lower, upper = _bounds(groups)
    none = Ranges.empty()
    prints = np.concatenate([none.fingerprints, *(pieces.fingerprints for pieces in fingerprints)])
    counts = np.concatenate([none.item_counts, *(pieces.counts for pieces in sets)])
    flags = [np.full(len(pieces), pieces.reconciled) for pieces in sets]
    reconciled = np.concatenate([none.reconciled, *flags])
    items = SyncIds.join([pieces.items for pieces in sets])
    is_set = np.arange(len(lower)) >= len(prints)
    if len(groups) > 1:
        order = np.concatenate([group.keys for group in groups]).argsort(kind="stable")
        is_set = order >= len(prints)
        lower, upper = lower.take(order), upper.take(order)
        if len(fingerprints) > 1:
            prints = _rows(prints, order[~is_set])
        if len(sets) > 1:
            set_order = order[is_set] - len(prints)
            items = items[_segments(counts, set_order)]
            counts, reconciled = counts[set_order], reconciled[set_order]
    kinds = is_set.astype(np.uint8) + np.uint8(RangeKind.FINGERPRINT)
    bounds, kinds = _with_skips(lower, upper, kinds)
    if bounds.hashes is None:
        return Ranges(bounds.ids(), kinds, prints, counts, reconciled, items)
    return _expressed(Ranges(bounds.ids(), kinds, prints, counts, reconciled, items))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The bounds of pieces; hashes are None where all are zero, as nearly always.

    Attributes:
        timestamps: (n,).
        hashes: (n,) opaque.
    """

    timestamps: Ints
    hashes: NDArray[np.void] | None

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, order: Ints) -> _Bounds:
        """Return some, in another order."""
        hashes = None if self.hashes is None else self.hashes.take(order)
        return _Bounds(self.timestamps.take(order), hashes)

    def ids(self) -> SyncIds:
        """Return the same as `SyncIds`."""
        if self.hashes is None:
            return SyncIds.at_times(self.timestamps)
        return SyncIds(self.timestamps, from_opaque(self.hashes))


def _bounds(groups: list[FingerprintPieces | SetPieces]) -> tuple[_Bounds, _Bounds]:
    """Return lower and upper bounds of all pieces, one group after the other."""
    every = [[group.lower for group in groups], [group.upper for group in groups]]
    filled = any(ids.has_hashes() for side in every for ids in side)
    lower, upper = (
        _Bounds(
            np.concatenate([ids.timestamps for ids in side]),
            np.concatenate([ids.opaque for ids in side]) if filled else None,
        )
        for side in every
    )
    return lower, upper


def _rows(words: Words, order: Ints) -> Words:
    """Return some rows of hashes as words, in another order."""
    opaque = words.view(OPAQUE_HASH).reshape(-1).take(order)
    return opaque.view(np.uint64).reshape(-1, HASH_WORDS)


def _segments(counts: Ints, order: Ints) -> Ints:
    """Return indices that bring segments of such lengths into another order."""
    starts = np.cumsum(counts) - counts
    lengths = counts[order]
    ends = np.cumsum(lengths)
    return np.repeat(starts[order] - (ends - lengths), lengths) + np.arange(lengths.sum())


def _with_skips(
    lower: _Bounds, upper: _Bounds, kinds: NDArray[np.uint8]
) -> tuple[_Bounds, NDArray[np.uint8]]:
    """Insert a Skip before each piece that does not begin where the one before it ended."""
    apart = np.empty(len(lower), np.bool_)
    apart[0] = lower.timestamps[0] != 0
    np.not_equal(lower.timestamps[1:], upper.timestamps[:-1], out=apart[1:])
    if lower.hashes is not None and upper.hashes is not None:
        words = lower.hashes.view(np.uint64).reshape(-1, HASH_WORDS)
        above = upper.hashes.view(np.uint64).reshape(-1, HASH_WORDS)
        apart[0] |= words[0].any()
        apart[1:] |= rows_differ(words[1:], above[:-1])
    gaps = apart.nonzero()[0]
    if not len(gaps):
        return upper, kinds
    places = np.cumsum(apart) + np.arange(len(apart))
    skips = places.take(gaps) - 1
    total = len(lower) + len(gaps)
    timestamps, all_kinds = np.empty(total, np.int64), np.zeros(total, np.uint8)
    all_kinds[places] = kinds
    timestamps[places] = upper.timestamps
    timestamps[skips] = lower.timestamps.take(gaps)
    if lower.hashes is None or upper.hashes is None:
        return _Bounds(timestamps, None), all_kinds
    hashes = np.empty(total, OPAQUE_HASH)
    hashes[places] = upper.hashes
    hashes[skips] = lower.hashes.take(gaps)
    return _Bounds(timestamps, hashes), all_kinds


def _expressed(ranges: Ranges) -> Ranges:
    """Insert bounds so that each can be expressed."""
    lower = ranges.lower
    bad = np.flatnonzero(~expressible(lower, ranges.upper))
    if not len(bad):
        return ranges
    assert not (ranges.kinds[bad] == RangeKind.FINGERPRINT).any(), (
        "a fingerprint's bound is awkward"
    )
    rows, between = reach_all(lower[bad], ranges.upper[bad])
    before = bad[rows]
    added = np.bincount(before, minlength=len(ranges))
    places = np.arange(len(ranges)) + np.cumsum(added)
    total = len(ranges) + len(rows)
    is_new = np.ones(total, np.bool_)
    is_new[places] = False
    kinds = np.repeat(ranges.kinds, added + 1)
    timestamps = np.empty(total, np.int64)
    opaque = np.empty(total, ranges.upper.opaque.dtype)
    timestamps[places], opaque[places] = ranges.upper.timestamps, ranges.upper.opaque
    timestamps[is_new], opaque[is_new] = between.timestamps, between.opaque
    upper = SyncIds(timestamps, from_opaque(opaque))
    is_set = ranges.kinds == RangeKind.ITEM_SET
    set_added = added[is_set]
    counts, reconciled = ranges.item_counts, ranges.reconciled
    if set_added.any():
        reconciled = np.repeat(reconciled, set_added + 1)
        counts = _cut_sets(counts, set_added, upper[kinds == RangeKind.ITEM_SET], ranges.items)
    return Ranges(upper, kinds, ranges.fingerprints, counts, reconciled, ranges.items)


def _cut_sets(counts: Ints, added: Ints, upper: SyncIds, items: SyncIds) -> Ints:
    """Return the counts of sets of which some were cut, with these upper bounds."""
    cut = np.repeat(counts, added + 1)
    item_at = np.cumsum(counts) - counts
    piece_at = np.arange(len(counts)) + np.cumsum(added) - added
    for row in np.flatnonzero(added):
        start = int(item_at[row])
        mine = items[start : start + int(counts[row])]
        first = int(piece_at[row])
        done = 0
        for piece in range(first, first + int(added[row])):
            bound = upper[piece : piece + 1]
            smaller = int(np.count_nonzero(less(mine, bound[np.zeros(len(mine), np.int64)])))
            cut[piece] = smaller - done
            done = smaller
        cut[first + int(added[row])] = int(counts[row]) - done
    return cut


def reach_all(previous: SyncIds, targets: SyncIds) -> tuple[Ints, SyncIds]:
    """Return the bounds between each of some bounds and a greater one, without the last step.

    Returns:
        (k,) the row that each belongs to, ascending, and (k,) the bounds.
    """
    later = targets.timestamps != previous.timestamps
    unlike = targets.hashes != previous.hashes
    first = np.where(later, 0, np.argmax(unlike, axis=1))
    wanted = np.zeros((len(targets), 33), np.bool_)
    wanted[:, 0] = later
    wanted[:, 1:] = (targets.hashes != 0) & (first[:, None] <= _PLACES)
    last = 32 - np.argmax(wanted[:, ::-1], axis=1)
    wanted[np.arange(len(targets)), last] = False
    rows, lengths = np.nonzero(wanted)
    hashes = np.where(lengths[:, None] > _PLACES, targets.hashes[rows], HASH_DTYPE(0))
    return rows, SyncIds(targets.timestamps[rows], np.ascontiguousarray(hashes))


# Pieces of what a view returned

GAUGE_PARTS = 64
"""Into how many parts a gauge is cut before they are put together to larger and larger ones."""

_GAUGE_STARTS = np.array([0, 1, 2, 4, 8, 16, 32])
_MIN_GAUGED_ITEMS = 64
_FINER_BITS = 8


def whole_sets(sources: Ints, spans: Spans, items: Items) -> SetPieces:
    """Return unreconciled sets of all IDs in some questions' spans."""
    counts = items.offsets[1:] - items.offsets[:-1]
    return SetPieces(piece_keys(sources), spans.lower, spans.upper, counts, items.ids, False)


def shown_sets(sources: Ints, spans: Spans, items: Items) -> SetPieces:
    """Return reconciled sets of all IDs in spans inside some questions'."""
    counts = items.offsets[1:] - items.offsets[:-1]
    return SetPieces(piece_keys(sources), spans.lower, spans.upper, counts, items.ids, True)


def choose_gauges(parts: SpanParts, gauges: int) -> Ints:
    """Choose some parts, evenly spread, that are large enough to be cut ever finer."""
    large = np.flatnonzero(parts.counts >= _MIN_GAUGED_ITEMS)
    if not gauges or not len(large):
        return large[:0]
    return large[:: -(-len(large) // gauges)]


def part_pieces(
    sources: Ints, spans: Spans, parts: SpanParts, gauges: Ints, finer: SpanParts | None
) -> tuple[FingerprintPieces, SetPieces]:
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


def _cascades(spans: Spans, finer: SpanParts) -> tuple[Ints, Spans, Ints, NDArray[np.uint64]]:
    """Return parts of each span that grow by doubling, with the row of the span of each.

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
    """Return no sets."""
    nothing = np.empty(0, np.int64)
    return SetPieces(nothing, SyncIds.empty(), SyncIds.empty(), nothing, SyncIds.empty(), False)
