"""Chunks of IDs, read as one fixed sequence.

A *place* is the number of IDs before something, from 0 to the length. Methods take many places
or bounds at a time, **ascending** (equal ones allowed), and work through the chunks once: their
cost per call grows with the chunks that are touched, never with a Python loop over elements.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import (
    HASH_DTYPE,
    HASH_WORDS,
    Ints,
    SyncId,
    SyncIds,
    Words,
    hashes_less,
    rows_differ,
)
from reconcile.index.chunk import Chunk
from reconcile.kernel import RowsHandle
from reconcile.lattice import LatticeSum
from reconcile.view import Probed
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES

_SCANNED_IDS: Final = 65_536
"""IDs that are scanned at a time; their hashes fit into a processor's cache."""

_NO_ANCHORS: Final = np.empty(0, np.uint64)


class IndexRows:
    """A fixed sequence of ascending IDs.

    Attributes:
        chunks: where they are.
        starts: the place of each chunk's first ID, and after the last the length of all.
        handle: the same for compiled code.
    """

    __slots__ = (
        "_balances",
        "_bases",
        "_last_array",
        "_lasts",
        "_start_array",
        "chunks",
        "handle",
        "starts",
    )

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self._lasts = [chunk.last for chunk in self.chunks]
        self._last_array = np.array(self._lasts, np.int64)
        self._start_array = np.zeros(len(self.chunks) + 1, np.int64)
        np.cumsum([len(chunk) for chunk in self.chunks], out=self._start_array[1:])
        self.starts: list[int] = self._start_array.tolist()
        self._bases = _bases(self.chunks)
        self._balances: tuple[tuple[NDArray[np.int32], ...], Ints] | None = None
        self.handle: RowsHandle = (
            tuple(chunk.timestamps for chunk in self.chunks),
            tuple(chunk.prefix for chunk in self.chunks),
            self._start_array,
            self._bases,
        )

    def __len__(self) -> int:
        return self.starts[-1]

    # One at a time

    def rank(self, bound: SyncId) -> int:
        """Count the IDs that are before a bound."""
        chunk, place = self._locate(bound)
        return self.starts[chunk] + place

    def measure(self, lower: SyncId, upper: SyncId) -> tuple[int, Words]:
        """Count, and fingerprint ``(4,)``, of the IDs from one bound to another."""
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
        chunk = bisect_left(self._lasts, bound[0])
        while chunk < len(self.chunks):
            place = self.chunks[chunk].rank(bound)
            if place < len(self.chunks[chunk]):
                return chunk, place
            chunk = self._next_in_tie(chunk, bound)
        last = len(self.chunks) - 1
        return (last, len(self.chunks[last])) if self.chunks else (0, 0)

    def _next_in_tie(self, chunk: int, bound: SyncId) -> int:
        """Return the next chunk to look in after one that ends at a bound's time and before it."""
        end = bisect_right(self._lasts, bound[0], chunk + 1)
        ends = range(chunk + 1, end)
        return bisect_left(
            ends, bound[1], key=lambda at: self.chunks[at].hash_at(len(self.chunks[at]) - 1)
        ) + (chunk + 1)

    # Many at a time

    def ranks(self, bounds: SyncIds) -> Ints:
        """Return ``(n,)`` the counts of IDs before each bound."""
        places = self.time_ranks(bounds.timestamps, "left")
        if not bounds.has_hashes():
            return places
        words = bounds.words
        inside = np.flatnonzero((words[:, 0] | words[:, 1] | words[:, 2] | words[:, 3]) != 0)
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
        places = np.empty(len(timestamps), np.int64)
        owners = self._last_array.searchsorted(timestamps, side)
        for chunk, start, end in _runs(owners, len(self.chunks) + 1):
            if chunk == len(self.chunks):
                places[start:end] = len(self)
                continue
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
        """Return the IDs from one place to, but without, another."""
        timestamps = np.empty(end - start, np.int64)
        hashes = np.empty((end - start, HASH_WORDS), np.uint64)
        digests = np.empty((end - start, CONTENT_DIGEST_BYTES), HASH_DTYPE)
        at = 0
        for chunk, first, last in self.slices(start, end):
            stop = at + last - first
            timestamps[at:stop] = chunk.timestamps[first:last]
            digests[at:stop] = chunk.digests[first:last]
            prefix = chunk.prefix[first : last + 1]
            np.bitwise_xor(prefix[:-1], prefix[1:], out=hashes[at:stop])
            at = stop
        return SyncIds(timestamps, hashes.view(HASH_DTYPE), digests)

    def digests(self, places: Ints) -> NDArray[np.uint8]:
        """Return the content digests ``(n, 16)`` of the IDs at places, each below the length."""
        found = np.empty((len(places), CONTENT_DIGEST_BYTES), HASH_DTYPE)
        for chunk, start, end in self.pieces(places):
            local = places[start:end] - self.starts[chunk]
            self.chunks[chunk].digests.take(local, axis=0, out=found[start:end], mode="clip")
        return found

    def unsummed(self, start: int, end: int) -> int:
        """Return how many IDs `lattice` would have to expand."""
        return sum(chunk.unsummed(*part) for chunk, *part in self.slices(start, end))

    def lattice(self, start: int, end: int) -> LatticeSum:
        """Return the lattice sum of the IDs from one place to, but without, another."""
        return LatticeSum.total([chunk.lattice(*part) for chunk, *part in self.slices(start, end)])

    def slices(self, start: int, end: int) -> Iterator[tuple[Chunk, int, int]]:
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

    def probe(self, low: Ints, high: Ints, hashes: Words) -> Probed:
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
        same: NDArray[np.bool_] = self.timestamps(places) == ids.timestamps
        found = np.flatnonzero(same)
        if len(found):
            here = self.hashes(places[found]).view(np.uint64)
            same[found] = (here == ids.words[found]).all(axis=1)
        return same

    def sums(self, *, anchored: bool) -> tuple[NDArray[Any], ...]:
        """Return, for the kernel, of each chunk in turn its balances, and its anchors, or none."""
        samples = self.balances()[0]
        found: list[NDArray[Any]] = []
        for chunk, own in zip(self.chunks, samples, strict=True):
            found += [own, chunk.anchors if anchored else _NO_ANCHORS]
        return tuple(found)

    def balances(self) -> tuple[tuple[NDArray[np.int32], ...], Ints]:
        """Return samples of the chunks' balances, and the balance before each chunk."""
        if self._balances is None:
            totals = [0, *(chunk.balance for chunk in self.chunks)]
            bases = np.cumsum(totals[: len(self.chunks)], dtype=np.int64)
            self._balances = tuple(chunk.samples for chunk in self.chunks), bases
        return self._balances

    def running(self, places: Ints) -> Words:
        """Return ``(n, 4)``: running XORs up to places; only those of one call belong together."""
        found = np.empty((len(places), HASH_WORDS), np.uint64)
        pieces = list(self.pieces(places))
        for chunk, start, end in pieces:
            local = places[start:end] - self.starts[chunk]
            self.chunks[chunk].prefix.take(local, axis=0, out=found[start:end], mode="clip")
        if len(pieces) > 1:
            chunks = [chunk for chunk, _, _ in pieces]
            found ^= np.repeat(self._bases[chunks], [end - start for _, start, end in pieces], 0)
        if not pieces:
            found[:] = 0
        return found

    def pieces(self, places: Ints) -> Iterator[tuple[int, int, int]]:
        """Yield a chunk, and from where to where places are in it; the end is in the last one."""
        if not len(places) or not self.chunks:
            return
        final = len(self.chunks) - 1
        first = min(bisect_right(self.starts, int(places[0])) - 1, final)
        last = min(bisect_right(self.starts, int(places[-1])) - 1, final)
        if first == last:
            yield first, 0, len(places)
            return
        cuts = places.searchsorted(self._start_array[first + 1 : last + 1]).tolist()
        start = 0
        for chunk, end in zip(range(first, last + 1), [*cuts, len(places)], strict=True):
            if end > start:
                yield chunk, start, end
            start = end


def _runs(owners: NDArray[np.intp], chunks: int) -> Iterator[tuple[int, int, int]]:
    """Yield where each number begins and ends in ascending numbers below `chunks`."""
    if not len(owners):
        return
    first, last = int(owners[0]), int(owners[-1])
    if first == last:
        yield first, 0, len(owners)
        return
    assert first < last < chunks, "bounds must ascend"
    cuts = owners.searchsorted(np.arange(first + 1, last + 1)).tolist()
    start = 0
    for owner, end in zip(range(first, last + 1), [*cuts, len(owners)], strict=True):
        if end > start:
            yield owner, start, end
        start = end


def _bases(chunks: Sequence[Chunk]) -> Words:
    """Return ``(n, 4)`` the XORs by which each chunk's running XOR continues the one before it."""
    bases = np.zeros((len(chunks), HASH_WORDS), np.uint64)
    if len(chunks) > 1:
        ends = np.stack([chunk.prefix[-1] for chunk in chunks[:-1]])
        starts = np.stack([chunk.prefix[0] for chunk in chunks[1:]])
        np.bitwise_xor.accumulate(ends ^ starts, axis=0, out=bases[1:])
    return bases
