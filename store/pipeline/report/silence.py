"""Hours without a message that are not usual for the time of the day and of the week.

Pure: the hours of one shard come in, its gaps come out. What is usual in an hour is the mean of the
same hour of the week, or while there are few weeks of the same hour of the day, or while there are
few days of all hours; the silence that is judged takes no part in it, nor do
other gaps.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.pipeline.limits import HOUR_NS
from store.pipeline.report.limits import (
    MIN_ACTIVE_HOURS,
    MIN_ACTIVE_SHARE,
    MIN_EXPECTED,
    MIN_SAMPLES,
)

_PERIODS: Final = (7 * 24, 24, 1)
"""Hours after which the same is usual again, the most exact first."""

_PASSES: Final = 4
"""What is found to be a gap takes no part in what is usual for the others, so often."""

Numbers = NDArray[np.int64]


class Silence(NamedTuple):
    """Hours without a message, the end exclusive; ``expected`` would have been usual."""

    start_ns: int
    end_ns: int
    expected: int


def silences(starts_ns: Numbers, messages: Numbers, end_ns: int) -> list[Silence]:
    """Return the gaps of a shard, in the order of time.

    ``starts_ns`` are hours that have messages, each once, and ``end_ns`` the end of the last hour
    that is over: a silence may last up to it.
    """
    known = starts_ns < end_ns
    if np.count_nonzero(known) < MIN_ACTIVE_HOURS:
        return []
    first = int(starts_ns[known].min()) // HOUR_NS
    counts = np.zeros(end_ns // HOUR_NS - first, np.int64)
    counts[starts_ns[known] // HOUR_NS - first] = messages[known]
    runs = _runs(counts == 0)
    usual = np.ones(len(counts), np.bool_)
    found: list[Silence] = []
    for _ in range(_PASSES):
        profile = _Profile(counts, first, usual)
        judged = [_judged(profile, first, low, high) for low, high in runs]
        before, found = found, [each for each in judged if each is not None]
        if found == before:
            break
        usual[:] = True
        for each in found:
            usual[each.start_ns // HOUR_NS - first : each.end_ns // HOUR_NS - first] = False
    return found


class _Profile:
    """The usual traffic of an hour, by its position in each of `_PERIODS`."""

    def __init__(self, counts: Numbers, first: int, usual: NDArray[np.bool_]) -> None:
        """Count hours and messages by position; ``usual`` are the hours that take part."""
        places = np.arange(first, first + len(counts))
        self._usual = usual
        self._slots = [places % period for period in _PERIODS]
        self._hours, self._active, self._messages = (
            [
                np.bincount(slots, weights, period)
                for slots, period in zip(self._slots, _PERIODS, strict=True)
            ]
            for weights in (usual, counts > 0, counts)
        )

    def of(self, low: int, high: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, for each hour of a silence, the share of active hours and the mean number of
        messages among the other hours at the same position.
        """
        share, rate = np.zeros(high - low), np.zeros(high - low)
        unknown = np.ones(high - low, np.bool_)
        for slots, period, hours, active, messages in zip(
            self._slots, _PERIODS, self._hours, self._active, self._messages, strict=True
        ):
            here = slots[low:high]
            others = (hours - np.bincount(here, self._usual[low:high], period))[here]
            enough = unknown & (others >= MIN_SAMPLES)
            share[enough] = (active[here] / np.maximum(others, 1))[enough]
            rate[enough] = (messages[here] / np.maximum(others, 1))[enough]
            unknown &= ~enough
        return share, rate


def _judged(profile: _Profile, first: int, low: int, high: int) -> Silence | None:
    """Return the part of a silence that is not usual, from its first such hour to its last."""
    share, rate = profile.of(low, high)
    unusual = np.flatnonzero(share >= MIN_ACTIVE_SHARE)
    expected = int(rate[unusual].sum())
    if expected < MIN_EXPECTED:
        return None
    begin, end = first + low + int(unusual[0]), first + low + int(unusual[-1]) + 1
    return Silence(begin * HOUR_NS, end * HOUR_NS, expected)


def _runs(silent: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of silent hours: first, and end, which is excluded."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8)))
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]
