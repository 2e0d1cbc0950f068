"""Two ascending sequences of SyncIDs beside each other: what each has that the other lacks.

Array operations only. IDs are looked up by timestamp and confirmed by hash; where timestamps
repeat, by a key of the timestamp's rank and the leading bits of the hash; and where somebody made
even those equal, by a full sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import Bools, Ints, SyncIds, Words, rows_differ


@dataclass(frozen=True, slots=True)
class Match:
    """Where each remote ID belongs among the local ones.

    Attributes:
        places: (r,) the number of local IDs that are smaller.
        found: (r,) whether the local ID at that place is the same.
    """

    places: Ints
    found: Bools


def match(local: SyncIds, remote: SyncIds) -> Match:
    """Find remote IDs among local ones; both strictly ascending."""
    count = len(remote)
    if not len(local) or not count:
        return Match(np.zeros(count, np.int64), np.zeros(count, np.bool_))
    if kernel.compiled is not None:
        places, found = np.empty(count, np.int64), np.empty(count, np.bool_)
        kernel.compiled.match(
            local.timestamps, local.hashes, remote.timestamps, remote.hashes, places, found
        )
        return Match(places, found)
    mine: Ints | Words = local.timestamps
    theirs: Ints | Words = remote.timestamps
    if (mine[1:] == mine[:-1]).any() or (theirs[1:] == theirs[:-1]).any():
        mine, theirs = _keys(local, remote)
        if (mine[1:] == mine[:-1]).any() or (theirs[1:] == theirs[:-1]).any():
            return _match_by_sorting(local, remote)
    places = mine.searchsorted(theirs, side="right")
    before = np.maximum(places - 1, 0)
    same_key = (mine.take(before) == theirs).nonzero()[0]
    candidates = before.take(same_key)
    same = ~rows_differ(local[candidates].words, remote[same_key].words)
    found = np.zeros(count, np.bool_)
    found[same_key] = same
    places[same_key] = candidates
    for at in same_key[~same]:
        places[at] += int(local.hashes[places[at]].tobytes() < remote.hashes[at].tobytes())
    return Match(places, found)


def leading_words(hashes: NDArray[np.uint8]) -> Words:
    """The first eight bytes of hashes as numbers that order as the hashes do."""
    first = np.ascontiguousarray(hashes[:, :8]).view(">u8").ravel()
    return first.astype(np.uint64)


def _keys(local: SyncIds, remote: SyncIds) -> tuple[Words, Words]:
    """Numbers that order as the IDs do, as far as 64 bits can tell.

    A local timestamp has an odd rank; a remote one that is not among them the even rank between
    its neighbours.
    """
    mine, theirs = local.timestamps, remote.timestamps
    starts = np.concatenate(([True], mine[1:] != mine[:-1]))
    distinct = mine[starts]
    my_ranks = 2 * np.cumsum(starts) - 1
    above = np.searchsorted(distinct, theirs)
    known = distinct[np.minimum(above, len(distinct) - 1)] == theirs
    their_ranks = 2 * above + known
    shift = np.uint64(64 - int(2 * len(distinct) + 1).bit_length())
    keep = np.uint64(64) - shift
    my_keys = (my_ranks.astype(np.uint64) << shift) | (leading_words(local.hashes) >> keep)
    their_keys = (their_ranks.astype(np.uint64) << shift) | (leading_words(remote.hashes) >> keep)
    return my_keys, their_keys


def _match_by_sorting(local: SyncIds, remote: SyncIds) -> Match:
    both = SyncIds.join([local, remote])
    words = both.hashes.view(">u8")
    is_remote = np.arange(len(both)) >= len(local)
    keys = (is_remote, words[:, 3], words[:, 2], words[:, 1], words[:, 0], both.timestamps)
    order = np.lexsort(keys)
    sorted_remote = is_remote[order]
    same = np.zeros(len(order), np.bool_)
    same[1:] = both.timestamps[order[1:]] == both.timestamps[order[:-1]]
    same[1:] &= (words[order[1:]] == words[order[:-1]]).all(axis=1)
    found = same[sorted_remote]
    return Match(np.cumsum(~sorted_remote)[sorted_remote] - found, found)
