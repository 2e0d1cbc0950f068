"""Chunks of IDs, read as one fixed sequence: the view of an index.

A *place* is the number of IDs before something, from 0 to the length. Methods take many places
or bounds at a time, **ascending** (equal ones allowed), and work through the chunks once: their
cost per call grows with the chunks, never with a Python loop over elements.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import (
    HASH_DTYPE,
    HASH_WORDS,
    LOWEST,
    Ints,
    SyncId,
    SyncIds,
    Words,
    differ,
    hashes_less,
    ordered,
    rows_differ,
)
from reconcile.index.chunk import Chunk, chunk_of
from reconcile.index.split import cuts
from reconcile.kernel import RowsHandle
from reconcile.lattice import LatticeSum, most_summed
from reconcile.view import Items, Loading, Measured, Probed, SpanParts, Spans
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES

_SCANNED_IDS: Final = 65_536
"""IDs that are scanned at a time; their hashes fit into a processor's cache."""


class IndexView:
    """A fixed sequence of ascending IDs, such as an index at the time the view was opened.

    Attributes:
        chunks: where they are.
        starts: the place of each chunk's first ID, and after the last the length of all.
        handle: the same for compiled code.
    """

    __slots__ = ("_balances", "_bases", "_lasts", "_starts", "chunks", "handle", "starts")

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self._lasts = np.array([chunk.last for chunk in self.chunks], np.int64)
        self._starts = np.zeros(len(self.chunks) + 1, np.int64)
        np.cumsum([len(chunk) for chunk in self.chunks], out=self._starts[1:])
        self.starts: list[int] = self._starts.tolist()
        self._bases = _bases(self.chunks)
        self._balances: Ints | None = None
        self.handle: RowsHandle = (
            tuple(chunk.timestamps for chunk in self.chunks),
            tuple(chunk.prefix for chunk in self.chunks),
            self._starts,
            self._bases,
        )

    @classmethod
    def of(cls, ids: SyncIds) -> "IndexView":
        """Return a view of some IDs: in any order, repeated ones allowed."""
        ids = ordered(ids)
        return cls([chunk_of(ids)] if len(ids) else [])

    def __len__(self) -> int:
        return self.starts[-1]

    # Spans

    def measure(self, spans: Spans) -> Measured:
        """Return counts and fingerprints of spans."""
        if len(spans) == 1:  # a whole window, as of most sessions
            count, fingerprint = self.fingerprint(spans.lower.at(0), spans.upper.at(0))
            return Measured(np.array([count]), fingerprint.reshape(1, -1))
        low, high = self.places(spans)
        return Measured(high - low, self.fingerprints(low, high))

    def split(self, spans: Spans, parts: Ints) -> SpanParts:
        """Cut each span into about `parts[i]` parts of about equal counts."""
        low, high = self.places(spans)
        inner = cuts(self, spans.lower, low, high, parts)
        keys = np.concatenate((2 * inner.spans, 2 * np.arange(len(spans)) + 1))
        order = keys.argsort(kind="stable")
        upper = SyncIds.join([inner.bounds, spans.upper]).take(order)
        part_high = np.concatenate((inner.places, high))[order]
        offsets = np.zeros(len(spans) + 1, np.int64)
        np.cumsum(np.bincount(inner.spans, minlength=len(spans)) + 1, out=offsets[1:])
        part_low = np.empty_like(part_high)
        part_low[1:] = part_high[:-1]
        part_low[offsets[:-1]] = low
        prints = self.fingerprints(part_low, part_high)
        return SpanParts(offsets, upper, part_high - part_low, prints)

    def items(self, spans: Spans) -> Items:
        """Return the IDs in spans."""
        low, high = self.places(spans)
        offsets = np.zeros(len(spans) + 1, np.int64)
        (high - low).cumsum(out=offsets[1:])
        return Items(
            offsets, self.take(np.arange(offsets[-1]) + (low - offsets[:-1]).repeat(high - low))
        )

    def probe(self, spans: Spans, hashes: Words) -> Probed:
        """Find the spans that have exactly one ID with the hash that is looked for in them."""
        return self.probe_places(*self.places(spans), hashes)

    def places(self, spans: Spans) -> tuple[Ints, Ints]:
        """Return the places of both bounds of spans."""
        if self not in spans.places:
            spans.places[self] = self._search(spans)
        return spans.places[self]

    def _search(self, spans: Spans) -> tuple[Ints, Ints]:
        """Return the places of spans; a bound that two of them share is looked for once."""
        lower, upper = spans.lower, spans.upper
        high = self.ranks(upper)
        begins = np.ones(len(high), np.bool_)
        begins[1:] = differ(lower[1:], upper[:-1])
        first = begins.nonzero()[0]
        low = np.empty_like(high)
        low[1:] = high[:-1]
        low[first] = self.ranks(lower.take(first))
        return low, high

    def lattices(self, spans: Sequence[tuple[int, int]]) -> list[LatticeSum] | None:
        """Return the lattice sums of half-open ranges of time; None: too much is to be summed up.

        As much as `most_summed` allows is summed up then, and kept for the next call.
        """
        found: list[LatticeSum] = []
        left = most_summed()
        for low_ns, high_ns in spans:
            low, high = self.rank((low_ns, LOWEST[1])), self.rank((high_ns, LOWEST[1]))
            unsummed = self.unsummed(low, high)
            if unsummed > left:
                self.lattice(low, min(low + left, high))
                return None
            left -= unsummed
            found.append(self.lattice(low, high))
        return found

    def unsummed(self, start: int, end: int) -> int:
        """Return how many IDs `lattice` would have to expand, about."""
        return sum(chunk.unsummed(*part) for chunk, *part in self._slices(start, end))

    def lattice(self, start: int, end: int) -> LatticeSum:
        """Return the lattice sum of the IDs from one place to, but without, another."""
        return LatticeSum.total([chunk.lattice(*part) for chunk, *part in self._slices(start, end)])

    # One bound at a time

    def rank(self, bound: SyncId) -> int:
        """Count the IDs that are before a bound."""
        chunk, place = self._locate(bound)
        return self.starts[chunk] + place

    def fingerprint(self, lower: SyncId, upper: SyncId) -> tuple[int, Words]:
        """Count, and fingerprint ``(4,)``, of one range: the quickest way for just one."""
        low, high, fingerprint = self.between_bounds(lower, upper)
        return high - low, fingerprint

    def between_bounds(self, lower: SyncId, upper: SyncId) -> tuple[int, int, Words]:
        """Return the places of two bounds, and the fingerprint ``(4,)`` of the IDs between them."""
        if not self.chunks:
            return 0, 0, np.zeros(HASH_WORDS, np.uint64)
        first, start = self._locate(lower)
        last, end = self._locate(upper)
        fingerprint: Words = self.chunks[first].prefix[start] ^ self.chunks[last].prefix[end]
        if first != last:
            fingerprint ^= self._bases[first] ^ self._bases[last]
        return self.starts[first] + start, self.starts[last] + end, fingerprint

    def _locate(self, bound: SyncId) -> tuple[int, int]:
        """Return the chunk, and the place in it, of the first ID that is not before a bound."""
        for chunk in range(int(self._lasts.searchsorted(bound[0])), len(self.chunks)):
            place = self.chunks[chunk].rank(bound)
            if place < len(self.chunks[chunk]):
                return chunk, place
        last = len(self.chunks) - 1
        return (last, len(self.chunks[last])) if self.chunks else (0, 0)

    # Many bounds or places at a time

    def ranks(self, bounds: SyncIds) -> Ints:
        """Return ``(n,)`` the counts of IDs before each bound."""
        places = self.time_ranks(bounds.timestamps, "left")
        inside = np.flatnonzero(rows_differ(bounds.words, 0))
        ends = self.time_ranks(bounds.timestamps[inside], "right")
        searched = np.flatnonzero(places[inside] < ends)
        if len(searched):
            inside = inside[searched]
            places[inside] = self._hash_ranks(bounds.hashes[inside], places[inside], ends[searched])
        return places

    def _hash_ranks(self, hashes: NDArray[np.uint8], low: Ints, high: Ints) -> Ints:
        """Find hashes among IDs of one time each, by halving all intervals together.

        So only as many hashes are computed as are compared, however large a tie is.
        """
        active = np.arange(len(low))
        while len(active):
            middle = (low[active] + high[active]) >> 1
            before = hashes_less(self.hashes(middle), hashes[active])
            low[active[before]] = middle[before] + 1
            high[active[~before]] = middle[~before]
            active = active[low[active] < high[active]]
        return low

    def time_ranks(self, timestamps: Ints, side: Literal["left", "right"]) -> Ints:
        """Return ``(n,)`` the counts of IDs before each time, or with ``right`` not after it."""
        places = np.full(len(timestamps), len(self))
        ends = timestamps.searchsorted(self._lasts, "right" if side == "left" else "left")
        for chunk, start, end in _pieces(ends):
            found = self.chunks[chunk].timestamps.searchsorted(timestamps[start:end], side)
            np.add(found, self.starts[chunk], out=places[start:end])
        return places

    def timestamps(self, places: Ints) -> Ints:
        """Return ``(n,)`` timestamps of the IDs at places, each less than the length."""
        found = np.empty(len(places), np.int64)
        for chunk, start, end in self.pieces(places):
            local = places[start:end] - self.starts[chunk]
            self.chunks[chunk].timestamps.take(local, out=found[start:end], mode="clip")
        return found

    def hashes(self, places: Ints) -> NDArray[np.uint8]:
        """Return ``(n, 32)`` hashes of the IDs at places, each less than the length."""
        found = np.empty((len(places), HASH_WORDS), np.uint64)
        for chunk, start, end in self.pieces(places):
            prefix = self.chunks[chunk].prefix
            local = places[start:end] - self.starts[chunk]
            prefix.take(local, axis=0, out=found[start:end], mode="clip")
            found[start:end] ^= prefix.take(local + 1, axis=0, mode="clip")
        return found.view(HASH_DTYPE)

    def take(self, places: Ints) -> SyncIds:
        """Return the IDs at places, each less than the length."""
        return SyncIds(self.timestamps(places), self.hashes(places))

    def between(self, start: int, end: int) -> SyncIds:
        """Return the IDs from one place to, but without, another, with their content digests."""
        return SyncIds.join([chunk.ids(*part) for chunk, *part in self._slices(start, end)])

    def digests(self, places: Ints) -> NDArray[np.uint8]:
        """Return the content digests ``(n, 16)`` of the IDs at places, each below the length."""
        found = np.empty((len(places), CONTENT_DIGEST_BYTES), HASH_DTYPE)
        for chunk, start, end in self.pieces(places):
            local = places[start:end] - self.starts[chunk]
            self.chunks[chunk].digests.take(local, axis=0, out=found[start:end], mode="clip")
        return found

    def _slices(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield the chunks of the IDs between two places, and from where to where in each."""
        if start >= end:
            return
        for number in range(bisect_right(self.starts, start) - 1, len(self.chunks)):
            first = self.starts[number]
            if first >= end:
                return
            chunk = self.chunks[number]
            yield chunk, max(start - first, 0), min(end - first, len(chunk))

    def fingerprints(self, low: Ints, high: Ints) -> Words:
        """Return ``(n, 4)``: the XOR of the hashes from `low[i]` to, but without, `high[i]`.

        The intervals are disjoint and ascending.
        """
        if not len(low):
            return np.empty((0, HASH_WORDS), np.uint64)
        edges = np.empty(2 * len(low), np.int64)
        edges[::2] = low
        edges[1::2] = high
        running = self.running(edges).reshape(-1, 2 * HASH_WORDS)
        return running[:, :HASH_WORDS] ^ running[:, HASH_WORDS:]

    def probe_places(self, low: Ints, high: Ints, hashes: Words) -> Probed:
        """Find `hashes[i]` among the IDs at places `low[i]` to, but without, `high[i]`.

        The intervals are disjoint and ascending. This is a scan: the index has no order by hash.
        """
        count = len(low)
        hit = np.zeros(count, np.bool_)
        found = SyncIds(np.zeros(count, np.int64), np.zeros((count, HASH_BYTES), HASH_DTYPE))
        if kernel.compiled is not None:
            columns = np.ascontiguousarray(hashes), found.timestamps, found.hashes, hit
            kernel.compiled.probe(self.handle, low, high, *columns)
            return Probed(found, hit)
        hits = np.zeros(count, np.int64)
        ends = (high - low).cumsum()
        for start in range(0, int(ends[-1]) if count else 0, _SCANNED_IDS):
            ranks = np.arange(start, min(start + _SCANNED_IDS, int(ends[-1])))
            owners = ends.searchsorted(ranks, "right")
            places = ranks + (high - ends)[owners]
            ids = self.take(places)
            same = (~rows_differ(ids.words, hashes[owners])).nonzero()[0]
            rows = owners[same]
            np.add.at(hits, rows, 1)
            found.timestamps[rows], found.hashes[rows] = ids.timestamps[same], ids.hashes[same]
        return Probed(found, hits == 1)

    def present(self, ids: SyncIds, places: Ints) -> NDArray[np.bool_]:
        """Return ``(n,)``: is the ID at `places[i]`, less than the length, the same as `ids[i]`."""
        return ~differ(self.take(places), ids)

    @property
    def samples(self) -> tuple[NDArray[np.int32], ...]:
        """The stored balances of each chunk."""
        return tuple(chunk.samples for chunk in self.chunks)

    @property
    def balances(self) -> Ints:
        """The balance of all IDs before each chunk; made when first asked for."""
        if self._balances is None:
            totals = [0, *(chunk.balance for chunk in self.chunks)]
            self._balances = np.cumsum(totals[: len(self.chunks)], dtype=np.int64)
        return self._balances

    def running(self, places: Ints) -> Words:
        """Return ``(n, 4)``: running XORs up to places; only those of one call belong together."""
        found = np.zeros((len(places), HASH_WORDS), np.uint64)
        for chunk, start, end in self.pieces(places):
            local = places[start:end] - self.starts[chunk]
            self.chunks[chunk].prefix.take(local, axis=0, out=found[start:end], mode="clip")
            if chunk:
                found[start:end] ^= self._bases[chunk]
        return found

    def pieces(self, places: Ints) -> Iterator[tuple[int, int, int]]:
        """Yield a chunk, and from where to where places are in it; the end is in the last one."""
        if self.chunks:
            ends = places.searchsorted(self._starts[1:])
            ends[-1] = len(places)
            yield from _pieces(ends)


class MemoryView:
    """A `reconcile.view.View` of an index that has every ID from a floor on, and none below it."""

    def __init__(self, index: IndexView, floor: SyncId = LOWEST) -> None:
        self.memory = index, floor

    def measure(self, spans: Spans) -> Loading[Measured]:
        """Return counts and fingerprints of spans."""
        yield from ()
        return self._above(spans).measure(spans)

    def split(self, spans: Spans, wanted: Ints) -> Loading[SpanParts]:
        """Cut each span into about `wanted[i]` parts of about equal counts."""
        yield from ()
        return self._above(spans).split(spans, wanted)

    def items(self, spans: Spans) -> Loading[Items]:
        """Return the IDs in spans."""
        yield from ()
        return self._above(spans).items(spans)

    def probe(self, spans: Spans, hashes: Words) -> Loading[Probed]:
        """Find the spans that have exactly one ID with the hash that is looked for in them."""
        yield from ()
        return self._above(spans).probe(spans, hashes)

    def _above(self, spans: Spans) -> IndexView:
        index, floor = self.memory
        assert not len(spans) or spans.lower.at(0) >= floor, "nothing is held below the floor"
        return index


def _pieces(ends: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers of filled pieces, and where they begin and end; ends ascend."""
    start = 0
    for number, end in enumerate(ends.tolist()):
        if end > start:
            yield number, start, end
            start = end


def _bases(chunks: Sequence[Chunk]) -> Words:
    """Return ``(n, 4)`` the XORs by which each chunk's running XOR continues the one before it."""
    bases = np.zeros((len(chunks), HASH_WORDS), np.uint64)
    if len(chunks) > 1:
        ends = np.stack([chunk.prefix[-1] for chunk in chunks[:-1]])
        starts = np.stack([chunk.prefix[0] for chunk in chunks[1:]])
        np.bitwise_xor.accumulate(ends ^ starts, axis=0, out=bases[1:])
    return bases
