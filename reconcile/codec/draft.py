"""What the parsers find: numbers, and where in the payload the hashes lie."""

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec.ranges import Ranges
from reconcile.ids import HASH_DTYPE, HASH_WORDS, OPAQUE_HASH, SyncIds, from_opaque
from storenode.message.limits import HASH_BYTES

_PREFIX_MASKS: Final = np.tri(HASH_BYTES + 1, HASH_BYTES, -1, HASH_DTYPE) * HASH_DTYPE(0xFF)
"""Row n keeps the first n bytes of a hash."""


class Draft:
    """Columns of the ranges read so far: 8 bytes or less an entry, no objects."""

    def __init__(self) -> None:
        self.bounds = array("q")
        self.kinds = bytearray()
        self.prefix_rows = array("q")
        self.prefixes_at = array("q")
        self.prefix_lengths = bytearray()
        self.fingerprints_at = array("q")
        self.item_counts = array("q")
        self.reconciled = bytearray()
        self.items = array("q")
        self.hashes_at = array("q")

    def add_ranges(
        self,
        bounds: NDArray[np.int64],
        kinds: NDArray[np.uint8],
        fingerprints_at: NDArray[np.int64],
    ) -> None:
        """Append ranges, after ``add_prefixes`` of those whose bounds have one."""
        self.bounds.frombytes(bounds.view(np.uint8).data)
        self.kinds += kinds.tobytes()
        self.fingerprints_at.frombytes(fingerprints_at.view(np.uint8).data)

    def add_prefixes(
        self, rows: NDArray[np.int64], places: NDArray[np.int64], lengths: NDArray[np.uint8]
    ) -> None:
        """The hashes of the bounds in some rows are the bytes at some places, then zeros."""
        self.prefix_rows.frombytes(rows.view(np.uint8).data)
        self.prefixes_at.frombytes(places.view(np.uint8).data)
        self.prefix_lengths += lengths.tobytes()

    def add_sets(self, counts: NDArray[np.int64], reconciled: NDArray[np.uint8]) -> None:
        """Append what is said of item sets."""
        self.item_counts.frombytes(counts.view(np.uint8).data)
        self.reconciled += reconciled.tobytes()

    def add_items(self, timestamps: NDArray[np.int64], hashes_at: NDArray[np.int64]) -> None:
        """Append items."""
        self.items.frombytes(timestamps.view(np.uint8).data)
        self.hashes_at.frombytes(hashes_at.view(np.uint8).data)

    def last_bound(self, data: bytes) -> tuple[int, bytes]:
        """The upper bound of the last range."""
        if not self.prefix_rows or self.prefix_rows[-1] != len(self.bounds) - 1:
            return self.bounds[-1], bytes(HASH_BYTES)
        at = self.prefixes_at[-1]
        return self.bounds[-1], data[at : at + self.prefix_lengths[-1]].ljust(HASH_BYTES, b"\0")

    def ranges(self, data: bytes) -> Ranges:
        """The ranges, with the hashes gathered from the payload that was read."""
        fingerprints = _gather(data, np.frombuffer(self.fingerprints_at, np.int64))
        items = _gather(data, np.frombuffer(self.hashes_at, np.int64))
        bounds = np.frombuffer(self.bounds, np.int64)
        has_hashes = len(self.prefix_rows) > 0
        return Ranges(
            SyncIds(bounds, self._bound_hashes(data)) if has_hashes else SyncIds.at_times(bounds),
            np.frombuffer(self.kinds, np.uint8),
            fingerprints.view(np.uint64).reshape(-1, HASH_WORDS),
            np.frombuffer(self.item_counts, np.int64),
            np.frombuffer(self.reconciled, np.bool_),
            SyncIds(np.frombuffer(self.items, np.int64), items),
        )

    def _bound_hashes(self, data: bytes) -> NDArray[np.uint8]:
        hashes = np.zeros((len(self.kinds), HASH_BYTES), HASH_DTYPE)
        places = np.frombuffer(self.prefixes_at, np.int64)
        sent = _gather(data, places)
        sent &= _PREFIX_MASKS[np.frombuffer(self.prefix_lengths, np.uint8)]
        hashes[np.frombuffer(self.prefix_rows, np.int64)] = sent
        return hashes


def _gather(data: bytes, places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The 32 bytes at each of some ascending places, ``(n, 32)``; zeros past the end."""
    whole = len(data) - HASH_BYTES
    inside = np.searchsorted(places, whole, side="right")
    windows: NDArray[np.void] = np.ndarray((max(whole + 1, 0),), OPAQUE_HASH, data, strides=(1,))
    if inside == len(places):
        return from_opaque(windows[places])
    tail = b"".join(
        data[at : at + HASH_BYTES].ljust(HASH_BYTES, b"\0") for at in places[inside:].tolist()
    )
    rest = np.frombuffer(tail, OPAQUE_HASH)
    return from_opaque(np.concatenate((windows[places[:inside]], rest)))
