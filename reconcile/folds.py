"""Keyed sums of an index that are kept from one session with a peer to the next.

A sum of all IDs costs ten nanoseconds for each, and most of an index is the same as in the session
before. So its IDs are summed up in blocks, where they lie in memory: rows of a chunk are never
written again, and chunks of later views show the same memory. A sum takes what blocks it knows, and
computes the others and what lies at the ends.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import Bools, SyncId, Words
from reconcile.index import IndexView
from reconcile.index.chunk import Chunk, allocated_by
from reconcile.keyed import SUM_WORDS, Sum, sum_of

NAME_BYTES: Final = 8

_BLOCK_IDS: Final = 4_096
_LITTLE: Final = np.dtype("<u8")
_PERSON: Final = b"storenode-fold"


@dataclass(slots=True)
class _Blocks:
    """Sums of the blocks of one piece of memory."""

    memory: weakref.ref[NDArray[np.uint64]]
    folded: Words
    known: Bools


class Folds:
    """Sums of IDs under one key.

    Threads that use it at the same time do no harm: what they write is the same.

    Attributes:
        key: 16 bytes, secret.
        name: `NAME_BYTES`, says which key it is to a peer that has it too.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.name = blake2b(key, digest_size=NAME_BYTES, person=_PERSON).digest()
        self._blocks: dict[int, _Blocks] = {}

    def __repr__(self) -> str:
        return "Folds()"

    def sum_of(self, view: IndexView, lower: SyncId, upper: SyncId) -> Sum:
        """The sum of what a view has from one bound to another."""
        low = view.rank(lower)
        high = max(low, view.rank(upper))
        total = np.zeros(SUM_WORDS, _LITTLE)
        place = low
        seen: dict[int, _Blocks] = {}
        for chunk, first, last in view.rows.slices(low, high):
            blocks, offset = self._of(chunk, seen)
            total ^= self._summed(view, blocks, offset + first, offset + last, place)
            place += last - first
        self._blocks = seen  # Memory that this view does not show is not asked for again.
        return Sum(high - low, total)

    def _of(self, chunk: Chunk, seen: dict[int, _Blocks]) -> tuple[_Blocks, int]:
        """The blocks of the memory of a chunk, and where in it the chunk begins."""
        memory = allocated_by(chunk.prefix)
        blocks = seen.get(id(memory)) or self._blocks.get(id(memory))
        if blocks is None or blocks.memory() is not memory:
            count = len(memory) // _BLOCK_IDS + 1
            blocks = _Blocks(
                weakref.ref(memory), np.zeros((count, SUM_WORDS), _LITTLE), np.zeros(count, bool)
            )
        seen[id(memory)] = blocks
        begin = chunk.prefix.__array_interface__["data"][0]
        begin -= memory.__array_interface__["data"][0]
        return blocks, begin // memory.strides[0]

    def _summed(self, view: IndexView, blocks: _Blocks, first: int, last: int, place: int) -> Words:
        """The sum of rows of memory; the first of them has this place in the view."""
        begin, end = -(-first // _BLOCK_IDS), last // _BLOCK_IDS
        if begin >= end:
            return self._computed(view, place, place + last - first)
        ends = ((first, begin * _BLOCK_IDS), (end * _BLOCK_IDS, last))
        lacking = begin + (~blocks.known[begin:end]).nonzero()[0]
        for block in lacking.tolist():
            start = place + block * _BLOCK_IDS - first
            blocks.folded[block] = self._computed(view, start, start + _BLOCK_IDS)
            blocks.known[block] = True
        total: Words = np.bitwise_xor.reduce(blocks.folded[begin:end], axis=0)
        for low, high in ends:
            total ^= self._computed(view, place + low - first, place + high - first)
        return total

    def _computed(self, view: IndexView, low: int, high: int) -> Words:
        if kernel.compiled is None:
            return sum_of(view.rows.between(low, high), self.key).folded
        folded = np.zeros(SUM_WORDS, _LITTLE)
        key = np.frombuffer(self.key, np.uint8)
        kernel.compiled.fold(view.rows.handle, np.array([low, high]), key, folded)
        return folded
