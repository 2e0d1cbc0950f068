"""The seam between a reconciliation and the storage of its IDs.

A session reads counts, fingerprints, bounds and IDs of spans from a view. A view is fixed: an
answer never changes while it is open (WAKU-SYNC, "Responding to a RangesData payload", where each
range is compared with one local range). `reconcile.summaries.summary.SummaryView` has an index in
memory, summaries in a database, or both.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_WORDS, SyncId, SyncIds, less

if TYPE_CHECKING:
    from reconcile.index import IndexView
    from reconcile.summaries.buckets import TimeBuckets


@dataclass(frozen=True, slots=True)
class Spans:
    """Half-open ranges of IDs, disjoint and ascending; consecutive ones may touch.

    Attributes:
        lower: ``(n,)`` inclusive bounds.
        upper: ``(n,)`` exclusive bounds, each greater than its lower one.
        places: the places of both bounds, by view: a later question about some of the spans
            need not look for them again.
    """

    lower: SyncIds
    upper: SyncIds
    places: dict[object, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.lower)

    def __getitem__(self, selection: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Spans:
        """Select spans by a slice, an ascending index array or a mask."""
        places = {
            view: (low[selection], high[selection]) for view, (low, high) in self.places.items()
        }
        return Spans(self.lower[selection], self.upper[selection], places)

    @classmethod
    def empty(cls) -> Spans:
        """Return no spans."""
        return cls(SyncIds.empty(), SyncIds.empty())

    @classmethod
    def of(cls, pairs: list[tuple[SyncId, SyncId]]) -> Spans:
        """Return the spans of (lower, upper) pairs, in this order."""
        return cls(
            SyncIds.of(lower for lower, _ in pairs),
            SyncIds.of(upper for _, upper in pairs),
        )

    def pairs(self) -> list[tuple[SyncId, SyncId]]:
        """Return all spans as (lower, upper) pairs."""
        return list(zip(self.lower.pairs(), self.upper.pairs(), strict=True))

    def check(self) -> None:
        """Verify that the spans are not empty, disjoint and ascending.

        Raises:
            AssertionError: something of it does not hold.
        """
        assert len(self.lower) == len(self.upper)
        assert bool(np.all(less(self.lower, self.upper)))
        assert not bool(np.any(less(self.lower[1:], self.upper[:-1])))


@dataclass(frozen=True, slots=True)
class Measured:
    """Counts ``(n,)`` and fingerprints ``(n, 4)`` (WAKU-SYNC, "Fingerprint") of spans."""

    counts: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SpanParts:
    """Spans, cut into parts; consecutive parts of a span touch and together are the span.

    Every upper bound but a span's last is one that WAKU-SYNC's encoding can express directly
    after the bound before it ("Delta encoding for sequential SyncIDs"), beginning with the
    span's lower bound. A part may be empty; a span of two IDs or more that is to be cut at
    all has two parts or more that are not.

    Attributes:
        offsets: ``(n + 1,)``; the parts of span i are ``offsets[i]:offsets[i + 1]``, one at least.
        upper: ``(k,)`` exclusive upper bounds; a span's last is the span's own.
        counts: ``(k,)``.
        fingerprints: ``(k, 4)``.
    """

    offsets: NDArray[np.int64]
    upper: SyncIds
    counts: NDArray[np.int64]
    fingerprints: NDArray[np.uint64]

    def spans(self, lower: SyncIds) -> Spans:
        """Return the parts with both bounds; ``lower``: the lower bounds of the cut spans."""
        return chain_spans(lower, self.offsets[:-1], self.upper)


def chain_spans(lower: SyncIds, starts: NDArray[np.int64], upper: SyncIds) -> Spans:
    """Return touching spans in groups.

    Args:
        lower: ``(g,)`` the lower bound of each group.
        starts: ``(g,)`` the place of its first span.
        upper: ``(n,)`` the upper bounds of all spans.
    """
    rows = np.arange(len(upper)) - 1
    rows[starts] = len(upper) + np.arange(len(lower))
    return Spans(SyncIds.join([upper, lower]).take(rows), upper)


@dataclass(frozen=True, slots=True)
class Items:
    """The IDs in spans, ascending: those of span i are ``ids[offsets[i]:offsets[i + 1]]``."""

    offsets: NDArray[np.int64]
    ids: SyncIds


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of looking for hashes.

    Attributes:
        found: ``(n,)`` that ID; unspecified where there is no hit.
        hit: ``(n,)``. A view may say no where looking would cost too much.
    """

    found: SyncIds
    hit: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NeedBuckets:
    """The buckets of one length inside some longer ones, as `TimeBuckets`.

    Attributes:
        length_ns: the length of the wanted ones.
        parents: ``(n,)``, starts of the longer ones, ascending.
        parent_ns: the length of these.
    """

    length_ns: int
    parents: NDArray[np.int64]
    parent_ns: int


@dataclass(frozen=True, slots=True)
class NeedIds:
    """The IDs in some spans, ascending, at most ``limit`` of them, as `SyncIds`.

    Exactly ``limit`` IDs mean that there may be more. ``contents``: with their digests.
    """

    spans: Spans
    limit: int
    contents: bool = False


@dataclass(frozen=True, slots=True)
class NeedHashes:
    """The IDs, in any order, that have one of some hashes, ``(n, 32)``, as `SyncIds`."""

    hashes: NDArray[np.uint8]


Needs: TypeAlias = NeedBuckets | NeedIds | NeedHashes
Loaded: TypeAlias = "TimeBuckets | SyncIds"
_Result = TypeVar("_Result")
Loading: TypeAlias = Generator[Needs, Loaded, _Result]
"""A computation that asks for what it needs on its way."""


def proceed(work: Loading[_Result], loaded: Loaded | None = None) -> Needs | _Result:
    """Resume with what was loaded, or begin; return the next needs, or the result.

    Raises:
        SummaryMismatchError: what was loaded contradicts what was loaded before.
    """
    try:
        # The first step of a generator takes None.
        return work.send(loaded)  # type: ignore[arg-type]
    except StopIteration as ended:
        result: _Result = ended.value
        return result


class View(Protocol):
    """A fixed, ordered set of IDs.

    Each method is a generator that yields what must be loaded from storage, and returns the answer.
    """

    @property
    def memory(self) -> tuple[IndexView, SyncId] | None:
        """An index, and the bound from which on it has every ID; None: there is none."""

    def measure(self, spans: Spans) -> Loading[Measured]:
        """Return counts and fingerprints of spans."""

    def split(self, spans: Spans, wanted: NDArray[np.int64]) -> Loading[SpanParts]:
        """Cut each span into about `wanted[i]` parts of about equal counts; below 1 counts as 1."""

    def items(self, spans: Spans) -> Loading[Items]:
        """Return the IDs in spans."""

    def probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """Find the spans that have exactly one ID with the hash that is looked for in them."""


def no_fingerprints(count: int) -> NDArray[np.uint64]:
    """Return ``(count, 4)`` fingerprints of no IDs."""
    return np.zeros((count, HASH_WORDS), np.uint64)
