"""What we have as filters: of the channel's shape, and of those that peers have instead.

The shape of a peer's filters is inferred (`storenode.sds.shapes`), looked at again from time to
time, and shared by all peers with such filters. What we have is then inserted into a filter of
that shape too: what comes from now on at once, and what was there before step by step, newest
first. It is compared when all is inserted that it has room for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from storenode.common.bounded import BoundedDict
from storenode.sds.bloom import FilterShape, RollingFilter, Shape
from storenode.sds.limits import (
    MAX_CLOCK,
    MAX_COMPARED_PEERS,
    MAX_FOREIGN_IDS,
    MAX_FOREIGN_SHAPES,
    MAX_INSERTED_AT_ONCE,
)
from storenode.sds.log import Log
from storenode.sds.pages import Key
from storenode.sds.shapes import MAX_SAMPLE_IDS, Sample

_INFER_EVERY_MS: Final = 1_000
"""Inference takes longer than the reception of a message."""

_LOOK_EVERY_MS: Final = 10_000
"""How often the shape of one peer's filters is looked at."""

_END: Final[Key] = (MAX_CLOCK + 1, "")


class Foreign:
    """Our IDs in a filter of a peer's shape.

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
        """The bits of what we have."""
        older = 0 if self._older is None else int.from_bytes(self._older)
        return older | self._rolling.known()

    def span(self) -> int:
        """How many of the newest IDs `known` covers."""
        return self._older_ids + self._rolling.span()

    def add(self, message_id: str) -> None:
        """Insert what came just now."""
        self._rolling.add(message_id)
        if self._older is not None and not self._rolling.complete:
            # Newer IDs fill it by now.
            self._older, self._older_ids = None, 0
            self.complete, self.is_built = False, True

    def build(self, log: Log) -> None:
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
    """What a peer's filter was found to be, None: unknown, and when."""

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
        """What we have, in a shape of `shape_of`; None while it cannot be compared."""
        if shape is self._shape:
            return self.own
        foreign = self._foreign.get(shape)
        return foreign if foreign is not None and foreign.is_built else None

    def build(self, log: Log) -> None:
        """Go on inserting into filters that cannot be compared yet."""
        for foreign in self._foreign.values():
            foreign.build(log)

    def shape_of(self, sender_id: str, bloom_filter: bytes) -> Shape | None:
        """What is known of a peer's filter; None: it cannot be read."""
        looked = self._peers.get(sender_id)
        if looked and looked.shape and looked.shape.reads(bloom_filter):
            return looked.shape
        return self._shape if self._shape.reads(bloom_filter) else None

    def is_time(self, sender_id: str, now_ms: int) -> bool:
        """Whether to look at the shape of a peer's filters: `look`."""
        looked = self._peers.get(sender_id)
        return looked is None or now_ms - looked.at_ms >= _LOOK_EVERY_MS

    def look(
        self,
        sender_id: str,
        bloom_filter: bytes,
        log: Log,
        now_ms: int,
        *,
        waiting: Collection[str],
        in_use: Collection[Shape],
    ) -> None:
        """Infer the shape of a peer's filters.

        ``waiting`` was received and is not in the log; shapes ``in_use`` are kept.
        """
        newest = [entry.message_id for entry in log.preceding(_END, MAX_SAMPLE_IDS)]
        sample = Sample(bloom_filter, newest)
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
        """Whether there is a filter of this shape, or room for one."""
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
        """Let the shape go that was looked at longest ago."""
        free = next((shape for shape in self._foreign if shape not in in_use), None)
        if free is not None:
            del self._foreign[free]
        return free is not None
