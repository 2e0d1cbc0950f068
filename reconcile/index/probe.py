"""Which ID has a given hash, where only its range is known.

This is a scan: the index has no order by hash. It is asked when two fingerprints of a range
differ by exactly one ID's hash.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import HASH_DTYPE, HASH_WORDS, Ints, SyncIds, Words, rows_differ
from reconcile.index.chunk import Chunk
from reconcile.index.rows import Rows
from reconcile.view import Probed
from storenode.message.limits import HASH_BYTES

_BLOCK_IDS: Final = 65_536
"""What is scanned at a time; it fits into a processor's cache."""

_MIN_ABREAST: Final = 512
"""Spans that are worth looking at side by side."""

_SHORT_SPAN: Final = 32
"""IDs in spans on average up to which that is quicker."""

_LONGEST_ABREAST: Final = 256
"""IDs in the longest of them."""


def probed(rows: Rows, low: Ints, high: Ints, hashes: Words) -> Probed:
    """Look for `hashes[i]` among the IDs at places `low[i]` to, but without, `high[i]`.

    The intervals are disjoint and ascending. Memory is bounded by what a block needs.
    """
    count = len(low)
    hit, alone = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    timestamps = np.zeros(count, np.int64)
    found = np.zeros((count, HASH_BYTES), HASH_DTYPE)
    if kernel.compiled is not None:
        wanted = np.ascontiguousarray(hashes)
        kernel.compiled.probe(rows.handle, low, high, wanted, timestamps, found, hit, alone)
        return Probed(SyncIds(timestamps, found), hit, alone)
    spans, places = _candidates(rows, low, high, np.ascontiguousarray(hashes[:, 0]))
    if len(spans):
        ids = rows.take(places)
        same = ~rows_differ(ids.words, hashes[spans])
        spans, ids, places = spans[same], ids[same], places[same]
        hit = np.bincount(spans, minlength=count) == 1
        timestamps[spans] = ids.timestamps
        found[spans] = ids.hashes
        alone[spans] = rows.alone(places)
    return Probed(SyncIds(timestamps, found), hit, alone)


def _candidates(rows: Rows, low: Ints, high: Ints, wanted: Words) -> tuple[Ints, Ints]:
    """Spans and places where the first word of the hash is the wanted one."""
    filled = np.flatnonzero(high > low)
    low, high, wanted = low[filled], high[filled], wanted[filled]
    spans = [np.empty(0, np.int64)]
    places = [np.empty(0, np.int64)]
    few = int((high - low).sum()) <= _BLOCK_IDS
    for chunk, start in zip(rows.chunks, rows.starts, strict=False) if few else _blocks(rows):
        end = start + len(chunk)
        first, last = high.searchsorted(start, "right"), low.searchsorted(end)
        if first >= last:
            continue
        local_low = np.maximum(low[first:last] - start, 0)
        local_high = np.minimum(high[first:last], end) - start
        span, place = _scan(chunk, local_low, local_high, wanted[first:last])
        spans.append(filled[first + span])
        places.append(start + place)
    return np.concatenate(spans), np.concatenate(places)


def _blocks(rows: Rows) -> Iterator[tuple[Chunk, int]]:
    """All IDs in short chunks, with their places."""
    for chunk, start in zip(rows.chunks, rows.starts, strict=False):
        for at in range(0, len(chunk), _BLOCK_IDS):
            yield chunk.part(at, min(at + _BLOCK_IDS, len(chunk))), start + at


def _short(low: Ints, high: Ints) -> bool:
    """Whether spans are so many and so short that they are looked at side by side."""
    return len(low) >= _MIN_ABREAST and int((high - low).sum()) <= _SHORT_SPAN * len(low)


def _scan_abreast(
    chunk: Chunk, low: Ints, high: Ints, wanted: NDArray[np.uint64]
) -> tuple[Ints, Ints]:
    """What ``_scan`` finds, by looking at the first ID of all spans, then the second, and so on."""
    counts = high - low
    order = (-counts).argsort(kind="stable")
    going_on = len(counts) - np.bincount(counts).cumsum()
    flat = chunk.prefix.reshape(-1)
    at = low[order] * HASH_WORDS
    wanted = wanted[order]
    before = flat.take(at)
    spans, places = [], []
    for step, lanes in enumerate(going_on[:-1].tolist()):
        at = at[:lanes]
        at += HASH_WORDS
        after = flat.take(at)
        found = ((before[:lanes] ^ after) == wanted[:lanes]).nonzero()[0]
        if len(found):
            spans.append(order[found])
            places.append(low[order[found]] + step)
        before = after
    if not spans:
        return counts[:0], counts[:0]
    span, place = np.concatenate(spans), np.concatenate(places)
    ascending = place.argsort()
    return span[ascending], place[ascending]


def _scan(chunk: Chunk, low: Ints, high: Ints, wanted: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Spans and places, both within what was given, where a chunk's hash begins as wanted."""
    counts = high - low
    if _short(low, high) and counts.max() <= _LONGEST_ABREAST:
        return _scan_abreast(chunk, low, high, wanted)
    ends = np.cumsum(counts)
    if ends[-1] == high[-1] - low[0]:
        running = chunk.prefix[low[0] : high[-1] + 1, 0]
        words = running[1:] ^ running[:-1]
    else:
        places = np.arange(ends[-1]) + np.repeat(low - (ends - counts), counts)
        places *= HASH_WORDS
        flat = chunk.prefix.reshape(-1)
        words = flat.take(places)
        places += HASH_WORDS
        words ^= flat.take(places)
    matches = np.flatnonzero(words == np.repeat(wanted, counts))
    spans = ends.searchsorted(matches, "right")
    return spans, low[spans] + matches - (ends - counts)[spans]
