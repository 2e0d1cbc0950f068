"""The storage of a view on a sorted list, and a driver of computations that load from it."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from reconcile.ids import SyncId, SyncIds
from reconcile.summaries.buckets import TimeBuckets as Buckets
from reconcile.view import Loaded, Loading, NeedBuckets, NeedHashes, NeedIds, Needs, proceed

T = TypeVar("T")


@dataclass
class NaiveStorage:
    """Meets what views need, and remembers what that was.

    Attributes:
        ids: what is held, ascending.
        needs: everything that was needed, in its order.
        loaded_ids: how many IDs were loaded in all.
    """

    ids: list[SyncId]
    needs: list[Needs] = field(default_factory=list)
    loaded_ids: int = 0

    @classmethod
    def of(cls, ids: Iterable[SyncId]) -> "NaiveStorage":
        return cls(sorted(set(ids)))

    def buckets(self, length_ns: int) -> Buckets:
        """Return all buckets of a length."""
        return Buckets.of_ids(length_ns, SyncIds.of(self.ids))

    def load(self, needs: Needs) -> Loaded:
        """Return what is needed."""
        self.needs.append(needs)
        match needs:
            case NeedBuckets(length_ns, parents, parent_ns):
                assert len(parents)
                assert bool(np.all(parents % parent_ns == 0))
                return self.buckets(length_ns).within(parents, parent_ns)
            case NeedIds(spans, limit):
                spans.check()
                found: list[SyncId] = []
                for lower, upper in spans.pairs():
                    found += self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]
                self.loaded_ids += min(len(found), limit)
                return SyncIds.of(found[:limit])
            case NeedHashes(hashes):
                wanted = {hash_.tobytes() for hash_ in hashes}
                return SyncIds.of(each for each in reversed(self.ids) if each[1] in wanted)


def run(work: Loading[T], load: Callable[[Needs], Loaded] | None = None) -> T:
    """Return the result of a computation; without ``load`` it must not need anything."""
    found = proceed(work)
    while isinstance(found, Needs):
        assert load is not None, found
        found = proceed(work, load(found))
    return found
