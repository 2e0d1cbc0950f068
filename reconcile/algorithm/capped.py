"""Differences up to the limit of a session, so that both sides find the same ones.

Of two nodes with the same limit, each difference is decided by one, which shows it to the other:
so both count alike, and both come to the limit at the same difference. What was decided by the peer
is always taken in. What we decide is taken set by set, as long as whole sets have room; what is
left out is not shown, and comes back. Only where the first set has no room by itself is it cut, and
then the limit is reached.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reconcile.algorithm.narrow import Differences
from reconcile.ids import Bools, Ints, SyncIds
from reconcile.view import Items


@dataclass(frozen=True, slots=True)
class Capped:
    """What of some differences is taken.

    Attributes:
        chosen: (d,) those that are.
        deferred: sets whose differences are all left for later.
        stop: place of the first difference that is left out of a set that was cut; None: none was.
    """

    chosen: Bools
    deferred: Ints
    stop: int | None


def capped(found: Differences, decided: Bools, limit: int) -> Capped:
    """The differences that there is room for.

    Args:
        found: in ascending order.
        decided: (d,) those that we decide, and show to the peer.
        limit: how many may be taken.
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
        return Capped(chosen, sets[1:], int(ours[room]))
    end = int(starts[whole]) if whole < len(sets) else len(ours)
    chosen[ours[:end]] = True
    return Capped(chosen, sets[whole:], None)


def bounded_by(local: Items, found: Differences, stop: int | None) -> Items:
    """What is held in sets, with the one ID of the peer before which a set was cut.

    So bounds that leave out what is held leave that out too.
    """
    if stop is None or found.ours[stop]:
        return local
    place = int(found.next_local[stop])
    offsets = local.offsets.copy()
    offsets[int(found.sets[stop]) + 1 :] += 1
    parts = [local.ids[:place], found.ids[stop : stop + 1], local.ids[place:]]
    return Items(offsets, SyncIds.join(parts))
