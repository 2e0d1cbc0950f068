"""Pairs of sets by where the differences are, for the sizes of the compact mode's tables.

There are 10 to 1,000 differences; a gap has 20 to 1,500 IDs, and 30 other differences beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.reconcile_sets import HOUR_NS, MINUTE_NS, START_NS, Pair, moved
from reconcile.ids import SyncIds, ordered

OTHERS: Final = 30
GAP: Final = (20, 1_500)

Random = np.random.Generator
Make = Callable[[SyncIds, Random], Pair]


def _taken(shared: SyncIds, ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> Pair:
    """Return two sides, each of which lacks IDs that the other one has."""
    theirs &= ~ours
    return Pair(shared[~ours], shared[~theirs], shared[theirs], shared[ours])


def _some(count: int, wanted: int, random: Random) -> NDArray[np.bool_]:
    chosen = np.zeros(count, np.bool_)
    chosen[random.choice(count, wanted, replace=False)] = True
    return chosen


def _number(random: Random) -> int:
    return int(10 ** random.uniform(1, 3))


def _scattered(shared: SyncIds, random: Random, *, share: float = 0.5) -> Pair:
    lacking = _some(len(shared), _number(random), random)
    ours = lacking & (random.random(len(shared)) < share)
    return _taken(shared, ours, lacking & ~ours)


def _one_side(shared: SyncIds, random: Random) -> Pair:
    return _scattered(shared, random, share=float(random.integers(2)))


def _minute(shared: SyncIds, random: Random) -> Pair:
    lacking = np.zeros(len(shared), np.bool_)
    begin = START_NS + int(random.integers(0, HOUR_NS - MINUTE_NS))
    first, end = shared.timestamps.searchsorted((begin, begin + MINUTE_NS))
    lacking[first:end] = _some(end - first, min(_number(random), (end - first) // 2), random)
    ours = lacking & (random.random(len(shared)) < 0.5)
    return _taken(shared, ours, lacking & ~ours)


def _gaps(sides: tuple[bool, bool], others: int = OTHERS) -> Make:
    def make(shared: SyncIds, random: Random) -> Pair:
        size = int(random.integers(*GAP))
        scattered = _some(len(shared), others, random)
        both = [scattered & (random.random(len(shared)) < 0.5)]
        both.append(scattered & ~both[0])
        for lacking, has_gap in zip(both, sides, strict=True):
            if has_gap:
                begin = int(random.integers(0, len(shared) - size))
                lacking[begin : begin + size] = True
        return _taken(shared, both[0], both[1])

    return make


def _moved(spread: str) -> Callable[[SyncIds, Random], SyncIds]:
    """Return a function that moves shared IDs to the times of those that will differ."""

    def move(shared: SyncIds, random: Random) -> SyncIds:
        layout = int(random.integers(2**32))
        return ordered(SyncIds(moved(spread, shared.timestamps, random, layout), shared.hashes))

    return move


def _as_they_are(shared: SyncIds, _: Random) -> SyncIds:
    return shared


INITIATOR, RESPONDER, BOTH = (True, False), (False, True), (True, True)
DISTRIBUTIONS: Final[dict[str, tuple[Callable[[SyncIds, Random], SyncIds], Make]]] = {
    "uniform": (_as_they_are, _scattered),
    "one side": (_as_they_are, _one_side),
    "in a minute": (_as_they_are, _minute),
    "seconds": (_moved("seconds"), _scattered),
    "bursts": (_moved("bursts"), _scattered),
    "gap at the initiator": (_as_they_are, _gaps(INITIATOR)),
    "gap at the responder": (_as_they_are, _gaps(RESPONDER)),
    "gaps at both": (_as_they_are, _gaps(BOTH)),
    "gap and nothing else, initiator": (_as_they_are, _gaps(INITIATOR, 0)),
    "gap and nothing else, responder": (_as_they_are, _gaps(RESPONDER, 0)),
    "seconds, gap at the initiator": (_moved("seconds"), _gaps(INITIATOR)),
    "seconds, gap at the responder": (_moved("seconds"), _gaps(RESPONDER)),
    "seconds, gaps at both": (_moved("seconds"), _gaps(BOTH)),
    "bursts, gap at the initiator": (_moved("bursts"), _gaps(INITIATOR)),
    "bursts, gap at the responder": (_moved("bursts"), _gaps(RESPONDER)),
    "bursts, gaps at both": (_moved("bursts"), _gaps(BOTH)),
}
