"""The ``RangesData`` payload as arrays (WAKU-SYNC, "Reconciliation payload")."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_DTYPE, HASH_WORDS, Ints, SyncIds, Words, less
from storenode.message.limits import HASH_BYTES


class RangeKind:
    """A type of a range, as its byte on the wire (WAKU-SYNC, "RangeType")."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ITEM_SET: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Consecutive ranges as columns, m of them.

    The lower bound of a range is the upper bound of the one before it; of the first it is
    ``LOWEST``.

    Attributes:
        upper: ``(m,)`` upper bounds, exclusive, as a decoder sees them.
        kinds: ``(m,)``, of ``RangeKind``.
        fingerprints: ``(m, 4)`` native words; zeros where a range has none.
        counts: ``(m,)``, the items of each; 0 where it is no set.
        reconciled: ``(m,)``; False where it is no set.
        items: the items of all sets, one set after the other.
    """

    upper: SyncIds
    kinds: NDArray[np.uint8]
    fingerprints: Words
    counts: Ints
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
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.reconciled, other.reconciled)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def lower(self) -> SyncIds:
        """``(m,)`` lower bounds, inclusive."""
        timestamps = np.zeros(len(self), np.int64)
        timestamps[1:] = self.upper.timestamps[:-1]
        if self.upper.plain:
            return SyncIds.at_times(timestamps)
        hashes = np.zeros((len(self), HASH_BYTES), HASH_DTYPE)
        hashes[1:] = self.upper.hashes[:-1]
        return SyncIds(timestamps, hashes)

    @classmethod
    def empty(cls) -> "Ranges":
        """Return no ranges."""
        return _NO_RANGES

    @classmethod
    def plain(
        cls, upper: SyncIds, kinds: NDArray[np.uint8], prints: NDArray[np.uint64]
    ) -> "Ranges":
        """Return ranges of which none is a set."""
        counts = np.zeros(len(kinds), np.int64)
        return cls(upper, kinds, prints, counts, np.zeros(len(kinds), np.bool_), SyncIds.empty())

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
        assert self.fingerprints.shape == (len(kinds), HASH_WORDS)
        assert not self.fingerprints[kinds != RangeKind.FINGERPRINT].any()
        assert len(self.counts) == len(self.reconciled) == len(kinds)
        assert bool(np.all(self.counts >= 0))
        assert not self.counts[~sets].any()
        assert not self.reconciled[~sets].any()
        assert len(self.items) == int(self.counts.sum())
        self.upper.check()
        self.items.check()
        assert bool(np.all(less(lower[:1], self.upper[:1])))
        owner = np.repeat(np.arange(len(kinds)), self.counts)
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


_NO_RANGES: Final = Ranges.plain(
    SyncIds.empty(), np.empty(0, np.uint8), np.empty((0, HASH_WORDS), np.uint64)
)
