"""The view over summaries: counts and XORs of slices of time, and IDs only where they must be read.

A view does not have everything in memory: each of its methods is a generator that yields what it
needs (`Needs`), is sent that (`Loaded`), and continues, until the answer is there.

The view has one list of *slices* of the history that have IDs, at first its longest buckets. The
key of a slice is its level: the number of its length, or, for one that is known by its IDs only,
the number of lengths. A span that begins and ends at edges of slices is measured from running
totals. A slice that an edge of a span falls into is divided first: a bucket into the shorter ones
in it, and one of the shortest, or one of few IDs, at the edge itself, by its IDs. A span is cut
along edges of slices, which are divided while they have more than one part in them, in the end by
count of their IDs.

From a floor on, IDs may be in an index in memory instead (`SummaryView.cover_above`). Each moment
of time belongs to one of the two, so the answer about a range never changes, although the two may
have been opened one after the other.

All that is loaded is bounded: what is read at once, and what is kept for the next read
(`reconcile.limits.SummaryLimits`). However many IDs are involved, they pass a portion at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.codec import bridge
from reconcile.errors import AnswerTooLargeError
from reconcile.ids import END, Ints, SyncId, SyncIds, less, ordered, rank, rows_differ
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.buckets import TimeBuckets
from reconcile.summaries.pieces import (
    Pieces,
    are_covered,
    cut_spans,
    divide_spans,
    ends_of_parts,
    join_measures,
    join_parts,
    join_spans,
    last_cut,
    parts_within,
)
from reconcile.view import (
    Items,
    Loading,
    Measured,
    NeedBuckets,
    NeedHashes,
    NeedIds,
    Probed,
    SpanParts,
    Spans,
    chain_spans,
    no_fingerprints,
)
from storenode.message.limits import MAX_TIMESTAMP_NS

_Cut = Callable[[IndexView, Ints, Spans], SpanParts]
"""Cuts some spans, given with their keys, by IDs that have all of them."""

_NEVER: Final = np.iinfo(np.int64).max


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
        self._lengths = (top.length_ns, *finer_ns)
        self._limits = limits
        self._top = self._slices = _pieces_of(0, top)
        self._loaded: list[tuple[Spans, IndexView]] = []
        self._memory = IndexView.of(SyncIds.empty())
        self._floor: SyncId = END
        ratios = [longer // shorter for longer, shorter in pairwise(self._lengths)]
        # Of a slice of each level: the IDs up to which these are read instead of shorter buckets.
        self._few = np.array([*(limits.few_ids * ratio for ratio in ratios), _NEVER, _NEVER])

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
    def kept_slices(self) -> int:
        """The number of slices in memory, without the longest buckets."""
        return max(0, len(self._slices) - len(self._top))

    @property
    def kept_ids(self) -> int:
        """The number of IDs that take as much memory as what is kept of loaded ones."""
        return sum(len(view) + 2 * len(spans) for spans, view in self._loaded)

    @property
    def memory(self) -> tuple[IndexView, SyncId] | None:
        """The index in memory, and the bound from which on it has every ID."""
        return None if self._floor == END else (self._memory, self._floor)

    # Measuring

    def measure(self, spans: Spans) -> Loading[Measured]:
        """Return counts and fingerprints of spans."""
        found: list[Measured] = []
        for start in range(0, len(spans), self._limits.spans_at_once):
            some = spans[start : start + self._limits.spans_at_once]
            yield from self._cut_at_edges(some)
            found.append(self._measure(some))
        return join_measures(found)

    def _measure(self, spans: Spans) -> Measured:
        """Measure spans whose edges are inside of no slice."""
        counts, prints = np.zeros(len(spans), np.int64), no_fingerprints(len(spans))
        below, stored, above, in_memory = self._divide_at_floor(spans)
        for keys, measured in (
            (below, self._slices.measure(stored)),
            (above, self._memory.measure(in_memory)),
        ):
            counts[keys] += measured.counts
            prints[keys] ^= measured.fingerprints
        return Measured(counts, prints)

    def _divide_at_floor(self, spans: Spans) -> tuple[Ints, Spans, Ints, Spans]:
        return divide_spans(np.arange(len(spans)), spans, self._floor)

    def _cut_at_edges(self, spans: Spans) -> Loading[None]:
        """Divide slices until no edge of a span, and not the floor, is inside of one."""
        if self.kept_slices > self._limits.kept_buckets:
            self._slices = self._top
        _, stored, _, _ = self._divide_at_floor(spans)
        edges = ordered(SyncIds.join([stored.lower, stored.upper]))

        def cut(view: IndexView, _: Ints, some: Spans) -> SpanParts:
            owners, parts = cut_spans(some, edges)
            measured = view.measure(parts)
            offsets = np.searchsorted(owners, np.arange(len(some) + 1))
            return SpanParts(offsets, parts.upper, measured.counts, measured.fingerprints)

        while len(numbers := self._slices.holding(edges)):
            slices = self._slices[numbers]
            many = slices.counts > self._few[slices.keys]
            if many.any():
                yield from self._divide(numbers[many])
            else:
                pieces = yield from self._cut_by_ids(numbers, slices.spans, cut)
                self._replace(numbers, pieces.keys, len(self._lengths), pieces)

    def _divide(self, numbers: Ints) -> Loading[None]:
        """Divide slices into shorter buckets, those of the longest length, and not too many."""
        slices = self._slices
        level = int(slices.keys[numbers].min())
        numbers = numbers[slices.keys[numbers] == level][: self._limits.parents_at_once]
        length_ns, parents = self._lengths[level], slices.spans.lower.timestamps[numbers]
        loaded = yield NeedBuckets(self._lengths[level + 1], parents, length_ns)
        assert isinstance(loaded, TimeBuckets)
        owners = np.searchsorted(parents, loaded.starts - loaded.starts % length_ns)
        self._replace(numbers, numbers[owners], level + 1, _pieces_of(level + 1, loaded))

    def _replace(self, numbers: Ints, owners: Ints, level: int, pieces: Pieces) -> None:
        """Replace slices by pieces of them, without those that have no IDs."""
        filled = np.flatnonzero(pieces.counts)
        keys = np.full(len(pieces), level)
        pieces = Pieces(keys, pieces.spans, pieces.counts, pieces.xors)[filled]
        self._slices = self._slices.replace(numbers, owners[filled], pieces)

    # Splitting

    def split(self, spans: Spans, wanted: Ints) -> Loading[SpanParts]:
        """Cut each span into about `wanted[i]` parts of about equal counts; below 1 counts as 1."""
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
        yield from self._cut_at_edges(spans)
        counts = self._measure(spans).counts
        wanted = np.minimum(wanted, np.maximum(counts, 1))
        while True:
            atoms, slices = self._atoms(spans)
            parts = parts_within(atoms, counts, wanted)
            numbers = slices[(parts > 1) & (slices >= 0)]
            pieces = self._slices
            many = pieces.counts[numbers] > self._few[pieces.keys[numbers]]
            if not many.any():
                break
            yield from self._divide(numbers[many])
        big = np.flatnonzero(parts > 1)
        if len(big):
            atoms = yield from self._split_atoms(atoms, big, parts)
        ends = ends_of_parts(atoms, counts, wanted)
        owners, upper = atoms.keys[ends], atoms.spans.upper[ends]
        first = np.concatenate((np.zeros(1, np.int64), ends + 1))[:-1]
        offsets = np.searchsorted(owners, np.arange(len(spans) + 1))
        sources, bounds = bridge(atoms.spans.lower[first], upper, offsets[1:] - 1)
        if len(sources) == len(ends):
            sums = np.add.reduceat(atoms.counts, first)
            return SpanParts(
                offsets, upper, sums, np.bitwise_xor.reduceat(atoms.xors, first, axis=0)
            )
        offsets = np.searchsorted(owners[sources], np.arange(len(spans) + 1))
        measured = yield from self.measure(chain_spans(spans.lower, offsets[:-1], bounds))
        return SpanParts(offsets, bounds, measured.counts, measured.fingerprints)

    def _atoms(self, spans: Spans) -> tuple[Pieces, Ints]:
        """Cut spans at beginnings of slices and at the floor, where these are expressible bounds.

        Returns:
            The atoms, and the number of the slice that each is; -1 for others.
        """
        lower = self._slices.spans.lower
        lower = lower[~rows_differ(lower.words, 0)]
        edges = lower[: rank(lower, self._floor)]
        if self._floor != END:
            edges = SyncIds.join([edges, SyncIds.of([self._floor])])
        owners, parts = cut_spans(spans, edges)
        measured = self._measure(parts)
        below, stored, _, _ = self._divide_at_floor(parts)
        first, end = self._slices.places(stored)
        numbers = np.full(len(parts), -1)
        numbers[below] = np.where(end - first == 1, first, -1)
        return Pieces(owners, parts, measured.counts, measured.fingerprints), numbers

    def _split_atoms(self, atoms: Pieces, big: Ints, wanted: Ints) -> Loading[Pieces]:
        """Cut some atoms by the count of their IDs; those of storage pass a portion at a time."""

        def cut(view: IndexView, numbers: Ints, some: Spans) -> SpanParts:
            counts = view.measure(some).counts
            return view.split(some, -(-counts * wanted[numbers] // atoms.counts[numbers]))

        below, stored, above, in_memory = divide_spans(big, atoms.spans[big], self._floor)
        found = yield from self._cut_by_ids(below, stored, cut)
        if len(above):
            parts = cut(self._memory, above, in_memory)
            found = Pieces.join([found, _keyed(above, in_memory, parts)])
        pieces = Pieces(atoms.keys[found.keys], found.spans, found.counts, found.xors)
        return atoms.replace(big, found.keys, pieces)

    # Items and hashes

    def items(self, spans: Spans) -> Loading[Items]:
        """Return the IDs in spans.

        Raises:
            AnswerTooLargeError: there are more than `SummaryLimits` let be read.
        """
        below, stored, above, in_memory = self._divide_at_floor(spans)
        sizes, found = np.zeros(len(spans), np.int64), [SyncIds.empty()]
        while len(below):
            view, end = yield from self._first_ids(stored)
            keys, some, below, stored = divide_spans(below, stored, end)
            items = view.items(some)
            np.add.at(sizes, keys, np.diff(items.offsets))
            found.append(items.ids)
            if int(sizes.sum()) > self._limits.answer_ids:
                raise AnswerTooLargeError(self._limits.answer_ids)
        items = self._memory.items(in_memory)
        sizes[above] += np.diff(items.offsets)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        return Items(offsets, SyncIds.join([*found, items.ids]))

    def probe(self, spans: Spans, hashes: NDArray[np.uint64]) -> Loading[Probed]:
        """Find the spans that have exactly one ID with the hash that is looked for in them.

        Below the floor only the first ones are searched, as many as `SummaryLimits` says.
        """
        below, stored, above, in_memory = self._divide_at_floor(spans)
        times, hits = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
        below, stored = below[: self._limits.probes], stored[: self._limits.probes]
        if len(below):
            wanted = SyncIds(times[below], hashes[below].copy().view(np.uint8))
            loaded = yield NeedHashes(wanted.hashes)
            assert isinstance(loaded, SyncIds)
            known = {hash_: timestamp for timestamp, hash_ in loaded.pairs()}
            for row, (_, hash_) in enumerate(wanted.pairs()):
                wanted.timestamps[row] = known.get(hash_, 0)
                hits[below[row]] = hash_ in known
            within = ~less(wanted, stored.lower) & less(wanted, stored.upper)
            hits[below] &= within
            times[below] = np.where(hits[below], wanted.timestamps, 0)
        found = self._memory.probe(in_memory, hashes[above])
        hits[above] += found.hit
        times[above[found.hit]] = found.found.timestamps[found.hit]
        return Probed(SyncIds(times, hashes.copy().view(np.uint8)), hits == 1)

    # IDs

    def _cut_by_ids(self, keys: Ints, spans: Spans, cut: _Cut) -> Loading[Pieces]:
        """Cut spans by the IDs in them, a portion at a time; a piece has the key of its span."""
        found = [_keyed(keys[:0], spans[:0], join_parts([]))]
        while len(keys):
            view, end = yield from self._first_ids(spans)
            some, portion, keys, spans = divide_spans(keys, spans, end)
            found.append(_keyed(some, portion, cut(view, some, portion)))
        return Pieces.join(found)

    def _first_ids(self, spans: Spans) -> Loading[tuple[IndexView, SyncId]]:
        """Return the IDs in the first of some spans, and the bound up to which these are all."""
        for known, view in reversed(self._loaded):
            covered = are_covered(spans, known)
            count = len(spans) if covered.all() else int(np.argmin(covered))
            if count:
                return view, spans.upper.at(count - 1)
        wanted = join_spans(spans)[: self._limits.spans_at_once]
        end = wanted.upper.at(len(wanted) - 1)
        loaded = yield NeedIds(wanted, self._limits.ids_at_once)
        assert isinstance(loaded, SyncIds)
        if len(loaded) >= self._limits.ids_at_once:
            end = last_cut(loaded)
            loaded = loaded[: rank(loaded, end)]
            _, wanted, _, _ = divide_spans(np.arange(len(wanted)), wanted, end)
        view = IndexView.of(loaded)
        self._loaded.append((wanted, view))
        while self.kept_ids > self._limits.kept_ids and len(self._loaded) > 1:
            del self._loaded[0]
        return view, end


def _pieces_of(level: int, buckets: TimeBuckets) -> Pieces:
    lower = SyncIds.at_times(buckets.starts)
    fits = buckets.starts <= MAX_TIMESTAMP_NS - buckets.length_ns
    upper = SyncIds.at_times(buckets.starts[fits] + buckets.length_ns)
    if not fits.all():  # the last slice of a length ends behind the last time that there is
        upper = SyncIds.join([upper, SyncIds.of([END])])
    keys = np.full(len(buckets), level)
    return Pieces(keys, Spans(lower, upper), buckets.counts, buckets.xors)


def _keyed(keys: Ints, spans: Spans, parts: SpanParts) -> Pieces:
    """Return the parts of spans, each with the key of its span."""
    owners = np.repeat(keys, np.diff(parts.offsets))
    return Pieces(owners, parts.spans(spans.lower), parts.counts, parts.fingerprints)
