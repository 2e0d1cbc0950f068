"""Finding the items of one large item set from many places at once.

Where an item begins is known only from the item before it. But who begins to read at any place
of a set soon reads the true items: once such a reader comes upon the beginning of one, it
never leaves them again. So many readers, *lanes*, begin at equal distances and each reads its
own stretch and a little of the next, the *overlap*. Where a lane crosses into the next one's
stretch at the place where that one is at the end of the overlap, both are on the true items,
since the first lane is. Where they do not meet, the true items are followed one by one until
they come upon what the lane has read.
"""

from bisect import bisect_left
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.itemwalk import walk_singly
from reconcile.codec.varints import (
    WORD_BYTES,
    Source,
    Words,
    varint_lengths,
    varint_values,
)
from storenode.message.limits import HASH_BYTES

Offsets = NDArray[np.int64]

_MIN_ITEM_BYTES: Final = 1 + HASH_BYTES
_MAX_ITEM_BYTES: Final = WORD_BYTES + HASH_BYTES
_SAMPLE_ITEMS: Final = 64
_OVERLAP_BYTES: Final = 4096
_MIN_STRETCH_BYTES: Final = 8192
_MAX_LANES: Final = 1024
_MIN_LANES: Final = 8


def read_items(
    source: Source, first: int, first_hash_at: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """``(count,)`` timestamps and offsets of hashes of an item set's items.

    ``first`` is the first timestamp and its hash is at ``first_hash_at``; there are at least
    two items, and in the payload there is room for so many. None if the items are not what
    they should be, or are longer than arrays read them. Order is not checked.
    """
    items_at = _item_places(source, first_hash_at + HASH_BYTES, count - 1)
    if items_at is None:
        return None
    values, lengths, sound = varint_values(source.words[items_at])
    if not sound.all():
        return None
    timestamps = np.empty(count, np.int64)
    timestamps[0] = first
    timestamps[1:] = values.view(np.int64)
    np.cumsum(timestamps, out=timestamps)
    hashes_at = np.empty(count, np.int64)
    hashes_at[0] = first_hash_at
    np.add(items_at, lengths, out=hashes_at[1:])
    if (timestamps < 0).any() or hashes_at[-1] + HASH_BYTES > len(source.data):
        return None
    return timestamps, hashes_at


def _item_places(source: Source, at: int, count: int) -> Offsets | None:
    """Offsets of so many items from ``at`` on, or None if the payload ends before."""
    data = source.data
    sample = min(count, _SAMPLE_ITEMS)
    try:
        places, after = walk_singly(data, at, sample)
        parts = [np.array(places, np.int64)]
        count -= sample
        span = min(count * (after - at) // sample, len(data) - after - _MAX_ITEM_BYTES)
        lanes = min(span // _MIN_STRETCH_BYTES, _MAX_LANES)
        if lanes >= _MIN_LANES:
            found, after = _read_lanes(source, after, span // lanes, lanes)
            parts.append(found[:count])
            count -= len(parts[-1])
        parts.append(np.array(walk_singly(data, after, count)[0], np.int64))
    except IndexError:
        return None
    items_at = np.concatenate(parts)
    return items_at if items_at[-1] < len(data) - HASH_BYTES else None


def _read_lanes(source: Source, at: int, stretch: int, lanes: int) -> tuple[Offsets, int]:
    """Offsets of true items from ``at`` on, and where the next one begins.

    Each of some lanes reads a stretch of so many bytes, within the payload. The last item is in
    the last stretch, unless some lane did not come upon the true items.
    """
    starts = at + stretch * np.arange(lanes)
    trails = _trails(source.words, starts, (stretch + _OVERLAP_BYTES) // _MIN_ITEM_BYTES + 2)
    borders = np.append(starts + _OVERLAP_BYTES, starts[-1] + stretch)
    borders[0] = at
    begins = np.count_nonzero(trails < borders[:-1, None], axis=1)
    ends = np.count_nonzero(trails < borders[1:, None], axis=1)
    lane = np.arange(lanes)
    crossings = trails[lane, ends]
    apart = 1 + np.flatnonzero(crossings[:-1] != trails[lane[1:], begins[1:]])
    parts: list[Offsets] = []
    done = 0
    for number in apart.tolist():
        own = trails[number, : ends[number]].tolist()
        patch, joined, after = _join(source.data, int(crossings[number - 1]), own)
        parts.append(_between(trails[done:number], begins[done:number], ends[done:number]))
        parts.append(np.array(patch, np.int64))
        if joined == len(own):
            return np.concatenate(parts), after
        begins[number] = joined
        done = number
    parts.append(_between(trails[done:], begins[done:], ends[done:]))
    return np.concatenate(parts), int(crossings[-1])


def _trails(words: Words, starts: Offsets, steps: int) -> Offsets:
    """``(lanes, steps)``: what each lane takes for the next so many items."""
    trails = np.empty((steps, len(starts)), np.int64)
    places = starts.copy()
    limit = len(words) - 1
    for trail in trails:
        trail[:] = places
        places += varint_lengths(words[places])
        places += HASH_BYTES
        np.minimum(places, limit, out=places)
    return np.ascontiguousarray(trails.T)


def _between(trails: Offsets, begins: Offsets, ends: Offsets) -> Offsets:
    """What each lane has from its begin to its end, lane after lane."""
    number = np.arange(trails.shape[1])
    return trails[(number >= begins[:, None]) & (number < ends[:, None])]


def _join(data: bytes, at: int, trail: list[int]) -> tuple[list[int], int, int]:
    """True items from ``at`` on until they come upon a trail, where in the trail that is, and
    where the next item is; the place is the trail's length if they never do.
    """
    patch: list[int] = []
    place = bisect_left(trail, at)
    while place < len(trail) and trail[place] != at:
        patch.append(at)
        at = walk_singly(data, at, 1)[1]
        place = bisect_left(trail, at, place)
    return patch, place, at
