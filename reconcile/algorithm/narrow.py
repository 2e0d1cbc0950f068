"""Two item sets compared, and the narrow sets that show just where they differ.

The answer to a set need not repeat what both sides hold: a reconciled set over a narrow range shows
the peer what it lacks there and what we lack (contract, "The deduction"). A run of differences
with nothing in common between them is shown as one such set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.algorithm.answer import SetPieces, piece_keys
from reconcile.compare import leading_words, match
from reconcile.ids import HASH_DTYPE, Bools, Ints, SyncIds, less
from reconcile.view import Items, Spans
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_PLACES = np.arange(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Differences:
    """Where the sets of a payload differ from what is held in their spans, in ascending order.

    Attributes:
        ids: (d,) all IDs that one side lacks.
        ours: (d,) whether it is ours, so that the peer lacks it.
        sets: (d,) the set that each is in.
        merged: (d,) place of each among the IDs of both sides together.
        next_local: (d,) number of local IDs before it.
    """

    ids: SyncIds
    ours: Bools
    sets: Ints
    merged: Ints
    next_local: Ints

    def __len__(self) -> int:
        return len(self.ours)

    def select(self, chosen: slice | Bools) -> Differences:
        """Some of them."""
        return Differences(
            self.ids[chosen],
            self.ours[chosen],
            self.sets[chosen],
            self.merged[chosen],
            self.next_local[chosen],
        )


def differences(local: Items, remote: Items) -> Differences:
    """Compare sets; set i is over the same span in both."""
    matched = match(local.ids, remote.ids)
    known = np.zeros(len(local.ids), np.bool_)
    known[matched.places[matched.found]] = True
    send, receive = np.flatnonzero(~known), np.flatnonzero(~matched.found)
    places = matched.places[receive]
    merged = np.concatenate(
        (send + np.searchsorted(places, send, side="right"), places + np.arange(len(places)))
    )
    order = np.argsort(merged, kind="stable")
    ours = np.arange(len(order)) < len(send)
    sets = np.concatenate(
        (
            np.searchsorted(local.offsets, send, side="right") - 1,
            np.searchsorted(remote.offsets, receive, side="right") - 1,
        )
    )
    ids = SyncIds.join([local.ids[send], remote.ids[receive]])
    return Differences(
        ids[order],
        ours[order],
        sets[order],
        merged[order],
        np.concatenate((send, places))[order],
    )


def narrow_sets(found: Differences, local: Items, spans: Spans, sources: Ints) -> SetPieces:
    """Reconciled sets that show these differences to the peer.

    Args:
        found: the differences to show.
        local: what is held in the spans.
        spans: of the sets.
        sources: the question that each set belongs to.
    """
    begins = np.ones(len(found), np.bool_)
    begins[1:] = found.merged[1:] != found.merged[:-1] + 1
    begins[1:] |= found.sets[1:] != found.sets[:-1]
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(found))[: len(starts)] - 1
    lower, upper = _run_bounds(found, starts, lasts, local, spans)
    run = np.cumsum(begins) - 1
    counts = np.bincount(run[found.ours], minlength=len(starts))
    return SetPieces(
        piece_keys(sources[found.sets[starts]], starts),
        lower,
        upper,
        counts,
        found.ids[found.ours],
        True,
    )


def _run_bounds(
    found: Differences, starts: Ints, lasts: Ints, local: Items, spans: Spans
) -> tuple[SyncIds, SyncIds]:
    """Bounds around each run that leave out its neighbours."""
    sets = found.sets[starts]
    first, last = found.ids[starts], found.ids[lasts]
    before = found.next_local[starts] - 1
    after = found.next_local[lasts] + found.ours[lasts]
    tied_before = before >= local.offsets[sets]
    tied_after = after < local.offsets[sets + 1]
    tied_before[tied_before] = _times(local, before[tied_before]) == first.timestamps[tied_before]
    tied_after[tied_after] = _times(local, after[tied_after]) == last.timestamps[tied_after]
    lower, upper = _whole_time(first, last)
    if tied_before.any() or tied_after.any():
        to_previous = _shared_bytes(local, before, first, tied_before)
        to_next = _shared_bytes(local, after, last, tied_after)
        # One byte more than what is shared tells neighbours apart. A lower bound as long as what
        # the upper one shares with its item lets the upper one follow directly.
        lengths = np.where(starts == lasts, np.maximum(to_previous + 1, to_next), to_previous + 1)
        lower = SyncIds(first.timestamps, cut(first.hashes, lengths))
        tied = np.flatnonzero(tied_after)
        upper.timestamps[tied] = last.timestamps[tied]
        upper.hashes[tied] = cut(local.ids[after[tied]].hashes, to_next[tied] + 1)
    return innermost(lower, upper, spans[sets])


def _times(local: Items, places: Ints) -> Ints:
    return local.ids.timestamps[places]


def _whole_time(first: SyncIds, last: SyncIds) -> tuple[SyncIds, SyncIds]:
    """Bounds around the whole nanoseconds of some IDs."""
    end = last.timestamps == MAX_TIMESTAMP_NS
    upper = np.zeros_like(last.hashes)
    upper[end] = 0xFF
    return (
        SyncIds(first.timestamps, np.zeros_like(first.hashes)),
        SyncIds(last.timestamps + ~end, upper),
    )


def _shared_bytes(local: Items, places: Ints, others: SyncIds, tied: Bools) -> Ints:
    """How many leading bytes the hashes of local IDs share with others'; -1 where not tied."""
    shared = np.full(len(others), -1, np.int64)
    rows = np.flatnonzero(tied)
    unlike = local.ids[places[rows]].hashes != others[rows].hashes
    shared[rows] = np.argmax(unlike, axis=1)
    return shared


def cut(hashes: NDArray[np.uint8], lengths: Ints) -> NDArray[np.uint8]:
    """The leading bytes of hashes, then zeros."""
    return np.where(lengths[:, None] > _PLACES, hashes, HASH_DTYPE(0))


def innermost(lower: SyncIds, upper: SyncIds, spans: Spans) -> tuple[SyncIds, SyncIds]:
    """Bounds, but not outside their spans."""
    below, above = less(lower, spans.lower), less(spans.upper, upper)
    return _replaced(lower, spans.lower, below), _replaced(upper, spans.upper, above)


def _replaced(bounds: SyncIds, others: SyncIds, where: Bools) -> SyncIds:
    if not where.any():
        return bounds
    return SyncIds(
        np.where(where, others.timestamps, bounds.timestamps),
        np.where(where[:, None], others.hashes, bounds.hashes),
    )


def around(found: SyncIds, counts: Ints, spans: Spans) -> Spans:
    """Spans around single IDs, narrow enough to hold few others.

    Args:
        found: (n,) the IDs.
        counts: (n,) how many IDs are held in each one's nanosecond, about; with 1 the span is
            the whole nanosecond.
        spans: (n,) what not to reach beyond.
    """
    lower, upper = _whole_time(found, found)
    rows = np.flatnonzero(counts > 1)
    if len(rows):
        lengths = np.ceil(np.log2(counts[rows] * 4.0) / 8).astype(np.uint64)
        step = np.uint64(1) << (np.uint64(64) - np.uint64(8) * lengths)
        low = leading_words(found.hashes[rows]) & ~(step - np.uint64(1))
        high = low + step
        lower.hashes[rows, :8] = low.astype(">u8").view(np.uint8).reshape(-1, 8)
        inside = high != 0  # else the prefix was the last of its nanosecond
        upper.timestamps[rows[inside]] = found.timestamps[rows[inside]]
        upper.hashes[rows[inside], :8] = high[inside].astype(">u8").view(np.uint8).reshape(-1, 8)
    return Spans(*innermost(lower, upper, spans))
