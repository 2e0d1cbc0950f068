"""The content of a database at one moment, as views over summaries load it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.buckets import TimeBuckets as Buckets
from reconcile.view import Loaded, NeedBuckets, NeedHashes, NeedIds, Needs
from store.domain.hub import START, Place
from store.domain.view import Span
from storenode.message.limits import CONTENT_DIGEST_BYTES


class Snapshot:
    """Ascending IDs, and the lengths of their buckets in nanoseconds, the longest first.

    Attributes:
        place: of the newest commit.
        horizon_ns: everything older was dropped.
    """

    def __init__(
        self,
        ids: Sequence[SyncId],
        lengths_ns: Sequence[int],
        place: Place = START,
        horizon_ns: int = 0,
        digests: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Copy IDs; ``digests`` are the content digests by hash, None: zeros."""
        self.ids = list(ids)
        self.place = place
        self.horizon_ns = horizon_ns
        self._lengths_ns = lengths_ns
        self._digests = digests
        self._all = SyncIds.of(self.ids)
        self._buckets: dict[int, Buckets] = {}

    def top(self) -> Buckets:
        """Return the longest buckets."""
        return self._of(self._lengths_ns[0])

    def between(self, lower: SyncId, upper: SyncId) -> list[SyncId]:
        """Return the IDs in a half-open range."""
        return self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]

    def lattices(self, spans: Sequence[Span]) -> list[LatticeSum]:
        """Return the lattice sums of ranges of time."""
        no_hash = LOWEST[1]
        found = [self.between((low, no_hash), (high, no_hash)) for low, high in spans]
        return [LatticeSum.of(self.contents(SyncIds.of(ids)).elements) for ids in found]

    def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs with their content digests."""
        if self._digests is None:
            return ids
        joined = b"".join(self._digests[digest.tobytes()] for digest in ids.hashes)
        digests = np.frombuffer(joined, np.uint8).reshape(-1, CONTENT_DIGEST_BYTES)
        return SyncIds(ids.timestamps, ids.hashes, digests)

    def load(self, needs: Needs) -> Loaded:
        """Load what a view needs."""
        match needs:
            case NeedBuckets(length_ns, parents, parent_ns):
                return self._of(length_ns).within(parents, parent_ns)
            case NeedIds(spans, limit):
                found: list[SyncId] = []
                for lower, upper in spans.pairs():
                    found += self.between(lower, upper)
                    if len(found) >= limit:
                        break
                return self.contents(SyncIds.of(found[:limit]))
            case NeedHashes(hashes):
                wanted = {digest.tobytes() for digest in hashes}
                return SyncIds.of(each for each in self.ids if each[1] in wanted)

    def _of(self, length_ns: int) -> Buckets:
        if length_ns not in self._buckets:
            self._buckets[length_ns] = Buckets.of_ids(length_ns, self._all)
        return self._buckets[length_ns]
