"""Finding out how a peer's filter is made, which its bytes do not say, from what it must hold.

The length leaves 64 numbers of positions, and the hashes are unknown. But most of the newest
messages are in a peer's filter, and under the true numbers an ID that is there has all its
positions set, where under others it is a matter of chance. The shape under which the most
positions of our newest IDs are set is taken if chance makes it so once in ``2**30`` cases at most.

An ID that is there has at least k positions in a row set, so too few hashes are never taken for
long, and too many only if all IDs that are looked at agree, by chance or because they were chosen.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, comb, log, log2
from typing import Final

from storenode.sds.bloom import WORD_BITS, Shape, hashes_of

MAX_HASHES: Final = 32
"""Positions of one ID that are looked at."""

MAX_SAMPLE_IDS: Final = 64
"""IDs that a shape is inferred from."""

_SURE_BITS: Final = 30
"""A shape holds unless something happened that is rarer than once in two to the power of this."""

_END_BITS: Final = 20
"""The same for one hash more."""

_CHOICES: Final = WORD_BITS * MAX_HASHES
_WORD_BYTES: Final = WORD_BITS // 8


@dataclass(frozen=True)
class InferredShape(Shape):
    """Positions (m) and hashes (k) of a peer's filters.

    The capacity follows from the usual numbers: the least that gives so many hashes.
    """

    m: int
    k: int

    @property
    def bits(self) -> int:
        """Positions in all (m)."""
        return self.m

    @property
    def hashes(self) -> int:
        """Positions of one ID (k)."""
        return self.k

    @cached_property
    def capacity(self) -> int:  # type: ignore[override]
        """IDs after which the peer rolls its filter over, at least."""
        return max(int(self.m // ceil((self.k + 0.5) / log(2))), 1)


class Sample:
    """A filter and the IDs that its owner may have."""

    def __init__(self, bloom_filter: bytes, message_ids: Sequence[str]) -> None:
        words, rest = divmod(len(bloom_filter), _WORD_BYTES)
        self.is_readable = bool(words) and not rest
        self._words = struct.unpack(f">{words}Q", bloom_filter[: words * _WORD_BYTES])
        self._hashes = [hashes_of(each) for each in message_ids[:MAX_SAMPLE_IDS]]
        self._set = int.from_bytes(bloom_filter).bit_count()

    def is_of(self, shape: Shape) -> bool:
        """Whether it is certainly a filter of this shape."""
        if not self._set or len(self._words) != shape.size_bytes // _WORD_BYTES:
            return False
        certainty, _, found = self._best(shape.bits)
        return certainty >= _SURE_BITS and found.hashes == shape.hashes

    def infer(self) -> InferredShape | None:
        """The shape of the filter, where it can be told."""
        if not self.is_readable or not self._hashes or not self._set:
            return None
        last = next(n for n in range(len(self._words) - 1, -1, -1) if self._words[n])
        least = last * WORD_BITS + self._words[last].bit_length()
        end = len(self._words) * WORD_BITS
        found = (self._best(bits) for bits in range(max(end - WORD_BITS, least, 1), end))
        certainty, told, shape = max(found, default=(0.0, 0.0, None), key=lambda each: each[0])
        return shape if certainty >= _SURE_BITS and told >= _END_BITS else None

    def _best(self, bits: int) -> tuple[float, float, InferredShape]:
        """The likeliest number of hashes; how certain it is, and that it is not one more.

        IDs that were chosen for it seem to have more hashes than all others in the filter. Where
        the others are certainly there as well, nothing is certain.
        """
        runs = sorted(self._runs(bits), reverse=True)
        certainty, held, hashes = self._likeliest(bits, runs)
        if certainty >= _SURE_BITS and self._likeliest(bits, runs[held:])[0] >= _SURE_BITS:
            certainty = 0.0
        return certainty, held * self._told(bits), InferredShape(bits, hashes)

    def _likeliest(self, bits: int, runs: Sequence[int]) -> tuple[float, int, int]:
        """How certain it is that the first of some IDs are held, by how many hashes; ``runs`` of
        set positions descend.
        """
        best = 0.0, 0, 1
        for held, run in enumerate(runs, start=1):
            chances = comb(len(runs), held) * _CHOICES
            certainty = held * run * self._told(bits) - log2(chances)
            if run and certainty >= best[0]:
                best = certainty, held, run
        return best

    def _told(self, bits: int) -> float:
        """What a position that is set tells, in bits."""
        return -log2(min(self._set / bits, 1.0))

    def _runs(self, bits: int) -> list[int]:
        """How many positions of each ID are set, up to the first one that is not."""
        words, runs = self._words, []
        for first, step in self._hashes:
            position, run = first % bits, 0
            while run < MAX_HASHES and words[position >> 6] >> (position & 63) & 1:
                position = (position + step) % bits
                run += 1
            runs.append(run)
        return runs
