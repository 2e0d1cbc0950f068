"""The cuts of spans into parts: by count, at bounds that the encoding can express.

Between two IDs of different times the bound is the later time with a hash of zeros; that can
follow any lower bound. Among IDs of one time the bound is the beginning of a hash, and such a
bound can directly follow only one that begins with all of its bytes but the last (WAKU-SYNC,
"Delta encoding for sequential SyncIDs"). So a cut that falls into one time is moved a little, to
where the shortest bound is, and bounds that lead to it are put in between; they make parts of
their own, which may be empty. However many IDs have one time, a cut leaves an ID on either side:
splitting again and again always ends with parts of one ID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.bounds import bridge
from reconcile.ids import HASH_DTYPE, Ints, SyncIds
from reconcile.view import chain_spans
from storenode.message.limits import HASH_BYTES

if TYPE_CHECKING:
    from reconcile.index.view import IndexView

_TO_AN_EDGE = 2
_TO_A_BEGINNING = 4
"""A cut may move by a part's size over this: to where a time begins or ends, or else to the
beginning of a hash. Neighbours can then meet at an edge, but never change places."""

_PLACES = np.arange(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Inner bounds of spans, ascending.

    Attributes:
        spans: ``(k,)`` which span each belongs to.
        bounds: ``(k,)``.
        places: ``(k,)`` how many IDs are before each.
    """

    spans: Ints
    bounds: SyncIds
    places: Ints


def cuts(rows: IndexView, lower: SyncIds, low: Ints, high: Ints, parts: Ints) -> Cuts:
    """Cut spans into about ``parts`` parts each.

    Args:
        rows: the IDs.
        lower: ``(n,)`` lower bounds of the spans.
        low: ``(n,)`` their places.
        high: ``(n,)`` the places of their upper bounds.
        parts: ``(n,)`` how many parts are wanted; at most one per ID is made.
    """
    counts = high - low
    parts = np.clip(parts, 1, np.maximum(counts, 1))
    inner = parts - 1
    spans = np.repeat(np.arange(len(low)), inner)
    number = np.arange(1, len(spans) + 1) - np.repeat(np.cumsum(inner) - inner, inner)
    places = low[spans] + counts[spans] * number // parts[spans]
    timestamps = rows.timestamps(places)
    tied = np.flatnonzero(rows.timestamps(places - 1) == timestamps)
    hashes = np.zeros((len(places), HASH_BYTES), HASH_DTYPE)
    found = Cuts(spans, SyncIds(timestamps, hashes), places)
    if len(tied):
        sizes = (counts // parts)[spans[tied]]
        _move(rows, found, tied, sizes)
        return _bridged(rows, _without_repeats(found), lower)
    return found


def _move(rows: IndexView, found: Cuts, tied: Ints, sizes: Ints) -> None:
    """Move cuts between IDs of one time to better bounds near by.

    They stay inside their spans, whose ends are a part away.

    Args:
        rows: the IDs.
        found: all cuts.
        tied: ``(k,)`` which are between IDs of one time.
        sizes: ``(k,)`` how many IDs a part has that they make.
    """
    places = found.places[tied]
    timestamps = found.bounds.timestamps[tied]
    first = rows.time_ranks(timestamps, "left")
    end = rows.time_ranks(timestamps, "right")
    shifts = sizes // _TO_AN_EDGE
    to_end = (end - places <= shifts) & (end - places < places - first)
    to_first = (places - first <= shifts) & ~to_end
    found.places[tied[to_first]] = first[to_first]
    found.places[tied[to_end]] = end[to_end]
    found.bounds.timestamps[tied[to_end]] = rows.timestamps(end[to_end])
    rest = np.flatnonzero(~(to_first | to_end))
    if len(rest):
        places, tied = places[rest], tied[rest]
        shifts = sizes[rest] // _TO_A_BEGINNING
        found.bounds.hashes[tied] = _shortest(
            rows.hashes(places - 1 - shifts), rows.hashes(places), rows.hashes(places + shifts)
        )
        found.places[tied] = rows.ranks(found.bounds[tied])


def _without_repeats(found: Cuts) -> Cuts:
    """Drop repeated cuts; those of different spans have different places."""
    kept = np.ones(len(found.spans), np.bool_)
    kept[1:] = found.places[1:] != found.places[:-1]
    if bool(kept.all()):
        return found
    return Cuts(found.spans[kept], found.bounds[kept], found.places[kept])


def _shortest(
    before: NDArray[np.uint8], wanted: NDArray[np.uint8], after: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Return ``(n, 32)``: the shortest beginnings of hashes that separate two.

    They are greater than `before[i]` and not greater than `after[i]`, and at `wanted[i]`, which
    is between the two, where that is no longer.
    """
    length = _first_difference(before, after)
    row = np.arange(len(length))
    near = wanted[row, length] > before[row, length]
    chosen = np.where(near[:, None], wanted, after)
    chosen[length[:, None] < _PLACES] = 0
    return chosen


def _first_difference(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Ints:
    """Return ``(n,)``: the place of the first byte that differs; 0 where none does."""
    return np.asarray((left != right).argmax(axis=1), np.int64)


def _bridged(rows: IndexView, found: Cuts, lower: SyncIds) -> Cuts:
    """Put bounds between those that cannot follow each other directly."""
    first = np.ones(len(found.spans), np.bool_)
    first[1:] = found.spans[1:] != found.spans[:-1]
    starts = first.nonzero()[0]
    previous = chain_spans(lower.take(found.spans[starts]), starts, found.bounds).lower
    sources, bounds = bridge(previous, found.bounds)
    if len(sources) == len(found.spans):
        return found
    return Cuts(found.spans[sources], bounds, rows.ranks(bounds))
