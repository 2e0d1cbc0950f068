"""A view over summaries: counts and XORs of slices of time, and of IDs only what must be read.

The longest buckets of the whole history are in memory. A span that begins and ends at edges of
buckets is measured from running totals. Of one that does not, the buckets at its ends are taken
apart into shorter ones, and those of the shortest kind into IDs. A span is cut along edges of
buckets as far as that gives parts of about equal counts; only buckets with more than one part in
them are taken apart, in the end by count of their IDs.

All that is loaded is bounded: what is read at once, and what is kept in between for the next read
(`reconcile.limits.SummaryLimits`). However many IDs are involved, they pass a portion at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconcile.errors import AnswerTooLarge, SummaryMismatch
from reconcile.ids import Ints, SyncId, SyncIds, less
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.buckets import Buckets, Pieces, Sums
from reconcile.summaries.cutting import (
    Atoms,
    Cut,
    along_edges,
    joined_measures,
    joined_parts,
    merged,
    parts_as_spans,
    parts_in_order,
    same_spans,
    with_expressible_ends,
)
from reconcile.summaries.leaves import (
    LeafCache,
    Leaves,
    joined,
    last_cut,
    pieces_before,
    rank,
    spans_before,
)
from reconcile.summaries.loading import Loading, LoadingView, NeedBuckets, NeedHashes, NeedIds
from reconcile.view import Items, Measured, Parts, Probed, Spans, no_fingerprints

_Use = Callable[[Sums, Pieces], None]
_UseLeaves = Callable[[Leaves, Pieces], None]
_Divided = list[tuple[Ints, Spans]]


@dataclass(frozen=True, slots=True, eq=False)
class _Children:
    """All buckets of a level inside some longer ones."""

    level: int
    parents: Ints
    sums: Sums


class SummaryView(LoadingView):
    """A fixed set of IDs that is summarised by buckets.

    ``top`` holds the longest buckets of everything; ``finer_ns`` are the lengths of the shorter
    ones, each of which divides the one before it. What is loaded must all be of one moment, that of
    ``top``.
    """

    def __init__(
        self,
        top: Buckets,
        finer_ns: Sequence[int],
        limits: SummaryLimits = DEFAULT_SUMMARY_LIMITS,
    ) -> None:
        self._top = Sums(top)
        self._lengths = (top.length_ns, *finer_ns)
        self._limits = limits
        self._leaves = LeafCache(limits.kept_ids)
        self._children: list[_Children] = []

    @property
    def lengths_ns(self) -> tuple[int, ...]:
        """Lengths of the buckets, the longest first."""
        return self._lengths

    @property
    def kept_ids(self) -> int:
        """IDs that are in memory, and what takes as much of it."""
        return self._leaves.weight

    @property
    def kept_buckets(self) -> int:
        """Buckets that are in memory besides the longest ones."""
        return sum(len(children.sums.buckets) for children in self._children)

    # Measuring

    def measure(self, spans: Spans) -> Loading[Measured]:
        """Counts and fingerprints of spans."""
        found: list[Measured] = []
        for start in range(0, len(spans), self._limits.spans_at_once):
            measured = yield from self._measure(spans[start : start + self._limits.spans_at_once])
            found.append(measured)
        return joined_measures(found)

    def _measure(self, spans: Spans, use: _UseLeaves | None = None) -> Loading[Measured]:
        """Measure some spans; ``use`` is given what is loaded, too, with keys as in `Sums.take`."""
        totals = Measured(np.zeros(2 * len(spans), np.int64), no_fingerprints(2 * len(spans)))
        rows = 2 * np.arange(len(spans))
        pieces = self._top.take(Pieces(rows, spans, rows), totals)
        few = self._top.counts_of(pieces.parents) <= self._few(0)
        small, pieces = [pieces[few]], pieces[~few]
        for level in range(1, len(self._lengths)):
            left = [pieces[:0]]

            def take(
                sums: Sums, some: Pieces, level: int = level, left: list[Pieces] = left
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
        """So few IDs of a bucket are read regardless of shorter ones, which would save little."""
        if level + 1 == len(self._lengths):
            return 0
        return self._limits.few_ids * self._lengths[level] // self._lengths[level + 1]

    # Splitting

    def split(self, spans: Spans, wanted: Ints) -> Loading[Parts]:
        """Spans cut into about so many parts of about equal counts."""
        wanted = np.clip(wanted, 1, self._limits.parts_at_once)
        found: list[Parts] = []
        for some in self._portions(wanted):
            parts = yield from self._split(spans[some], wanted[some])
            found.append(parts)
        return joined_parts(found)

    def _portions(self, wanted: Ints) -> Iterator[slice]:
        """Consecutive spans with a bounded number of parts, one span at least."""
        ends = np.cumsum(wanted)
        start, before = 0, 0
        while start < len(wanted):
            limit = before + self._limits.parts_at_once
            end = max(start + 1, int(np.searchsorted(ends, limit, "right")))
            yield slice(start, end)
            start, before = end, int(ends[end - 1])

    def _split(self, spans: Spans, wanted: Ints) -> Loading[Parts]:
        found: list[tuple[Ints, Parts]] = []

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
        return parts_in_order(found)

    def _split_measured(self, spans: Spans, wanted: Ints, whole: Measured) -> Loading[Parts]:
        cut = Cut(spans, whole.counts, np.minimum(wanted, np.maximum(whole.counts, 1)))
        atoms = Atoms.of(spans, whole)
        for level in range(len(self._lengths)):
            few = atoms.counts <= (self._few(level - 1) if level else 0)
            big = np.flatnonzero(cut.too_big(atoms) & ~few)
            if len(big):
                atoms = yield from self._split_along(level, atoms, big)
        big = np.flatnonzero(cut.too_big(atoms))
        if len(big):
            atoms = yield from self._split_leaves(cut, atoms, big)
        return merged(cut, atoms)

    def _split_along(self, level: int, atoms: Atoms, big: Ints) -> Loading[Atoms]:
        """Cut atoms along the buckets of a level; those of the level above have cut them."""
        found: _Divided = []

        def divide(sums: Sums, some: Pieces) -> None:
            numbers, spans = along_edges(sums, some)
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
        measured = yield from self.measure(divided)
        return atoms.replaced(numbers, divided, measured)

    def _split_leaves(self, cut: Cut, atoms: Atoms, big: Ints) -> Loading[Atoms]:
        """Cut atoms, each in one bucket, by the count of their IDs."""
        found: _Divided = []
        measures: list[Measured] = []

        def divide(leaves: Leaves, some: Pieces) -> None:
            counts = leaves.view.measure(some.spans).counts
            wanted = cut.parts_of(atoms.owners[some.keys], counts)
            parts = leaves.view.split(some.spans, wanted)
            parts = with_expressible_ends(leaves.view, some.spans, parts)
            keys = np.repeat(some.keys, np.diff(parts.offsets))
            found.append((keys, parts_as_spans(some.spans, parts)))
            measures.append(Measured(parts.counts, parts.fingerprints))

        yield from self._with_leaves(Pieces(big, atoms.spans[big], big), divide)
        order = np.argsort(np.concatenate([keys for keys, _ in found]), kind="stable")
        numbers, divided = _in_order(found)
        measured = joined_measures(measures)
        measured = Measured(measured.counts[order], measured.fingerprints[order])
        return atoms.replaced(numbers, divided, measured)

    # Items and hashes

    def items(self, spans: Spans) -> Loading[Items]:
        """The IDs in spans.

        Raises:
            AnswerTooLarge: there are more than `SummaryLimits` let be read.
        """
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
                raise AnswerTooLarge(self._limits.answer_ids)

        keys = np.arange(len(spans))
        yield from self._with_leaves(Pieces(keys, spans, keys), collect)
        joined_owners = np.concatenate(owners)
        ids = SyncIds.join(found)
        if (joined_owners[1:] < joined_owners[:-1]).any():
            ids = ids[np.argsort(joined_owners, kind="stable")]
        return Items(np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), ids)

    def probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """Which spans have exactly one ID with the hash that is looked for in them.

        Of the first ones, as many as `SummaryLimits` says; what comes behind is not looked for.
        """
        count = min(len(spans), self._limits.probes)
        hit = np.zeros(len(spans), np.bool_)
        ids = SyncIds(np.zeros(len(spans), np.int64), hashes.copy().view(np.uint8))
        if count:
            loaded = yield NeedHashes(ids.hashes[:count])
            assert isinstance(loaded, SyncIds)
            held = {hash_: timestamp for timestamp, hash_ in loaded.pairs()}
            for row, (_, hash_) in enumerate(ids[:count].pairs()):
                hit[row] = hash_ in held
                ids.timestamps[row] = held.get(hash_, 0)
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
            assert isinstance(loaded, Buckets)
            children = _Children(level, parents, Sums(loaded))
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
        summed = Buckets.joined(length_ns, [children.sums.buckets])
        wrong = summed.differing(inside)
        if wrong is not None:
            raise SummaryMismatch(wrong, wrong + length_ns)

    def _keep(self, children: _Children) -> None:
        self._children.append(children)
        while len(self._children) > 1 and self.kept_buckets > self._limits.kept_buckets:
            del self._children[0]

    def _with_leaves(self, pieces: Pieces, use: _UseLeaves) -> Loading[None]:
        """Use the IDs in pieces, which ascend; one piece may come in several, one by one."""
        served, pieces = self._leaves.serve(pieces)
        for leaves, some in served:
            use(leaves, some)
        while len(pieces):
            wanted = joined(pieces.spans)[: self._limits.spans_at_once]
            loaded = yield NeedIds(wanted, self._limits.ids_at_once)
            assert isinstance(loaded, SyncIds)
            leaves, end = self._leaves_of(wanted, loaded)
            self._leaves.add(leaves)
            some, pieces = pieces_before(pieces, end)
            if len(some):
                use(leaves, some)

    def _leaves_of(self, wanted: Spans, loaded: SyncIds) -> tuple[Leaves, SyncId]:
        """What was loaded, and the bound up to which that is complete."""
        if len(loaded) < self._limits.ids_at_once:
            return Leaves(wanted, IndexView.of(loaded)), wanted.upper.at(len(wanted) - 1)
        end = last_cut(loaded)
        loaded = loaded[: rank(loaded, end)]
        return Leaves(spans_before(wanted, end), IndexView.of(loaded)), end


def _in_order(found: _Divided) -> tuple[Ints, Spans]:
    """Pieces of several things by the numbers of these; of one thing as they came."""
    numbers = np.concatenate([keys for keys, _ in found])
    order = np.argsort(numbers, kind="stable")
    lower = SyncIds.join([spans.lower for _, spans in found])
    upper = SyncIds.join([spans.upper for _, spans in found])
    return numbers[order], Spans(lower[order], upper[order])
