"""The view over summaries: counts and XORs of slices of time, and IDs only where they must be read.

A view does not have everything in memory: it works through a read as a generator, yields what it
needs (`Needs`), is sent that (`Loaded`), and goes on, until the answer is there.

The longest buckets of the whole history are in memory. A span that begins and ends at edges of
buckets is measured from running totals. Of one that does not, the buckets at its ends are divided
into shorter ones, and those of the shortest kind into IDs. A span is cut along edges of buckets as
far as that gives parts of about equal counts; only buckets with more than one part in them are
divided, in the end by count of their IDs.

From a floor on, IDs may be in an index in memory instead (`SummaryView.cover_above`). Each moment
of time belongs to one of the two, so the answer about a range never changes, although the two may
have been opened one after the other.

All that is loaded is bounded: what is read at once, and what is cached for the next read
(`reconcile.limits.SummaryLimits`). However many IDs are involved, they pass a portion at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from reconcile.errors import AnswerTooLargeError, SummaryMismatchError
from reconcile.ids import Ints, SyncId, SyncIds, less
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.buckets import BucketSums, Pieces, TimeBuckets
from reconcile.summaries.cuts import (
    Atoms,
    CutPlan,
    cut_along_edges,
    join_measures,
    join_parts,
    make_ends_expressible,
    merge_atoms,
    order_parts,
    same_spans,
    slice_parts,
)
from reconcile.summaries.leaves import (
    LeafCache,
    Leaves,
    divide_pieces,
    join_spans,
    last_cut,
    rank,
    spans_before,
)
from reconcile.view import (
    Items,
    Measured,
    Probed,
    SpanParts,
    Spans,
    ViewAnswer,
    ViewRead,
    no_fingerprints,
)


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
Loaded: TypeAlias = TimeBuckets | SyncIds
_Result = TypeVar("_Result")
Loading: TypeAlias = Generator[Needs, Loaded, _Result]
"""A computation that asks for what it needs on its way."""


def proceed(reading: Loading[ViewAnswer], loaded: Loaded | None = None) -> Needs | ViewAnswer:
    """Resume with what was loaded, or begin; return the next needs, or the answer.

    Raises:
        SummaryMismatchError: what was loaded contradicts what was loaded before.
    """
    try:
        # The first step of a generator takes None.
        return reading.send(loaded)  # type: ignore[arg-type]
    except StopIteration as ended:
        answer: ViewAnswer = ended.value
        return answer


_Use = Callable[[BucketSums, Pieces], None]
_UseLeaves = Callable[[Leaves, Pieces], None]
_Divided = list[tuple[Ints, Spans]]


@dataclass(frozen=True, slots=True, eq=False)
class _Children:
    """The buckets of a level inside some longer ones."""

    level: int
    parents: Ints
    sums: BucketSums


class SummaryView:
    """A fixed set of IDs that is summarized by buckets.

    ``top`` has the longest buckets of everything; ``finer_ns`` are the lengths of the shorter
    ones, each of which divides the one before it. All that is loaded must be of one moment, that of
    ``top``.
    """

    def __init__(
        self,
        top: TimeBuckets,
        finer_ns: Sequence[int],
        limits: SummaryLimits = DEFAULT_SUMMARY_LIMITS,
    ) -> None:
        self._top = BucketSums(top)
        self._lengths = (top.length_ns, *finer_ns)
        self._limits = limits
        self._leaves = LeafCache(limits.kept_ids)
        self._children: list[_Children] = []
        self._memory = IndexView.of(SyncIds.empty())
        self._floor: SyncId | None = None

    def cover_above(self, floor: SyncId, memory: IndexView) -> None:
        """Read IDs from ``floor`` on from memory, which has none below it, and no others.

        Raises:
            ValueError: the floor is not at the beginning of a nanosecond.
        """
        if any(floor[1]):
            raise ValueError("a floor inside a nanosecond cannot be sent as a bound: move it up")
        self._floor, self._memory = floor, memory

    @property
    def longest_ns(self) -> int:
        """The length of the longest buckets."""
        return self._lengths[0]

    @property
    def cached_buckets(self) -> int:
        """The number of buckets in memory besides the longest ones."""
        return sum(len(children.sums.buckets) for children in self._children)

    def reading(self, read: ViewRead) -> Loading[ViewAnswer]:
        """Compute the answer to a read, a step with each call of `proceed`.

        Raises:
            AnswerTooLargeError: there are more IDs than `SummaryLimits` let be read.
        """
        measured = parts = items = hits = None
        if read.measure is not None:
            measured = yield from self._measure_both(read.measure)
        if read.split is not None:
            parts = yield from self._split_both(*read.split)
        if read.items is not None:
            items = yield from self._read_both(read.items)
        if read.probe is not None:
            hits = yield from self._probe_both(*read.probe)
        return ViewAnswer(measured, parts, items, hits)

    # Above the floor and below

    def _divide(self, spans: Spans) -> tuple[Pieces, Pieces]:
        """Return the pieces below the floor, and the others; a span may have one of each."""
        rows = np.arange(len(spans))
        pieces = Pieces(rows, spans, rows)
        return (pieces, pieces[:0]) if self._floor is None else divide_pieces(pieces, self._floor)

    def _measure_both(self, spans: Spans) -> Loading[Measured]:
        below, above = self._divide(spans)
        counts, fingerprints = np.zeros(len(spans), np.int64), no_fingerprints(len(spans))
        stored = yield from self._measure_all(below.spans)
        for pieces, measured in ((below, stored), (above, self._memory.measure(above.spans))):
            counts[pieces.keys] += measured.counts
            fingerprints[pieces.keys] ^= measured.fingerprints
        return Measured(counts, fingerprints)

    def _read_both(self, spans: Spans) -> Loading[Items]:
        below, above = self._divide(spans)
        stored = yield from self._items(below.spans)
        in_memory = self._memory.items(above.spans)
        offsets = np.zeros(len(spans) + 1, np.int64)
        for pieces, items in ((below, stored), (above, in_memory)):
            offsets[pieces.keys + 1] += np.diff(items.offsets)
        return Items(np.cumsum(offsets), SyncIds.join([stored.ids, in_memory.ids]))

    def _probe_both(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        below, above = self._divide(spans)
        times, hits = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
        stored = yield from self._probe(below.spans, hashes[below.keys])
        in_memory = self._memory.probe(above.spans, hashes[above.keys])
        for pieces, found in ((below, stored), (above, in_memory)):
            hits[pieces.keys] += found.hit
            times[pieces.keys[found.hit]] = found.found.timestamps[found.hit]
        return Probed(SyncIds(times, hashes.copy().view(np.uint8)), hits == 1)

    def _split_both(self, spans: Spans, wanted: Ints) -> Loading[SpanParts]:
        below, above = self._divide(spans)
        wanted_below, wanted_above = wanted[below.keys], wanted[above.keys]
        if len(below) + len(above) == len(spans):
            stored = yield from self._split_all(below.spans, wanted_below)
            return join_parts([stored, self._memory.split(above.spans, wanted_above)])
        last = len(below) - 1
        count = yield from self._measure_all(below.spans[last:])
        measured = join_measures([count, self._memory.measure(above.spans[:1])])
        total = max(int(measured.counts.sum()), 1)
        parts = max(1, min(int(wanted[last]), total))
        share = round(parts * int(measured.counts[0]) / total)
        wanted_below[last], wanted_above[0] = max(1, share), max(1, parts - share)
        stored = yield from self._split_all(below.spans, wanted_below)
        in_memory = self._memory.split(above.spans, wanted_above)
        halves = join_parts([slice_parts(stored, last, last + 1), slice_parts(in_memory, 0, 1)])
        whole = np.array([0, len(halves.upper)])
        span = spans[last : last + 1]
        halves = SpanParts(whole, halves.upper, halves.counts, halves.fingerprints)
        pieces = halves.spans(span.lower)
        owners = np.zeros(len(pieces), np.int64)
        atoms = Atoms(owners, pieces, halves.counts, halves.fingerprints)
        across = merge_atoms(CutPlan(span, np.array([total]), np.array([parts])), atoms)
        rest = slice_parts(in_memory, 1, len(above))
        return join_parts([slice_parts(stored, 0, last), across, rest])

    # Measuring

    def _measure_all(self, spans: Spans) -> Loading[Measured]:
        found: list[Measured] = []
        for start in range(0, len(spans), self._limits.spans_at_once):
            measured = yield from self._measure(spans[start : start + self._limits.spans_at_once])
            found.append(measured)
        return join_measures(found)

    def _measure(self, spans: Spans, use: _UseLeaves | None = None) -> Loading[Measured]:
        """Measure some spans; ``use`` is called with what is loaded, with keys as in `take`."""
        totals = Measured(np.zeros(2 * len(spans), np.int64), no_fingerprints(2 * len(spans)))
        rows = 2 * np.arange(len(spans))
        pieces = self._top.take(Pieces(rows, spans, rows), totals)
        few = self._top.counts_of(pieces.parents) <= self._few(0)
        small, pieces = [pieces[few]], pieces[~few]
        for level in range(1, len(self._lengths)):
            left = [pieces[:0]]

            def take(
                sums: BucketSums, some: Pieces, level: int = level, left: list[Pieces] = left
            ) -> None:
                some = sums.take(some, totals)
                few = sums.counts_of(some.parents) <= self._few(level)
                small.append(some[few])
                left.append(some[~few])

            yield from self._with_buckets(level, pieces, take)
            pieces = Pieces.join(left)

        def measure(leaves: Leaves, some: Pieces) -> None:
            measured = leaves.view.measure(some.spans)
            totals.counts[some.keys] += measured.counts
            totals.fingerprints[some.keys] ^= measured.fingerprints
            if use is not None:
                use(leaves, some)

        yield from self._with_leaves(Pieces.join([*small, pieces]), measure)
        counts, xors = totals.counts, totals.fingerprints
        return Measured(counts[0::2] + counts[1::2], xors[0::2] ^ xors[1::2])

    def _few(self, level: int) -> int:
        """Return the IDs of a bucket up to which these are read instead of shorter buckets."""
        if level + 1 == len(self._lengths):
            return 0
        return self._limits.few_ids * self._lengths[level] // self._lengths[level + 1]

    # Splitting

    def _split_all(self, spans: Spans, wanted: Ints) -> Loading[SpanParts]:
        wanted = np.clip(wanted, 1, self._limits.parts_at_once)
        found: list[SpanParts] = []
        for some in self._portions(wanted):
            parts = yield from self._split(spans[some], wanted[some])
            found.append(parts)
        return join_parts(found)

    def _portions(self, wanted: Ints) -> Iterator[slice]:
        """Yield consecutive spans with a bounded number of parts, one span at least."""
        ends = np.cumsum(wanted)
        start, before = 0, 0
        while start < len(wanted):
            limit = before + self._limits.parts_at_once
            end = max(start + 1, int(np.searchsorted(ends, limit, "right")))
            yield slice(start, end)
            start, before = end, int(ends[end - 1])

    def _split(self, spans: Spans, wanted: Ints) -> Loading[SpanParts]:
        found: list[tuple[Ints, SpanParts]] = []

        def divide(leaves: Leaves, some: Pieces) -> None:
            owners = some.keys // 2
            whole = same_spans(some.spans, spans[owners])
            if not whole.any():
                return
            parts = leaves.view.split(some.spans[whole], wanted[owners[whole]])
            found.append((owners[whole], parts))

        measured = yield from self._measure(spans, divide)
        left = np.ones(len(spans), np.bool_)
        for owners, _ in found:
            left[owners] = False
        if left.any():
            owners = np.flatnonzero(left)
            whole = Measured(measured.counts[left], measured.fingerprints[left])
            parts = yield from self._split_measured(spans[owners], wanted[left], whole)
            found.append((owners, parts))
        return order_parts(found)

    def _split_measured(self, spans: Spans, wanted: Ints, whole: Measured) -> Loading[SpanParts]:
        cut = CutPlan(spans, whole.counts, np.minimum(wanted, np.maximum(whole.counts, 1)))
        atoms = Atoms.of(spans, whole)
        for level in range(len(self._lengths)):
            few = atoms.counts <= (self._few(level - 1) if level else 0)
            big = np.flatnonzero(cut.too_big(atoms) & ~few)
            if len(big):
                atoms = yield from self._split_along(level, atoms, big)
        big = np.flatnonzero(cut.too_big(atoms))
        if len(big):
            atoms = yield from self._split_leaves(cut, atoms, big)
        return merge_atoms(cut, atoms)

    def _split_along(self, level: int, atoms: Atoms, big: Ints) -> Loading[Atoms]:
        """Cut atoms along the buckets of a level; those of the level above have cut them."""
        found: _Divided = []

        def divide(sums: BucketSums, some: Pieces) -> None:
            numbers, spans = cut_along_edges(sums, some)
            # What no bucket begins in stays as it is.
            cut = np.bincount(numbers)[numbers] > 1
            found.append((numbers[cut], spans[cut]))

        spans = atoms.spans[big]
        if level == 0:
            divide(self._top, Pieces(big, spans, big))
        else:
            times = spans.lower.timestamps
            parents = times - times % self._lengths[level - 1]
            yield from self._with_buckets(level, Pieces(big, spans, parents), divide)
        numbers, divided = _in_order(found)
        measured = yield from self._measure_all(divided)
        return atoms.replace(numbers, divided, measured)

    def _split_leaves(self, cut: CutPlan, atoms: Atoms, big: Ints) -> Loading[Atoms]:
        """Cut atoms, each in one bucket, by the count of their IDs."""
        found: _Divided = []
        measures: list[Measured] = []

        def divide(leaves: Leaves, some: Pieces) -> None:
            counts = leaves.view.measure(some.spans).counts
            wanted = cut.parts_of(atoms.owners[some.keys], counts)
            parts = leaves.view.split(some.spans, wanted)
            parts = make_ends_expressible(leaves.view, some.spans, parts)
            keys = np.repeat(some.keys, np.diff(parts.offsets))
            found.append((keys, parts.spans(some.spans.lower)))
            measures.append(Measured(parts.counts, parts.fingerprints))

        yield from self._with_leaves(Pieces(big, atoms.spans[big], big), divide)
        order = np.argsort(np.concatenate([keys for keys, _ in found]), kind="stable")
        numbers, divided = _in_order(found)
        measured = join_measures(measures)
        measured = Measured(measured.counts[order], measured.fingerprints[order])
        return atoms.replace(numbers, divided, measured)

    # Items and hashes

    def _items(self, spans: Spans) -> Loading[Items]:
        counts = np.zeros(len(spans), np.int64)
        owners: list[Ints] = [np.empty(0, np.int64)]
        found: list[SyncIds] = [SyncIds.empty()]

        def collect(leaves: Leaves, some: Pieces) -> None:
            items = leaves.view.items(some.spans)
            sizes = np.diff(items.offsets)
            counts[some.keys] += sizes
            owners.append(np.repeat(some.keys, sizes))
            found.append(items.ids)
            if int(counts.sum()) > self._limits.answer_ids:
                raise AnswerTooLargeError(self._limits.answer_ids)

        keys = np.arange(len(spans))
        yield from self._with_leaves(Pieces(keys, spans, keys), collect)
        joined_owners = np.concatenate(owners)
        ids = SyncIds.join(found)
        if (joined_owners[1:] < joined_owners[:-1]).any():
            ids = ids[np.argsort(joined_owners, kind="stable")]
        return Items(np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), ids)

    def _probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """Probe the first spans, as many as `SummaryLimits` says."""
        count = min(len(spans), self._limits.probes)
        hit = np.zeros(len(spans), np.bool_)
        ids = SyncIds(np.zeros(len(spans), np.int64), hashes.copy().view(np.uint8))
        if count:
            loaded = yield NeedHashes(ids.hashes[:count])
            assert isinstance(loaded, SyncIds)
            times = {hash_: timestamp for timestamp, hash_ in loaded.pairs()}
            for row, (_, hash_) in enumerate(ids[:count].pairs()):
                hit[row] = hash_ in times
                ids.timestamps[row] = times.get(hash_, 0)
            hit &= ~less(ids, spans.lower) & less(ids, spans.upper)
        return Probed(ids, hit)

    # What is loaded

    def _with_buckets(self, level: int, pieces: Pieces, use: _Use) -> Loading[None]:
        """Use the buckets of a level inside the parents of pieces, some parents at a time."""
        for children in self._children[::-1]:
            if len(pieces) and children.level == level:
                here = np.isin(pieces.parents, children.parents)
                if here.any():
                    self._children.remove(children)
                    self._children.append(children)
                    use(children.sums, pieces[here])
                    pieces = pieces[~here]
        while len(pieces):
            parents = np.unique(pieces.parents)[: self._limits.parents_at_once]
            loaded = yield NeedBuckets(self._lengths[level], parents, self._lengths[level - 1])
            assert isinstance(loaded, TimeBuckets)
            children = _Children(level, parents, BucketSums(loaded))
            self._check(children)
            self._keep(children)
            here = np.isin(pieces.parents, parents)
            use(children.sums, pieces[here])
            pieces = pieces[~here]

    def _check(self, children: _Children) -> None:
        """Compare with the longest buckets; shorter ones are compared where they are cut."""
        if children.level != 1:
            return
        length_ns = self._top.buckets.length_ns
        inside = self._top.buckets.of(children.parents)
        summed = TimeBuckets.join(length_ns, [children.sums.buckets])
        wrong = summed.first_difference(inside)
        if wrong is not None:
            raise SummaryMismatchError(wrong, wrong + length_ns)

    def _keep(self, children: _Children) -> None:
        self._children.append(children)
        while len(self._children) > 1 and self.cached_buckets > self._limits.kept_buckets:
            del self._children[0]

    def _with_leaves(self, pieces: Pieces, use: _UseLeaves) -> Loading[None]:
        """Use the IDs in pieces, which ascend; one piece may come in several, one by one."""
        served, pieces = self._leaves.serve(pieces)
        for leaves, some in served:
            use(leaves, some)
        while len(pieces):
            wanted = join_spans(pieces.spans)[: self._limits.spans_at_once]
            loaded = yield NeedIds(wanted, self._limits.ids_at_once)
            assert isinstance(loaded, SyncIds)
            leaves, end = self._leaves_of(wanted, loaded)
            self._leaves.add(leaves)
            some, pieces = divide_pieces(pieces, end)
            if len(some):
                use(leaves, some)

    def _leaves_of(self, wanted: Spans, loaded: SyncIds) -> tuple[Leaves, SyncId]:
        """Return what was loaded, and the bound up to which that is complete."""
        if len(loaded) < self._limits.ids_at_once:
            return Leaves(wanted, IndexView.of(loaded)), wanted.upper.at(len(wanted) - 1)
        end = last_cut(loaded)
        loaded = loaded[: rank(loaded, end)]
        return Leaves(spans_before(wanted, end), IndexView.of(loaded)), end


def _in_order(found: _Divided) -> tuple[Ints, Spans]:
    """Return pieces of several things by the numbers of these; of one thing as they came."""
    numbers = np.concatenate([keys for keys, _ in found])
    order = np.argsort(numbers, kind="stable")
    lower = SyncIds.join([spans.lower for _, spans in found])
    upper = SyncIds.join([spans.upper for _, spans in found])
    return numbers[order], Spans(lower[order], upper[order])


def reads_below(read: ViewRead, floor: SyncId) -> bool:
    """Return True if a read asks for anything below a bound."""
    asked = (
        read.measure,
        read.split and read.split[0],
        read.items,
        read.probe and read.probe[0],
    )
    return any(
        spans is not None and len(spans) > 0 and spans.lower.at(0) < floor for spans in asked
    )
