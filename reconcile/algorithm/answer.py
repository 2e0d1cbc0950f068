"""An answer: its ranges, put together from pieces in any order of making, and its bytes.

A piece is a range that says something: a fingerprint or an item set. What lies between two pieces
is settled and becomes a Skip. A bound that the encoding cannot express after the one before it is
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

LARGEST_MERGED_SET = 256
"""Items, about, up to which touching sets are put together: together they take fewer bytes."""

_PLACE_BITS = 32
_PLACES = np.arange(32)


def piece_keys(sources: Ints, places: Ints | int = 0) -> Ints:
    """Keys of pieces that answer these questions, at these places in each answer."""
    return np.asarray((sources << _PLACE_BITS) + places)


@dataclass(frozen=True, slots=True)
class FingerprintPieces:
    """k ranges with the fingerprints of what is held in them.

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
        """Those that answer earlier questions."""
        end = int(np.searchsorted(self.keys, cut << _PLACE_BITS))
        return FingerprintPieces(
            self.keys[:end], self.lower[:end], self.upper[:end], self.fingerprints[:end]
        )


@dataclass(frozen=True, slots=True)
class SetPieces:
    """k ranges with the items that are held in them.

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
        """Those that answer earlier questions."""
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


def _merged(pieces: SetPieces) -> SetPieces:
    """Sets that touch as one set, as long as that is not too large."""
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
class Written:
    """What pieces come to.

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
) -> Written:
    """Put pieces together and encode them.

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
        return Written(count, items, None)
    return Written(count, items, encode(Payload(cluster, shards, ranges)))


def assemble(fingerprints: list[FingerprintPieces], sets: list[SetPieces]) -> Ranges:
    """All pieces in the order of their keys, with Skips between them."""
    fingerprints = [pieces for pieces in fingerprints if len(pieces)]
    sets = [_merged(pieces) for pieces in sets if len(pieces)]
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
    """Bounds; hashes are None where all are zero, as nearly always, and then never moved.

    Attributes:
        timestamps: (n,).
        hashes: (n,) opaque.
    """

    timestamps: Ints
    hashes: NDArray[np.void] | None

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, order: Ints) -> _Bounds:
        """Some, in another order."""
        hashes = None if self.hashes is None else self.hashes.take(order)
        return _Bounds(self.timestamps.take(order), hashes)

    def ids(self) -> SyncIds:
        """As everybody else has them."""
        if self.hashes is None:
            return SyncIds.at_times(self.timestamps)
        return SyncIds(self.timestamps, from_opaque(self.hashes))


def _bounds(groups: list[FingerprintPieces | SetPieces]) -> tuple[_Bounds, _Bounds]:
    """Lower and upper bounds of all pieces, one group after the other."""
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
    """Some rows of hashes as words, in another order."""
    opaque = words.view(OPAQUE_HASH).reshape(-1).take(order)
    return opaque.view(np.uint64).reshape(-1, HASH_WORDS)


def _segments(counts: Ints, order: Ints) -> Ints:
    """Indices that bring segments of such lengths into another order."""
    starts = np.cumsum(counts) - counts
    lengths = counts[order]
    ends = np.cumsum(lengths)
    return np.repeat(starts[order] - (ends - lengths), lengths) + np.arange(lengths.sum())


def _with_skips(
    lower: _Bounds, upper: _Bounds, kinds: NDArray[np.uint8]
) -> tuple[_Bounds, NDArray[np.uint8]]:
    """Put a Skip before each piece that does not begin where the one before it ended."""
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
    """Lead to every bound through bounds that can be expressed."""
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
    """Counts of sets of which some were cut into several, with these upper bounds."""
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
    """The bounds on the way from each of some bounds to a greater one, without the last step.

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
