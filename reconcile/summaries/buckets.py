"""The buckets of a history: counts and XORs of slices of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import Ints, SyncIds
from reconcile.view import no_fingerprints


@dataclass(frozen=True, slots=True, eq=False)
class TimeBuckets:
    """The slices of time of one length that have IDs in them, ascending, each once.

    Attributes:
        length_ns: how long each is; it begins at a multiple of that since the epoch.
        starts: ``(n,)``, nanoseconds.
        counts: ``(n,)``, of the IDs in it.
        xors: ``(n, 4)``, of their hashes.
    """

    length_ns: int
    starts: Ints
    counts: Ints
    xors: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def empty(cls, length_ns: int) -> TimeBuckets:
        """Return no buckets."""
        none = np.empty(0, np.int64)
        return cls(length_ns, none, none, no_fingerprints(0))

    @classmethod
    def of_ids(cls, length_ns: int, ids: SyncIds) -> TimeBuckets:
        """Return the buckets of some ascending IDs."""
        return cls.total(length_ns, ids.timestamps, np.ones(len(ids), np.int64), ids.words)

    @classmethod
    def total(
        cls, length_ns: int, times: Ints, counts: Ints, xors: NDArray[np.uint64]
    ) -> TimeBuckets:
        """Return the buckets of parts that begin at ``times``, in any order."""
        starts = times - times % length_ns
        if not len(starts):
            return cls.empty(length_ns)
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        first = np.flatnonzero(np.concatenate(([True], starts[1:] != starts[:-1])))
        return cls(
            length_ns,
            starts[first],
            np.add.reduceat(counts[order], first),
            np.bitwise_xor.reduceat(xors[order], first, axis=0),
        )

    @classmethod
    def join(cls, length_ns: int, parts: Iterable[TimeBuckets]) -> TimeBuckets:
        """Return the buckets of all that is in some shorter ones, or ones of this length."""
        listed = list(parts)
        return cls.total(
            length_ns,
            np.concatenate([part.starts for part in listed]),
            np.concatenate([part.counts for part in listed]),
            np.concatenate([part.xors for part in listed]),
        )

    def within(self, parents: Ints, parent_ns: int) -> TimeBuckets:
        """Return the buckets that lie in one of some longer slices, whose starts are given."""
        inside = np.isin(self.starts - self.starts % parent_ns, parents)
        return TimeBuckets(
            self.length_ns, self.starts[inside], self.counts[inside], self.xors[inside]
        )
