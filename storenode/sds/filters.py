"""The filters of our messages: of the channel's shape, and of the shapes that peers use.

The shape of a peer's filters is inferred, again from time to time, and shared by all peers with
such filters. Our messages are then inserted into a filter of that shape too: new ones at once, and
older ones step by step, newest first. It is compared when all is inserted that it has room for.

The bytes of a filter do not state its shape. The length leaves 64 numbers of positions, and the
hashes are unknown. But most of the newest messages are in a peer's filter, and under the true
numbers an ID that is there has all its positions set, where under others it is a matter of chance.
The shape under which the most positions of our newest IDs are set is taken if chance makes it so
once in ``2**30`` cases at most. An ID that is there has at least k positions in a row set, so too
few hashes are never taken for long, and too many only if all IDs that are compared agree, by chance
or because they were chosen.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, comb, inf, log, log2
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.sds.bloom import WORD_BITS, FilterShape, RollingFilter, Shape, hashes_of
from storenode.sds.limits import (
    MAX_CLOCK,
    MAX_COMPARED_PEERS,
    MAX_FOREIGN_IDS,
    MAX_FOREIGN_SHAPES,
    MAX_INSERTED_AT_ONCE,
)
from storenode.sds.log import MessageLog
from storenode.sds.pages import Key

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


class FilterSample:
    """A filter and the IDs that its owner may have."""

    def __init__(self, bloom_filter: bytes, message_ids: Sequence[str]) -> None:
        words, rest = divmod(len(bloom_filter), _WORD_BYTES)
        self.is_readable = bool(words) and not rest
        self._words = struct.unpack(f">{words}Q", bloom_filter[: words * _WORD_BYTES])
        self._hashes = [hashes_of(each) for each in message_ids[:MAX_SAMPLE_IDS]]
        self._set = int.from_bytes(bloom_filter).bit_count()

    def is_of(self, shape: Shape) -> bool:
        """Return True if it is certainly a filter of this shape."""
        if not self._set or len(self._words) != shape.size_bytes // _WORD_BYTES:
            return False
        certainty, _, found = self._best(shape.bits)
        return certainty >= _SURE_BITS and found.hashes == shape.hashes

    def infer(self) -> InferredShape | None:
        """Return the shape of the filter; None if it cannot be inferred."""
        if not self.is_readable or not self._hashes or not self._set:
            return None
        last = next(n for n in range(len(self._words) - 1, -1, -1) if self._words[n])
        least = last * WORD_BITS + self._words[last].bit_length()
        end = len(self._words) * WORD_BITS
        found = (self._best(bits) for bits in range(max(end - WORD_BITS, least, 1), end))
        certainty, more, shape = max(found, default=(0.0, 0.0, None), key=lambda each: each[0])
        return shape if certainty >= _SURE_BITS and more >= _END_BITS else None

    def _best(self, bits: int) -> tuple[float, float, InferredShape]:
        """Return the most likely shape; how certain it is, and that there is not one hash more.

        IDs that were chosen for it seem to have more hashes than all others in the filter. Where
        the others are certainly there as well, nothing is certain.
        """
        runs = sorted(self._runs(bits), reverse=True)
        certainty, count, hashes = self._likeliest(bits, runs)
        if certainty >= _SURE_BITS and self._likeliest(bits, runs[count:])[0] >= _SURE_BITS:
            certainty = 0.0
        return certainty, count * self._information(bits), InferredShape(bits, hashes)

    def _likeliest(self, bits: int, runs: Sequence[int]) -> tuple[float, int, int]:
        """Return how certain it is that the first IDs are there, how many, and their hashes.

        ``runs`` of set positions descend.
        """
        best = 0.0, 0, 1
        for count, run in enumerate(runs, start=1):
            chances = comb(len(runs), count) * _CHOICES
            certainty = count * run * self._information(bits) - log2(chances)
            if run and certainty >= best[0]:
                best = certainty, count, run
        return best

    def _information(self, bits: int) -> float:
        """Return the information of a position that is set, in bits."""
        return -log2(min(self._set / bits, 1.0))

    def _runs(self, bits: int) -> list[int]:
        """Return how many positions of each ID are set, up to the first one that is not."""
        words, runs = self._words, []
        for first, step in self._hashes:
            position, run = first % bits, 0
            while run < MAX_HASHES and words[position >> 6] >> (position & 63) & 1:
                position = (position + step) % bits
                run += 1
            runs.append(run)
        return runs


_INFER_EVERY_MS: Final = 1_000
"""Inference takes longer than the reception of a message."""

_LOOK_EVERY_MS: Final = 10_000
"""How often the shape of one peer's filters is looked at."""

_END: Final[Key] = (MAX_CLOCK + 1, "")


class Foreign:
    """A filter of our IDs in a peer's shape.

    ``complete`` says that `known` covers all that we have; ``is_built``, that it can be compared.
    ``waiting`` is what we have and is not in the log.
    """

    __slots__ = ("_below", "_older", "_older_ids", "_rolling", "complete", "is_built")

    def __init__(self, shape: Shape, waiting: Iterable[str]) -> None:
        self._rolling = RollingFilter(shape)
        self._older: bytearray | None = bytearray(shape.size_bytes)
        self._older_ids = 0
        self._below = _END
        self.complete = False
        self.is_built = False
        for message_id in waiting:
            self.add(message_id)

    def known(self) -> int:
        """Return the bits of our messages."""
        older = 0 if self._older is None else int.from_bytes(self._older)
        return older | self._rolling.known()

    def span(self) -> int:
        """Return how many of the newest IDs `known` covers."""
        return self._older_ids + self._rolling.span()

    def add(self, message_id: str) -> None:
        """Insert what came just now."""
        self._rolling.add(message_id)
        if self._older is not None and not self._rolling.complete:
            # Newer IDs fill it by now.
            self._older, self._older_ids = None, 0
            self.complete, self.is_built = False, True

    def build(self, log: MessageLog) -> None:
        """Insert some more of what was there before."""
        if self.is_built or self._older is None:
            return
        shape = self._rolling.shape
        room = min(shape.capacity, MAX_FOREIGN_IDS) - self._older_ids
        count = min(room, MAX_INSERTED_AT_ONCE)
        entries = log.preceding(self._below, count) if count else []
        for entry in entries:
            for place, mask in shape.probe(entry.message_id):
                self._older[place] |= mask
        self._older_ids += len(entries)
        if len(entries) < MAX_INSERTED_AT_ONCE:
            self.is_built = True
            self.complete = len(entries) < count and not log.pruned
        else:
            self._below = entries[0].key


@dataclass(frozen=True, slots=True)
class _Looked:
    """The shape of a peer's filter, None: unknown, and when it was inferred."""

    shape: Shape | None
    at_ms: int


class Filters:
    """``own`` is what we send; those of other shapes are found by `of`."""

    __slots__ = ("_foreign", "_inferred_ms", "_peers", "_shape", "own")

    def __init__(self, shape: FilterShape) -> None:
        self._shape = shape
        self.own = RollingFilter(shape)
        self._foreign: dict[Shape, Foreign] = {}
        self._peers = BoundedDict[str, _Looked](MAX_COMPARED_PEERS)
        self._inferred_ms = -inf

    def add(self, message_id: str) -> None:
        """Insert an ID that was not inserted before."""
        self.own.add(message_id)
        for foreign in self._foreign.values():
            foreign.add(message_id)

    def of(self, shape: Shape) -> RollingFilter | Foreign | None:
        """Return our filter in a shape of `shape_of`; None while it cannot be compared."""
        if shape is self._shape:
            return self.own
        foreign = self._foreign.get(shape)
        return foreign if foreign is not None and foreign.is_built else None

    def build(self, log: MessageLog) -> None:
        """Insert more into filters that cannot be compared yet."""
        for foreign in self._foreign.values():
            foreign.build(log)

    def shape_of(self, sender_id: str, bloom_filter: bytes) -> Shape | None:
        """Return the shape of a peer's filter; None: it cannot be read."""
        looked = self._peers.get(sender_id)
        if looked and looked.shape and looked.shape.reads(bloom_filter):
            return looked.shape
        return self._shape if self._shape.reads(bloom_filter) else None

    def is_time(self, sender_id: str, now_ms: int) -> bool:
        """Return True if the shape of a peer's filters is to be inferred by `look`."""
        looked = self._peers.get(sender_id)
        return looked is None or now_ms - looked.at_ms >= _LOOK_EVERY_MS

    def look(
        self,
        sender_id: str,
        bloom_filter: bytes,
        log: MessageLog,
        now_ms: int,
        *,
        waiting: Collection[str],
        in_use: Collection[Shape],
    ) -> None:
        """Infer the shape of a peer's filters.

        ``waiting`` was received and is not in the log; shapes ``in_use`` are kept.
        """
        newest = [entry.message_id for entry in log.preceding(_END, MAX_SAMPLE_IDS)]
        sample = FilterSample(bloom_filter, newest)
        shape = next((each for each in (self._shape, *self._foreign) if sample.is_of(each)), None)
        if shape is None:
            if now_ms - self._inferred_ms < _INFER_EVERY_MS:
                return
            self._inferred_ms = now_ms
            shape = sample.infer()
        if shape is None or not self._takes(shape, waiting, in_use):
            shape = self.shape_of(sender_id, bloom_filter)
        self._peers[sender_id] = _Looked(shape, now_ms)

    def _takes(self, shape: Shape, waiting: Collection[str], in_use: Collection[Shape]) -> bool:
        """Return True if there is a filter of this shape, or room for one."""
        if shape is self._shape:
            return True
        foreign = self._foreign.pop(shape, None)
        if foreign is None:
            if len(waiting) > MAX_INSERTED_AT_ONCE:
                return False
            if len(self._foreign) >= MAX_FOREIGN_SHAPES and not self._makes_room(in_use):
                return False
            foreign = Foreign(shape, waiting)
        self._foreign[shape] = foreign
        return True

    def _makes_room(self, in_use: Collection[Shape]) -> bool:
        """Drop the shape that was used longest ago."""
        free = next((shape for shape in self._foreign if shape not in in_use), None)
        if free is not None:
            del self._foreign[free]
        return free is not None
