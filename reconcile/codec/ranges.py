"""The ``RangesData`` payload as arrays (WAKU-SYNC, "Reconciliation payload")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_WORDS, LOWEST, Bools, Ints, SyncIds, Words, less, match
from reconcile.view import Spans, no_fingerprints


class RangeKind:
    """A type of a range, as its byte on the wire (WAKU-SYNC, "RangeType")."""

    SKIP: Final = 0
    FINGERPRINT: Final = 1
    ITEM_SET: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ascending, disjoint ranges as columns, m of them.

    In a payload a range begins where the one before it ends, and the first one at ``LOWEST``.

    Attributes:
        upper: ``(m,)`` upper bounds, exclusive, as a decoder sees them.
        kinds: ``(m,)``, of ``RangeKind``.
        fingerprints: ``(m, 4)`` native words; zeros where a range has none.
        counts: ``(m,)``, the items of each; 0 where it is no set.
        reconciled: ``(m,)``; False where it is no set.
        items: the items of all sets, one set after the other.
        starts: ``(m,)`` lower bounds, inclusive; None: those of a payload.
    """

    upper: SyncIds
    kinds: NDArray[np.uint8]
    fingerprints: Words
    counts: Ints
    reconciled: Bools
    items: SyncIds
    starts: SyncIds | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return (
            self.upper == other.upper
            and self.lower == other.lower
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
        if self.starts is not None:
            return self.starts
        return SyncIds.join([SyncIds.of([LOWEST]), self.upper[:-1]])[: len(self)]

    @property
    def spans(self) -> Spans:
        """The spans of all ranges."""
        return Spans(self.lower, self.upper)

    @classmethod
    def empty(cls) -> Ranges:
        """Return no ranges."""
        return _NO_RANGES

    @classmethod
    def of_prints(cls, spans: Spans, prints: Words, kind: int = RangeKind.FINGERPRINT) -> Ranges:
        """Return ranges with fingerprints, or Skips with zeros for these."""
        kinds, counts = np.full(len(spans), kind, np.uint8), np.zeros(len(spans), np.int64)
        never = np.zeros(len(spans), np.bool_)
        return cls(spans.upper, kinds, prints, counts, never, SyncIds.empty(), spans.lower)

    @classmethod
    def of_sets(cls, spans: Spans, counts: Ints, items: SyncIds, *, reconciled: bool) -> Ranges:
        """Return item sets that are all reconciled, or none of them."""
        kinds = np.full(len(spans), RangeKind.ITEM_SET, np.uint8)
        prints, flags = no_fingerprints(len(spans)), np.full(len(spans), reconciled)
        return cls(spans.upper, kinds, prints, counts, flags, items, spans.lower)

    @classmethod
    def join(cls, parts: Sequence[Ranges]) -> Ranges:
        """Return the ranges of all parts, one part after the other."""
        return cls(
            SyncIds.join([part.upper for part in parts]),
            np.concatenate([part.kinds for part in parts]),
            np.concatenate([part.fingerprints for part in parts]),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.reconciled for part in parts]),
            SyncIds.join([part.items for part in parts]),
            SyncIds.join([part.lower for part in parts]),
        )

    def take(self, rows: Ints) -> Ranges:
        """Return some ranges with their items, in another order."""
        counts, items = self.counts.take(rows), self.items
        if len(items):
            starts, ends = np.cumsum(self.counts) - self.counts, np.cumsum(counts)
            places = np.repeat(starts[rows] - ends + counts, counts) + np.arange(counts.sum())
            items = items[places]
        return Ranges(
            self.upper.take(rows),
            self.kinds.take(rows),
            self.fingerprints.take(rows, 0),
            counts,
            self.reconciled.take(rows),
            items,
            self.lower.take(rows),
        )

    def cut(self, rows: Ints, spans: Spans) -> Ranges:
        """Return parts of ranges, which leave out no item; ``rows``: of which range each is one."""
        return Ranges(
            spans.upper,
            self.kinds[rows],
            self.fingerprints[rows],
            np.diff(match(self.items, spans.upper).places, prepend=0),
            self.reconciled[rows],
            self.items,
            spans.lower,
        )

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


_NO_RANGES: Final = Ranges.of_prints(Spans.empty(), no_fingerprints(0))
