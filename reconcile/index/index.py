"""The SyncIDs of a time window in memory, with fingerprints of any range of them.

The IDs are kept in chunks (`reconcile.index.chunk`): a count or fingerprint is two searches and
one XOR, whatever the range. Chunks never change. An insert replaces those that it falls into, an
append writes behind what any view shows, and pruning lets go of chunks: so a view is a tuple of
chunks, opening one copies nothing, and one that stays open keeps from being freed only what was
replaced since.

At most 68 bytes of memory per ID: 56 of content, the rest room to append and rows pruned.
"""

from typing import Final

import numpy as np

from reconcile.ids import END, LOWEST, SyncId, SyncIds, ordered
from reconcile.index.chunk import BYTES_PER_ID, Chunk, allocated_bytes, chunk_of, inserted
from reconcile.index.view import IndexView

MIN_CHUNK_IDS: Final = 32_768
"""IDs in a full chunk of a small index: what one late insert copies."""

MAX_CHUNKS_ABOUT: Final = 64
"""Chunks grow with the index so that a batch of reads touches about this many at most."""

_SLACK_SHARE: Final = 16
"""Room to append, and rows pruned but not yet freed, are each at most the IDs over this."""

_MIN_SLACK_IDS: Final = 64


class Index:
    """SyncIDs that come and go, mostly at the ends.

    Not for several threads; its views are.

    Args:
        min_chunk_ids: IDs in a full chunk of a small index.
    """

    __slots__ = ("_chunks", "_count", "_hidden", "_min_chunk_ids", "_view")

    def __init__(self, *, min_chunk_ids: int = MIN_CHUNK_IDS) -> None:
        self._min_chunk_ids = min_chunk_ids
        self._clear()

    def _clear(self) -> None:
        # New IDs are written behind the last one.
        self._chunks: list[Chunk] = []
        self._count = 0
        # The most IDs in the memory of chunks that are not shown any more.
        self._hidden = 0
        self._view: IndexView | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """The number of allocated bytes for IDs, room to append included."""
        return allocated_bytes(self._chunks)

    def view(self) -> IndexView:
        """Return a fixed view of the present IDs."""
        if self._view is None:
            self._view = IndexView(self._chunks)
        return self._view

    def load(self, ids: SyncIds) -> None:
        """Replace all IDs by these: in any order, duplicates dropped."""
        ids = ordered(ids)
        self._clear()
        # The system hands out large memory faster, and reads have fewer places to look in: so
        # all is one piece, which is divided when too much of it is replaced or pruned, but for
        # the newest IDs, among which others will soon be inserted.
        old = len(ids) - self._chunk_ids(len(ids))
        if old > 0:
            self._chunks = [chunk_of(ids[:old])]
            self._count = old
        self._append(ids[max(old, 0) :])

    def insert(self, ids: SyncIds) -> int:
        """Add IDs, in any order; those that are there already are left out.

        Quickest for IDs that ascend and are greater than all others.

        Returns:
            How many were added.
        """
        before = len(self)
        if len(ids):
            ids = ordered(ids)
            self._append(ids if self._follows(ids) else self._insert_among(ids))
        return len(self) - before

    def prune(self, before: SyncId) -> int:
        """Let go of all IDs before a bound.

        Returns:
            How many there were.
        """
        count = len(self)
        gone = 0
        while self._chunks and (gone := self._chunks[0].rank(before)) == len(self._chunks[0]):
            del self._chunks[0]
        if self._chunks and gone:
            self._chunks[0] = self._chunks[0].part(gone, len(self._chunks[0]))
        self._count = sum(map(len, self._chunks))
        if len(self) < count:
            self._view = None
            self._release(count - len(self))
        return count - len(self)

    def check(self) -> None:
        """Verify the invariants: order, counts, running XORs and the bound on memory.

        Raises:
            AssertionError: something of it does not hold.
        """
        slack = 2 * (len(self) // _SLACK_SHARE + _MIN_SLACK_IDS)
        chunks = len(self._chunks) + 1
        assert self.memory_bytes <= (len(self) + slack + chunks) * BYTES_PER_ID
        rows = self.view()
        assert len(rows) == len(self)
        ids = rows.between(0, len(rows))
        ids.check()
        everything = np.bitwise_xor.reduce(ids.words, axis=0)
        assert rows.chunks == () or np.array_equal(rows.fingerprint(LOWEST, END)[1], everything)

    def _follows(self, ids: SyncIds) -> bool:
        """Return True if these IDs, which ascend, are all greater than the present ones."""
        if not self._chunks:
            return True
        last = self._chunks[-1]
        first = int(ids.timestamps[0])
        if first == last.last:
            return last.hash_at(len(last) - 1) < ids.at(0)[1]
        return first > last.last

    def _append(self, ids: SyncIds) -> None:
        self._view = None
        total = len(self) + len(ids)
        limit = self._chunk_ids(total)
        slack = max(_MIN_SLACK_IDS, total // _SLACK_SHARE)
        at = 0
        while at < len(ids):
            last = self._chunks[-1] if self._chunks else None
            shown = 0 if last is None or len(last) >= limit else len(last)
            taken = ids[at : at + limit - shown]
            capacity = min(shown + len(taken) + slack, limit)
            if last is not None and shown:
                self._chunks[-1] = last.extended(taken, capacity)
            else:
                if last is not None and last.room > len(last) // _SLACK_SHARE:
                    self._chunks[-1] = last.copy()
                self._chunks.append(chunk_of(taken, capacity))
            at += len(taken)
        self._count = total

    def _chunk_ids(self, total: int) -> int:
        """Return the number of IDs in a full chunk of an index of ``total`` IDs."""
        return max(self._min_chunk_ids, total // MAX_CHUNKS_ABOUT)

    def _insert_among(self, ids: SyncIds) -> SyncIds:
        """Insert those that belong before the last one; return those that belong behind it."""
        rows = self.view()
        places = rows.ranks(ids)
        behind = int(places.searchsorted(len(rows)))
        places, among, rest = places[:behind], ids[:behind], ids[behind:]
        new = ~rows.present(among, places)
        places, among = places[new], among[new]
        if len(among):
            limit = self._chunk_ids(len(rows) + len(ids))
            replaced = {
                chunk: inserted(
                    rows.chunks[chunk],
                    places[start:end] - rows.starts[chunk],
                    among[start:end],
                    limit,
                )
                for chunk, start, end in rows.pieces(places)
            }
            self._chunks = [
                piece
                for number, chunk in enumerate(rows.chunks)
                for piece in replaced.get(number, [chunk])
            ]
            self._count += len(among)
            self._view = None
            self._release(sum(len(rows.chunks[number]) for number in replaced))
        return rest

    def _release(self, hidden: int) -> None:
        """Copy out of memory of which too much is not shown any more.

        Args:
            hidden: how many further IDs, at most, the memory holds that are not shown.
        """
        self._hidden += hidden
        allowed = len(self) // _SLACK_SHARE
        if self._hidden <= allowed:
            return
        memories = {id(chunk.memory[0]): len(chunk.memory[0]) for chunk in self._chunks}
        room = self._chunks[-1].room if self._chunks else 0
        self._hidden = sum(memories.values()) - len(self) - room
        if self._hidden <= allowed:
            return
        limit = self._chunk_ids(len(self))
        self._chunks = [
            piece
            for chunk in self._chunks
            for piece in ([chunk] if chunk.owns_all else chunk.divided(limit))
        ]
        self._hidden = 0
