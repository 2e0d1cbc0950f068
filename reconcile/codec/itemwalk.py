"""Finding the items of many item sets at once, side by side.

Where an item begins depends on the length of the one before it, but item sets do not depend on
each other: one step reads the next item of each of them, longest sets first, so that the ones
that still go on are always the first so many.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.varints import (
    MAX_VARINT_BYTES,
    WORD_BYTES,
    Source,
    Words,
    unfinished,
    varint_lengths,
    varint_values,
)
from storenode.message.limits import HASH_BYTES

Offsets = NDArray[np.int64]

_MAX_ITEM_BYTES: Final = WORD_BYTES + HASH_BYTES
"""Of an item after the first, as far as arrays read it."""

_MAX_COUNT: Final = 4096
"""Larger sets are read by themselves."""

_PLAUSIBLE_SPAN_NS: Final = 2**57
"""Four years. What begins later after the block's beginning is no item set, presumably."""

_LEAST_LONGEST: Final = 1 << 7 * WORD_BYTES
"""From this time on, in 1972, a whole timestamp has nine bytes."""

_MIN_LANES: Final = 32
"""Below so many sets, a step for each is faster than a step for all."""


@dataclass(frozen=True, slots=True)
class ItemSets:
    """Item sets, or what could be some, k of them with n items in all.

    Attributes:
        ends: ``(k,)`` offsets of what follows each; past the payload where it is not known.
        counts: ``(k,)`` items; 0 where they were not looked for.
        first_timestamps: ``(k,)``; meaningless where there is no item.
        first_lengths: ``(k,)`` bytes of the first timestamp.
        items_at: ``(n,)`` offsets of all items, set after set.
    """

    ends: Offsets
    counts: NDArray[np.int64]
    first_timestamps: NDArray[np.int64]
    first_lengths: NDArray[np.uint8]
    items_at: Offsets

    def __getitem__(self, chosen: NDArray[np.int64]) -> "ItemSets":
        """Some of them; ``chosen`` ascends."""
        items_at = self.items_at
        if int(self.counts[chosen].sum()) < len(items_at):
            true = np.zeros(len(self.counts), np.bool_)
            true[chosen] = True
            items_at = items_at[true.repeat(self.counts)]
        return ItemSets(
            self.ends[chosen],
            self.counts[chosen],
            self.first_timestamps[chosen],
            self.first_lengths[chosen],
            items_at,
        )


NO_SETS: Final = ItemSets(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    np.empty(0, np.int64),
)


def find_item_sets(source: Source, counts_at: Offsets, lowest: int, budget: int) -> ItemSets:
    """What begins with a count at each of some offsets, if it is an item set.

    ``lowest`` is a time before which no item can lie, and ``budget`` the number of items that
    are looked for at most.
    """
    octets = source.octets
    counts, firsts_at = _counts(source, counts_at, lowest)
    timestamps = np.zeros(len(counts), np.int64)
    lengths = np.zeros(len(counts), np.uint8)
    filled = (counts > 0).nonzero()[0]
    found, lengths[filled] = _first_timestamps(source, firsts_at[filled])
    timestamps[filled] = found
    counts[filled[(found < lowest) | (found - lowest >= _PLAUSIBLE_SPAN_NS)]] = -1
    filled = _affordable(counts, budget)
    items_at, walked = _walk(source, firsts_at[filled], lengths[filled], counts[filled])
    # Where the reconciled byte is, or would be.
    flags_at = firsts_at
    flags_at[filled] = walked
    ends = np.where((counts >= 0) & (octets[flags_at] <= 1), flags_at + 1, len(octets))
    np.maximum(counts, 0, out=counts)
    return ItemSets(ends, counts, timestamps, lengths, items_at)


def _counts(source: Source, counts_at: Offsets, lowest: int) -> tuple[Offsets, Offsets]:
    """The count at each offset, -1 where arrays cannot read such a set, and where it ends."""
    size = len(source.data)
    values, lengths, sound = varint_values(source.words[counts_at])
    counts = values.view(np.int64)
    firsts_at = counts_at + lengths
    sound &= counts <= _MAX_COUNT
    sound &= firsts_at + counts * _MAX_ITEM_BYTES + MAX_VARINT_BYTES < size
    firsts_at = np.minimum(firsts_at, size - MAX_VARINT_BYTES)
    if lowest >= _LEAST_LONGEST:
        sound &= unfinished(source.words[firsts_at]) | (counts == 0)
    counts[~sound] = -1
    return counts, firsts_at


def _first_timestamps(
    source: Source, firsts_at: Offsets
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The varint at each offset, -1 where it is none of a timestamp, and its length."""
    at_first = source.words[firsts_at]
    values, lengths, sound = varint_values(at_first)
    longer = unfinished(at_first).nonzero()[0]
    ninth = source.octets[firsts_at[longer] + WORD_BYTES].astype(np.uint64)
    values[longer] |= ninth << np.uint64(7 * WORD_BYTES)
    lengths[longer] = MAX_VARINT_BYTES
    sound[longer] = (ninth > 0) & (ninth < 0x80)
    timestamps = values.view(np.int64)
    timestamps[~sound] = -1
    return timestamps, lengths


def _affordable(counts: NDArray[np.int64], budget: int) -> Offsets:
    """Indices of the sets with items; the largest are given up, as -1, to keep the budget."""
    filled = (counts > 0).nonzero()[0]
    if int(counts[filled].sum()) > budget:
        filled = filled[counts[filled].argsort(kind="stable")]
        counts[filled[counts[filled].cumsum() > budget]] = -1
        filled = (counts > 0).nonzero()[0]
    return filled


def _walk(
    source: Source,
    firsts_at: Offsets,
    first_lengths: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> tuple[Offsets, Offsets]:
    """Offsets of all items of some sets, and of what follows the last item of each."""
    order = (-counts).argsort(kind="stable")
    descending = counts[order]
    rows = (counts.cumsum() - counts)[order]
    items_at = np.empty(int(counts.sum()), np.int64)
    items_at[rows] = firsts_at[order]
    places = firsts_at[order] + first_lengths[order]
    places += HASH_BYTES
    # How many sets have more than so many items: all, without the first, and so on.
    going_on = (len(order) - np.bincount(descending).cumsum()).tolist()
    step = 1
    while step < len(going_on) and going_on[step] >= _MIN_LANES:
        lanes, own = places[: going_on[step]], rows[: going_on[step]]
        own += 1
        items_at[own] = lanes
        lanes += varint_lengths(source.words[lanes])
        lanes += HASH_BYTES
        step += 1
    for lane in range(going_on[step] if step < len(going_on) else 0):
        left = int(descending[lane]) - step
        row = int(rows[lane]) + 1
        items_at[row : row + left], places[lane] = walk_singly(source.data, int(places[lane]), left)
    ends = np.empty_like(places)
    ends[order] = places
    return items_at, ends


def walk_singly(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Offsets of so many items from ``at`` on, and of what follows; nothing is checked.

    The bytes must be there, for varints of at most eight bytes; of longer ones eight are taken.
    """
    places = []
    for _ in range(count):
        places.append(at)
        last = at + WORD_BYTES - 1
        while data[at] >= 0x80 and at < last:
            at += 1
        at += 1 + HASH_BYTES
    return places, at


def item_columns(
    words: Words, sets: ItemSets
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """``(n,)`` timestamps and offsets of the hashes of all items; None if some varint is not
    minimal, of nine bytes where it is not the first, or leads past 2^63-1.
    """
    values, lengths, sound = varint_values(words[sets.items_at])
    filled = sets.counts.nonzero()[0]
    firsts = (sets.counts.cumsum() - sets.counts)[filled]
    sound[firsts] = True
    if not sound.all():
        return None
    lengths[firsts] = sets.first_lengths[filled]
    timestamps = values.view(np.int64)
    if len(firsts):
        _sum_up(timestamps, firsts, sets.first_timestamps[filled])
    if (timestamps < 0).any():
        return None
    return timestamps, sets.items_at + lengths


def _sum_up(deltas: NDArray[np.int64], firsts: Offsets, starts: NDArray[np.int64]) -> None:
    """Turn differences into sums, anew from ``starts[i]`` at each ``firsts[i]``."""
    deltas[firsts] = starts
    lasts = np.add.reduceat(deltas, firsts)
    deltas[firsts[1:]] -= lasts[:-1]
    deltas.cumsum(out=deltas)
