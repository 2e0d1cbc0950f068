"""The ``RangesData`` payload as arrays (WAKU-SYNC, "Reconciliation payload")."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_DTYPE, HASH_WORDS, SyncIds, less
from storenode.message.limits import HASH_BYTES


class RangeKind:
    """A type of a range, as its byte on the wire (WAKU-SYNC, "RangeType")."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ITEM_SET: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Consecutive ranges as columns: m of them, f with a fingerprint, s with an item set.

    The lower bound of a range is the upper bound of the one before it; of the first it is
    ``LOWEST``.

    Attributes:
        upper: ``(m,)`` upper bounds, exclusive, as a decoder sees them.
        kinds: ``(m,)``, of ``RangeKind``.
        fingerprints: ``(f, 4)`` native words, in the order of their ranges.
        item_counts: ``(s,)``, in the order of their ranges.
        reconciled: ``(s,)``.
        items: the items of all sets, one set after the other.
    """

    upper: SyncIds
    kinds: NDArray[np.uint8]
    fingerprints: NDArray[np.uint64]
    item_counts: NDArray[np.int64]
    reconciled: NDArray[np.bool_]
    items: SyncIds

    def __len__(self) -> int:
        return len(self.kinds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return (
            self.upper == other.upper
            and self.items == other.items
            and np.array_equal(self.kinds, other.kinds)
            and np.array_equal(self.fingerprints, other.fingerprints)
            and np.array_equal(self.item_counts, other.item_counts)
            and np.array_equal(self.reconciled, other.reconciled)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def lower(self) -> SyncIds:
        """``(m,)`` lower bounds, inclusive."""
        timestamps = np.zeros(len(self), np.int64)
        hashes = np.zeros((len(self), HASH_BYTES), HASH_DTYPE)
        timestamps[1:] = self.upper.timestamps[:-1]
        hashes[1:] = self.upper.hashes[:-1]
        return SyncIds(timestamps, hashes)

    @property
    def item_offsets(self) -> NDArray[np.int64]:
        """``(s + 1,)``: the items of set i are ``items[offsets[i]:offsets[i + 1]]``."""
        offsets = np.zeros(len(self.item_counts) + 1, np.int64)
        if len(self.item_counts):
            self.item_counts.cumsum(out=offsets[1:])
        return offsets

    @classmethod
    def empty(cls) -> "Ranges":
        """Return no ranges."""
        return _NO_RANGES

    def check(self) -> None:
        """Verify what every payload has: ascending bounds, and ascending items inside them.

        Raises:
            AssertionError: something of it does not hold.
        """
        kinds, lower = self.kinds, self.lower
        sets = kinds == RangeKind.ITEM_SET
        assert kinds.dtype == np.uint8
        assert bool(np.all(kinds <= RangeKind.ITEM_SET))
        assert self.fingerprints.dtype == np.uint64
        assert self.fingerprints.shape == (np.count_nonzero(kinds == 1), HASH_WORDS)
        assert len(self.item_counts) == len(self.reconciled) == np.count_nonzero(sets)
        assert bool(np.all(self.item_counts >= 0))
        assert len(self.items) == int(self.item_counts.sum())
        self.upper.check()
        self.items.check()
        assert bool(np.all(less(lower[:1], self.upper[:1])))
        owner = np.repeat(np.flatnonzero(sets), self.item_counts)
        assert not bool(np.any(less(self.items, lower[owner])))
        assert bool(np.all(less(self.items, self.upper[owner])))


@dataclass(frozen=True, slots=True)
class Payload:
    """A ``RangesData``. Without ranges it is the empty payload, zero bytes on the wire.

    Attributes:
        cluster: the sender's cluster.
        shards: the sender's shards, in the order sent.
        ranges: what it says about which ranges.
    """

    cluster: int
    shards: tuple[int, ...]
    ranges: Ranges


_NO_RANGES: Final = Ranges(
    SyncIds.empty(),
    np.empty(0, np.uint8),
    np.empty((0, HASH_WORDS), np.uint64),
    np.empty(0, np.int64),
    np.empty(0, np.bool_),
    SyncIds.empty(),
)
