"""IDs in any order, and more than once, put in order."""

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_WORDS, SyncIds, hashes_less

_KEY_BITS = 63
_WORD_BITS = 64


def ordered(ids: SyncIds) -> SyncIds:
    """The same IDs strictly ascending, each once; `ids` itself if it is that already."""
    timestamps = ids.timestamps
    if bool(np.all(timestamps[1:] > timestamps[:-1])):
        return ids
    if bool(np.any(timestamps[1:] < timestamps[:-1])):
        ids = ids[_by_time(timestamps)]
    return _ties_ordered(ids)


def _by_time(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order by timestamp; of equal ones the earlier place first."""
    first = int(timestamps.min())
    place_bits = (len(timestamps) - 1).bit_length()
    if int(timestamps.max()) - first >= 1 << (_KEY_BITS - place_bits):
        return np.argsort(timestamps, kind="stable")
    # Sorting plain numbers that carry their place is several times faster than an argsort.
    keys = timestamps - first
    keys <<= place_bits
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= (1 << place_bits) - 1
    return keys


def _ties_ordered(ids: SyncIds) -> SyncIds:
    """Ascending timestamps given, order equal ones by hash and drop what is there twice."""
    same_time = ids.timestamps[1:] == ids.timestamps[:-1]
    after = np.flatnonzero(same_time) + 1
    if bool(np.all(hashes_less(ids.hashes[after - 1], ids.hashes[after]))):
        return ids
    tied = np.zeros(len(ids), np.bool_)
    tied[after] = True
    tied[after - 1] = True
    members = np.flatnonzero(tied)
    order = np.arange(len(ids))
    order[members] = members[_by_time_and_hash(ids[members])]
    ids = ids[order]
    repeated = np.zeros(len(ids), np.bool_)
    repeated[1:] = same_time & np.all(ids.words[1:] == ids.words[:-1], axis=1)
    return ids[~repeated] if bool(repeated.any()) else ids


def _by_time_and_hash(ids: SyncIds) -> NDArray[np.int64]:
    """The order of IDs that are in the order of time already."""
    words = ids.hashes.view(">u8").astype(np.uint64)
    new_time = np.zeros(len(ids), np.uint64)
    new_time[1:] = ids.timestamps[1:] != ids.timestamps[:-1]
    times = np.cumsum(new_time)
    time_bits = max(1, int(times[-1]).bit_length())
    keys = times << np.uint64(_WORD_BITS - time_bits) | words[:, 0] >> np.uint64(time_bits)
    order = np.argsort(keys)
    keys = keys[order]
    # Two hashes seldom begin alike, unless somebody made them or an ID is there twice.
    alike = np.flatnonzero(keys[1:] == keys[:-1])
    if bool(np.any(hashes_less(ids.hashes[order[alike + 1]], ids.hashes[order[alike]]))):
        return np.lexsort((*(words[:, word] for word in range(HASH_WORDS - 1, -1, -1)), times))
    return order
