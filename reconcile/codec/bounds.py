"""The bounds that can follow a bound (WAKU-SYNC, "Delta encoding for sequential SyncIds").

After a difference in time no hash is sent, and it is taken for zeros. At the same time the hash
is sent up to its first byte that differs from the bound before, and the rest taken for zeros.
"""

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_DTYPE, Ints, SyncIds, from_opaque, rows_differ
from storenode.message.limits import HASH_BYTES

_PLACES = np.arange(HASH_BYTES)


def expressible(previous: SyncIds, bounds: SyncIds) -> NDArray[np.bool_]:
    """Return ``(n,)``: can ``bounds[i]`` be encoded directly after ``previous[i]``."""
    result = (bounds.timestamps > previous.timestamps) & ~rows_differ(bounds.words, 0)
    ties = (bounds.timestamps == previous.timestamps).nonzero()[0]
    if len(ties):
        before, after = from_opaque(previous.opaque[ties]), from_opaque(bounds.opaque[ties])
        first = (before != after).argmax(axis=1)
        last = HASH_BYTES - 1 - (after[:, ::-1] != 0).argmax(axis=1)
        rows = np.arange(len(after))
        result[ties] = (after[rows, first] > before[rows, first]) & (last == first)
    return result


def prefix_length(before: bytes, after: bytes) -> int:
    """Return how many bytes of a hash have to be sent after another one at the same time.

    0 if the hash is not greater than the one before, or not zero after what would be sent.
    """
    if after <= before:
        return 0
    length = next(place for place in range(HASH_BYTES) if before[place] != after[place]) + 1
    return 0 if any(after[length:]) else length


def bridge(previous: SyncIds, bounds: SyncIds, but: Ints | None = None) -> tuple[Ints, SyncIds]:
    """Put those bounds before each bound that lead to it from its previous one.

    Args:
        previous: ``(n,)``.
        bounds: ``(n,)``, each greater than its previous one.
        but: rows to which nothing has to lead.

    Returns:
        (k,) the row that each belongs to, ascending, and (k,) the bounds.
    """
    fits = expressible(previous, bounds)
    if but is not None:
        fits[but] = True
    awkward = (~fits).nonzero()[0]
    if not len(awkward):
        return np.arange(len(bounds)), bounds
    before, after = previous[awkward], bounds[awkward]
    later = after.timestamps != before.timestamps
    first = np.where(later, 0, np.argmax(after.hashes != before.hashes, axis=1))
    # One step for each byte that is sent, after one to the time; the last is the bound itself.
    steps = np.zeros((len(awkward), HASH_BYTES + 1), np.bool_)
    steps[:, 0] = later
    steps[:, 1:] = (after.hashes != 0) & (first[:, None] <= _PLACES)
    steps[np.arange(len(awkward)), HASH_BYTES - np.argmax(steps[:, ::-1], axis=1)] = False
    rows, lengths = np.nonzero(steps)
    hashes = np.where(lengths[:, None] > _PLACES, after.hashes[rows], HASH_DTYPE(0))
    between = SyncIds(after.timestamps[rows], np.ascontiguousarray(hashes))
    counts = np.bincount(awkward[rows], minlength=len(bounds)) + 1
    sources = np.repeat(np.arange(len(bounds)), counts)
    places = len(bounds) + np.arange(len(sources)) - sources
    places[np.cumsum(counts) - 1] = np.arange(len(bounds))
    return sources, SyncIds.join([bounds, between]).take(places)
