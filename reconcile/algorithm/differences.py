"""The differences of item sets: found, limited, and shown by narrow sets.

The answer to a set need not repeat what both sides have: a reconciled set over a narrow range shows
the peer what it lacks there and what we lack (contract, "The deduction"). A run of differences
with nothing in common between them is shown as one such set.

Differences are limited so that both sides find the same ones. Of two nodes with the same limit,
each difference is decided by one, which shows it to the other: so both count alike, and both reach
the limit at the same difference. The decisions of the peer are always accepted. Our own ones are
accepted set by set, as long as whole sets have room; the rest is not shown, and comes back. Only
where the first set has no room by itself is it cut, and then the limit is reached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import Ranges
from reconcile.ids import HASH_DTYPE, Bools, Ints, SyncIds, less, match, rows_differ
from reconcile.view import Items, Spans
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_PLACES = np.arange(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between the sets of a payload and the own IDs in their spans, ascending.

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
        """Return some of them."""
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


def narrow_sets(found: Differences, local: Items, spans: Spans) -> Ranges:
    """Return reconciled sets that show these differences to the peer.

    Args:
        found: the differences to show.
        local: the own IDs in the spans.
        spans: the spans of the sets.
    """
    begins = np.ones(len(found), np.bool_)
    begins[1:] = found.merged[1:] != found.merged[:-1] + 1
    begins[1:] |= found.sets[1:] != found.sets[:-1]
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(found))[: len(starts)] - 1
    bounds = _run_bounds(found, starts, lasts, local, spans)
    run = np.cumsum(begins) - 1
    counts = np.bincount(run[found.ours], minlength=len(starts))
    return Ranges.of_sets(bounds, counts, found.ids[found.ours], reconciled=True)


def show_deduced(ids: SyncIds, local: Items, spans: Spans) -> Ranges:
    """Return reconciled sets that show single IDs of ours to the peer, one in each span.

    Args:
        ids: ``(n,)`` the IDs.
        local: the own IDs in the spans, of which one in each has the hash.
        spans: ``(n,)``.
    """
    sets, wanted = np.arange(len(ids)), ids.words.repeat(np.diff(local.offsets), 0)
    places = (~rows_differ(local.ids.words, wanted)).nonzero()[0]
    found = Differences(ids, np.ones(len(ids), np.bool_), sets, places, places)
    return narrow_sets(found, local, spans)


def _run_bounds(found: Differences, starts: Ints, lasts: Ints, local: Items, spans: Spans) -> Spans:
    """Return bounds around each run that leave out its neighbours."""
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
        lower = SyncIds(first.timestamps, _cut(first.hashes, lengths))
        tied = np.flatnonzero(tied_after)
        upper.timestamps[tied] = last.timestamps[tied]
        upper.hashes[tied] = _cut(local.ids[after[tied]].hashes, to_next[tied] + 1)
    return _innermost(lower, upper, spans[sets])


def _times(local: Items, places: Ints) -> Ints:
    return local.ids.timestamps[places]


def _whole_time(first: SyncIds, last: SyncIds) -> tuple[SyncIds, SyncIds]:
    """Return bounds around the whole nanoseconds of some IDs."""
    end = last.timestamps == MAX_TIMESTAMP_NS
    upper = np.zeros_like(last.hashes)
    upper[end] = 0xFF
    return (
        SyncIds(first.timestamps, np.zeros_like(first.hashes)),
        SyncIds(last.timestamps + ~end, upper),
    )


def _shared_bytes(local: Items, places: Ints, others: SyncIds, tied: Bools) -> Ints:
    """Count the leading bytes that hashes of local IDs share with others'; -1 where not tied."""
    shared = np.full(len(others), -1, np.int64)
    rows = np.flatnonzero(tied)
    unlike = local.ids[places[rows]].hashes != others[rows].hashes
    shared[rows] = np.argmax(unlike, axis=1)
    return shared


def _cut(hashes: NDArray[np.uint8], lengths: Ints) -> NDArray[np.uint8]:
    """Return the leading bytes of hashes, then zeros."""
    return np.where(lengths[:, None] > _PLACES, hashes, HASH_DTYPE(0))


def moments(ids: SyncIds, spans: Spans) -> Spans:
    """Return the part of each span that is in the nanosecond of an ID."""
    return _innermost(*_whole_time(ids, ids), spans)


def _innermost(lower: SyncIds, upper: SyncIds, spans: Spans) -> Spans:
    """Limit bounds to their spans."""
    below, above = less(lower, spans.lower), less(spans.upper, upper)
    return Spans(_replaced(lower, spans.lower, below), _replaced(upper, spans.upper, above))


def _replaced(bounds: SyncIds, others: SyncIds, where: Bools) -> SyncIds:
    if not where.any():
        return bounds
    return SyncIds(
        np.where(where, others.timestamps, bounds.timestamps),
        np.where(where[:, None], others.hashes, bounds.hashes),
    )


def limit_differences(
    found: Differences, decided: Bools, limit: int
) -> tuple[Bools, Ints, int | None]:
    """Choose the differences that there is room for.

    Args:
        found: in ascending order.
        decided: (d,) those that we decide, and show to the peer.
        limit: how many may be taken.

    Returns:
        (d,) those that are chosen; the sets whose differences are all left for later; the place of
        the first difference that is left out of a set that was cut, or None.
    """
    chosen = ~decided
    theirs = np.flatnonzero(chosen)
    chosen[theirs[limit:]] = False
    room = max(0, limit - len(theirs))
    ours = np.flatnonzero(decided)
    sets, starts, counts = np.unique(found.sets[ours], return_index=True, return_counts=True)
    whole = int(np.searchsorted(np.cumsum(counts), room, side="right"))
    if whole < len(sets) and not whole and room:
        chosen[ours[:room]] = True
        return chosen, sets[1:], int(ours[room])
    end = int(starts[whole]) if whole < len(sets) else len(ours)
    chosen[ours[:end]] = True
    return chosen, sets[whole:], None


def with_stop(local: Items, found: Differences, stop: int | None) -> Items:
    """Return the own IDs in sets, with the one ID of the peer before which a set was cut.

    So bounds that leave out the own IDs leave that out too.
    """
    if stop is None or found.ours[stop]:
        return local
    place = int(found.next_local[stop])
    offsets = local.offsets.copy()
    offsets[int(found.sets[stop]) + 1 :] += 1
    parts = [local.ids[:place], found.ids[stop : stop + 1], local.ids[place:]]
    return Items(offsets, SyncIds.join(parts))
