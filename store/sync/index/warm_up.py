"""Filling the index in memory from one snapshot of the store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import numpy as np

from reconcile.ids import END, HASH_WORDS, SyncId, SyncIds
from reconcile.index import Index
from reconcile.summaries.leaves import last_cut, rank
from reconcile.summaries.summary import NeedIds
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.domain.hub import Place
from store.domain.view import ColdView, StoredIds
from store.sync.index.reading import worked_through
from store.sync.limits import FLOOR_STEP_NS, FULL_SHARE, IndexLimits
from storenode.message.limits import MAX_TIMESTAMP_NS

_PARTS_OF_ROOM: Final = 16
_NO_HASH: Final = bytes(8 * HASH_WORDS)


@dataclass(frozen=True, slots=True)
class Warm:
    """An index of everything from a floor on, up to a commit."""

    index: Index
    floor_ns: int
    place: Place


def at(time_ns: int) -> SyncId:
    """The bound before everything that has this time."""
    return time_ns, _NO_HASH


async def warm_up(stored: StoredIds, floor_ns: int, limits: IndexLimits) -> Warm:
    """Read what is held from ``floor_ns`` on, or from later on where that would be too much.

    Raises:
        StoreUnavailable: the database does not serve.
        SummaryMismatch: the summaries say something else than what is held.
    """
    async with stored.open_cold() as cold:
        floor_ns = max(floor_ns, cold.horizon_ns)
        floor_ns = await _with_room(cold, floor_ns, int(FULL_SHARE * limits.entries))
        index = Index(min_chunk_ids=limits.chunk_ids)
        lower = at(floor_ns)
        while True:
            needs = NeedIds(Spans.of([(lower, END)]), limits.warm_up_ids, contents=True)
            ids = await cold.load(needs)
            assert isinstance(ids, SyncIds)
            if len(ids) < limits.warm_up_ids:
                await asyncio.to_thread(index.insert, ids)
                return Warm(index, floor_ns, cold.place)
            lower = last_cut(ids)
            await asyncio.to_thread(index.insert, ids[: rank(ids, lower)])


async def _with_room(cold: ColdView, floor_ns: int, room: int) -> int:
    """The lowest floor, about, above which no more is held than there is room for."""
    spans = Spans.of([(at(floor_ns), END)])
    measured = (await worked_through(cold.view, Read(measure=spans), cold.load)).measured
    assert measured is not None
    held = int(measured.counts[0])
    if held <= room:
        return floor_ns
    wanted = np.array([-(-held * _PARTS_OF_ROOM // room)])
    parts = (await worked_through(cold.view, Read(split=(spans, wanted)), cold.load)).parts
    assert parts is not None
    above = held - np.cumsum(parts.counts)
    for bound, count in zip(parts.upper.pairs()[:-1], above.tolist(), strict=False):
        if count <= room and bound[1] == _NO_HASH:
            return bound[0]
    return MAX_TIMESTAMP_NS


def raised_floor(index: Index, room: int) -> int | None:
    """Where the floor must be so that no more than so many IDs are left; None: where it is."""
    if len(index) <= room:
        return None
    rows = index.view().rows
    place = len(index) - room
    highest = int(rows.between(place - 1, place).timestamps[0])
    aligned = highest - highest % FLOOR_STEP_NS + FLOOR_STEP_NS
    if rows.rank(at(min(aligned, MAX_TIMESTAMP_NS))) < len(index):
        return aligned
    return min(highest + 1, MAX_TIMESTAMP_NS)
