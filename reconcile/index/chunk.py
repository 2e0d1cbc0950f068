"""A run of ascending IDs and the running XOR of their hashes.

``prefix`` has one row more than there are IDs; hash i is ``prefix[i] ^ prefix[i + 1]``, and the
fingerprint of IDs i to j is ``prefix[i] ^ prefix[j]``. So 40 bytes hold an ID, and hashes need
no column of their own. What the first row holds does not matter. A third column has the content
digests, and makes it 56 bytes. Lattice sums are kept for blocks of the memory that chunks share.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import ELEMENT_BYTES, HASH_DTYPE, HASH_WORDS, SyncId, SyncIds, Words
from reconcile.lattice import LatticeSum
from storenode.message.limits import CONTENT_DIGEST_BYTES

BYTES_PER_ID: Final = ELEMENT_BYTES

_BLOCK_IDS: Final = 4_096
"""IDs of which one lattice sum is kept: half a byte per ID."""

_STRETCH_IDS: Final = 16_384

_FEW_INSERTS_IN: Final = 256
"""The ratio of stored to inserted IDs from which moving slices is cheaper than moving rows."""

_NO_HASH: Final = bytes(8 * HASH_WORDS)

_SAMPLE_IDS: Final = 4
"""The distance in IDs from one stored balance to the next: a byte per ID."""


class Chunk:
    """Ascending IDs that never change; at least one.

    Attributes:
        timestamps: ``(n,)``.
        prefix: ``(n + 1, 4)``.
        digests: ``(n, 16)``.
        memory: the columns that it shows a part of.
        offset: the first row that it shows of them.
        blocks: the lattice sums of its memory.
        last: the greatest timestamp.
    """

    __slots__ = (
        "_samples",
        "blocks",
        "digests",
        "last",
        "memory",
        "offset",
        "prefix",
        "timestamps",
    )

    def __init__(
        self, memory: "_Memory", start: int, end: int, blocks: "BlockSums | None" = None
    ) -> None:
        timestamps, prefix, digests = memory
        self.timestamps = timestamps[start:end]
        self.prefix = prefix[start : end + 1]
        self.digests = digests[start:end]
        self.memory, self.offset = memory, start
        self.blocks = BlockSums() if blocks is None else blocks
        self.last = int(timestamps[end - 1])
        self._samples: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def owns_all(self) -> bool:
        """True if its memory has no more rows than it shows."""
        return len(self.memory[0]) == len(self)

    def hash_at(self, place: int) -> bytes:
        """Return one hash."""
        words: NDArray[np.uint64] = self.prefix[place] ^ self.prefix[place + 1]
        return words.tobytes()

    def rank(self, bound: SyncId) -> int:
        """Count the IDs that are before a bound."""
        timestamp, hash_ = bound
        first = int(self.timestamps.searchsorted(timestamp))
        if hash_ == _NO_HASH or first == len(self) or self.timestamps[first] != timestamp:
            return first
        end = int(self.timestamps.searchsorted(timestamp, "right"))
        return bisect_left(range(end), hash_, first, end, key=self.hash_at)

    @property
    def samples(self) -> NDArray[np.int32]:
        """The balance of every 4 IDs more, ``(n // 4 + 1,)``; made when first asked for.

        A balance is the sum of +1 or -1 over IDs, by the lowest bit of the hash's first byte. Only
        the compact mode needs it, and its kernel.
        """
        if self._samples is None:
            samples = np.empty(len(self) // _SAMPLE_IDS + 1, np.int32)
            kernel.require().balance(self.prefix, samples)
            self._samples = samples
        return self._samples

    @property
    def balance(self) -> int:
        """The balance of all IDs."""
        octets = self.prefix.view(HASH_DTYPE)[(len(self.samples) - 1) * _SAMPLE_IDS :, 0]
        negative = int(np.count_nonzero((octets[1:] ^ octets[:-1]) & 1))
        return int(self.samples[-1]) + len(octets) - 1 - 2 * negative

    def part(self, start: int, end: int) -> "Chunk":
        """Return the IDs from one place to, but without, another, in the same memory."""
        blocks = BlockSums(self.blocks.sums)
        return Chunk(self.memory, self.offset + start, self.offset + end, blocks)

    def ids(self, start: int, end: int) -> SyncIds:
        """Return the IDs from one place to another, with their content digests."""
        hashes = self.prefix[start:end] ^ self.prefix[start + 1 : end + 1]
        return SyncIds(self.timestamps[start:end], hashes.view(HASH_DTYPE), self.digests[start:end])

    def unsummed(self, start: int, end: int) -> int:
        """Return how many IDs `lattice` would have to expand, about."""
        first, last = self._whole_blocks(start, end)
        if first >= last:
            return end - start
        missing = sum(block not in self.blocks.sums for block in range(first, last))
        return _BLOCK_IDS * (missing + 1)

    def lattice(self, start: int, end: int) -> LatticeSum:
        """Return the lattice sum of the IDs from one place to another."""
        first, last = self._whole_blocks(start, end)
        if first >= last:
            return self._adjusted("end", start, end)
        low, high = (block * _BLOCK_IDS - self.offset for block in (first, last))
        begin, middle = self._adjusted("begin", start, low), self._adjusted("blocks", low, high)
        return LatticeSum.total([begin, middle, self._adjusted("end", high, end)])

    def _adjusted(self, part: str, start: int, end: int) -> LatticeSum:
        """Return the sum of a part of a range, made from the last such sum where that is less."""
        low, high = start + self.offset, end + self.offset
        known_low, known_high, total = self.blocks.known.get(part, (low, low, LatticeSum()))
        shown = self.offset <= known_low and known_high <= self.offset + len(self)
        if not shown or abs(known_low - low) + abs(known_high - high) > end - start:
            known_low, known_high, total = low, low, LatticeSum()
        sum_of = self._sum_of_blocks if part == "blocks" else self._sum_of_rows
        for first, last in ((low, known_low), (known_high, high)):
            if first < last:
                total += sum_of(first, last)
            elif last < first:
                total -= sum_of(last, first)
        self.blocks.known[part] = low, high, total
        return total

    def _sum_of_rows(self, low: int, high: int) -> LatticeSum:
        """Return the sum of some rows of its memory."""
        return LatticeSum.of(self.ids(low - self.offset, high - self.offset).elements)

    def _sum_of_blocks(self, low: int, high: int) -> LatticeSum:
        """Return the sum of rows that are whole blocks; that of each block is kept."""
        sums, blocks = self.blocks.sums, range(low // _BLOCK_IDS, high // _BLOCK_IDS)
        for block in blocks:
            if block not in sums:
                start = block * _BLOCK_IDS
                sums[block] = self._sum_of_rows(start, start + _BLOCK_IDS)
        return LatticeSum.total([sums[block] for block in blocks])

    def _whole_blocks(self, start: int, end: int) -> tuple[int, int]:
        """Return the first and the last block, exclusive, that lie between two places."""
        return -(-(self.offset + start) // _BLOCK_IDS), (self.offset + end) // _BLOCK_IDS

    def edges(self, chunk_ids: int) -> list[int]:
        """Return the places that cut it into pieces of about equal length, none much too long."""
        pieces = -(-len(self) // chunk_ids) if 2 * len(self) > 3 * chunk_ids else 1
        return [len(self) * piece // pieces for piece in range(pieces + 1)]

    def divided(self, chunk_ids: int) -> list["Chunk"]:
        """Divide it into chunks that are none much too long, each in memory of its own."""
        edges = self.edges(chunk_ids)
        if len(edges) == 2 and self.owns_all:
            return [self]
        return [self.part(start, end).copy() for start, end in pairwise(edges)]

    @property
    def room(self) -> int:
        """The number of IDs that can be written behind the last chunk of its memory."""
        return len(self.memory[0]) - self.offset - len(self)

    def extended(self, ids: SyncIds, capacity: int) -> "Chunk":
        """Return the last chunk of some memory with IDs that ascend and are greater.

        They are written behind what any chunk shows, or else to new memory for all of them.
        """
        memory, start, blocks, count = self.memory, self.offset, self.blocks, len(self)
        if start + count + len(ids) > len(memory[0]):
            start, blocks = 0, self.blocks if not start else BlockSums()
            memory = timestamps, prefix, digests = _allocate(capacity)
            timestamps[:count], digests[:count] = self.timestamps, self.digests
            prefix[: count + 1] = self.prefix
        _write(memory, start + count, ids)
        return Chunk(memory, start, start + count + len(ids), blocks)

    def copy(self) -> "Chunk":
        """Copy it to memory of its own, no more than it needs."""
        memory = self.timestamps.copy(), self.prefix.copy(), self.digests.copy()
        return Chunk(memory, 0, len(self))


class BlockSums:
    """The lattice sums of blocks of memory whose rows are never written again.

    They are made when they are first asked for. Threads that make the same ones do no harm.

    Attributes:
        sums: the sum of each block, by its number.
        known: rows of the memory and the sum between them, of each part of the range that was last
            asked for: its whole blocks, and what is before and behind these.
    """

    __slots__ = ("known", "sums")

    def __init__(self, sums: dict[int, LatticeSum] | None = None) -> None:
        self.sums: dict[int, LatticeSum] = {} if sums is None else sums
        self.known: dict[str, tuple[int, int, LatticeSum]] = {}


def chunk_of(ids: SyncIds, capacity: int = 0) -> Chunk:
    """Return ascending IDs as a chunk, copied to memory for at least ``capacity`` IDs."""
    memory = _allocate(max(capacity, len(ids)))
    memory[1][0] = 0
    _write(memory, 0, ids)
    return Chunk(memory, 0, len(ids))


_Memory: TypeAlias = tuple[NDArray[np.int64], Words, NDArray[np.uint8]]
"""The timestamps, running XORs and digests of chunks, with room to append."""


def _allocate(count: int) -> _Memory:
    digests = np.empty((count, CONTENT_DIGEST_BYTES), HASH_DTYPE)
    return np.empty(count, np.int64), np.empty((count + 1, HASH_WORDS), np.uint64), digests


def _write(memory: _Memory, at: int, ids: SyncIds) -> None:
    """Write IDs from row ``at`` of memory on."""
    timestamps, prefix, digests = memory
    timestamps[at : at + len(ids)] = ids.timestamps
    digests[at : at + len(ids)] = ids.known_digests
    # In stretches that stay in the cache from the copy to the sum.
    for start in range(0, len(ids), _STRETCH_IDS):
        words = ids.words[start : start + _STRETCH_IDS]
        rows = prefix[at + start + 1 : at + start + 1 + len(words)]
        rows[:] = words
        rows[0] ^= prefix[at + start]
        np.bitwise_xor.accumulate(rows, axis=0, out=rows)


def allocated_bytes(chunks: Iterable[Chunk]) -> int:
    """Count the bytes that chunks keep allocated together, rows that none shows included."""
    memories = {id(chunk.memory[0]): chunk.memory for chunk in chunks}
    return sum(column.nbytes for memory in memories.values() for column in memory)


def merged(chunk: Chunk, places: NDArray[np.int64], new: SyncIds) -> Chunk:
    """Return a chunk with further IDs, `new[i]` before what is now at `places[i]`.

    Args:
        chunk: what is there, ``n`` IDs; it is not changed.
        places: ``(m,)``, ascending.
        new: ``(m,)``, ascending, none of them in the chunk.
    """
    count = len(chunk) + len(new)
    targets = places + np.arange(len(new))
    timestamps, digests = (
        np.empty(count, np.int64),
        np.empty((count, CONTENT_DIGEST_BYTES), HASH_DTYPE),
    )
    # Row r of the running XOR stands behind a row of the old one and `number` new hashes.
    edges = np.concatenate(([0], places, [len(chunk)]))
    lengths = edges[1:] - edges[:-1] + 1
    added = np.zeros((len(new) + 1, HASH_WORDS), np.uint64)
    np.bitwise_xor.accumulate(new.words, axis=0, out=added[1:])
    prefix = np.repeat(added, lengths, axis=0)
    if len(new) * _FEW_INSERTS_IN <= count:
        listed = edges.tolist()
        for number, (start, end) in enumerate(pairwise(listed)):
            timestamps[start + number : end + number] = chunk.timestamps[start:end]
            digests[start + number : end + number] = chunk.digests[start:end]
            rows = prefix[start + number : end + number + 1]
            np.bitwise_xor(rows, chunk.prefix[start : end + 1], out=rows)
    else:
        old = np.ones(count, np.bool_)
        old[targets] = False
        timestamps[old], digests[old] = chunk.timestamps, chunk.digests
        sources = np.arange(count + 1) - np.repeat(np.arange(len(new) + 1), lengths)
        prefix ^= chunk.prefix.take(sources, axis=0)
    timestamps[targets], digests[targets] = new.timestamps, new.known_digests
    return Chunk((timestamps, prefix, digests), 0, count)


def inserted(chunk: Chunk, places: NDArray[np.int64], new: SyncIds, chunk_ids: int) -> list[Chunk]:
    """Insert IDs like ``merged``, but leave most of a long chunk where it is."""
    edges = np.array(chunk.edges(chunk_ids))
    cuts = places.searchsorted(edges[1:])
    found: list[Chunk] = []
    kept = first = 0
    for start, end, last in zip(
        edges[:-1].tolist(), edges[1:].tolist(), cuts.tolist(), strict=True
    ):
        if last == first:
            continue
        if start > kept:
            found.append(chunk.part(kept, start))
        piece = merged(chunk.part(start, end), places[first:last] - start, new[first:last])
        found += piece.divided(chunk_ids)
        kept, first = end, last
    if kept < len(chunk):
        found.append(chunk.part(kept, len(chunk)))
    return found
