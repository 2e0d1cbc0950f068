"""Detection of hours without a message that are unusual for the time of the day and of the week.

The expected traffic of an hour is the mean of the same hour of the week, or while there are few
weeks of the same hour of the day, or while there are few days of all hours. The silence that is
judged and other gaps are excluded from the mean.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.pipeline.limits import HOUR_NS

MIN_EXPECTED: Final = 10
"""Messages that a silence must have cost, at the usual rate, to be a gap."""

MIN_ACTIVE_HOURS: Final = 12
"""Hours with messages that a shard must have before its silences are judged."""

MIN_ACTIVE_SHARE: Final = 2 / 3
MIN_SAMPLES: Final = 3
"""The number of comparable hours, and the share of them that must have messages."""

_PERIODS: Final = (7 * 24, 24, 1)
"""Hours after which the same is usual again, the most exact first."""

_PASSES: Final = 4
"""Passes in which the gaps of the pass before are excluded from the means."""

Numbers = NDArray[np.int64]
Means = NDArray[np.float64]


class Silence(NamedTuple):
    """Hours without a message, the end exclusive; ``expected`` messages are usual in them."""

    start_ns: int
    end_ns: int
    expected: int


def silences(starts_ns: Numbers, messages: Numbers, end_ns: int) -> list[Silence]:
    """Return the gaps of a shard, in the order of time.

    ``starts_ns`` are the distinct hours that have messages, and ``end_ns`` is the end of the last
    hour that is over, up to which a silence may last.
    """
    known = starts_ns < end_ns
    if np.count_nonzero(known) < MIN_ACTIVE_HOURS:
        return []
    first = int(starts_ns[known].min()) // HOUR_NS
    counts = np.zeros(end_ns // HOUR_NS - first, np.int64)
    counts[starts_ns[known] // HOUR_NS - first] = messages[known]
    edges = np.diff(np.concatenate([[False], counts == 0, [False]]).astype(np.int8))
    runs = [(int(low), int(high)) for low, high in np.flatnonzero(edges).reshape(-1, 2)]
    is_usual = np.ones(len(counts), np.bool_)
    found: list[tuple[int, int, int]] = []
    for _ in range(_PASSES):
        before, found = found, _gaps(counts, first, is_usual, runs)
        if found == before:
            break
        is_usual[:] = True
        for low, high, _expected in found:
            is_usual[low:high] = False
    return [
        Silence((first + low) * HOUR_NS, (first + high) * HOUR_NS, expected)
        for low, high, expected in found
    ]


def _gaps(
    counts: Numbers, first: int, is_usual: NDArray[np.bool_], runs: list[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """Return the unusual part of each run of silent hours, and the messages expected in it."""
    slots = [np.arange(first, first + len(counts)) % period for period in _PERIODS]
    sums = [
        [np.bincount(slot, weights, period) for slot, period in zip(slots, _PERIODS, strict=True)]
        for weights in (is_usual, counts > 0, counts)
    ]
    found = []
    for low, high in runs:
        share, rate = np.zeros(high - low), np.zeros(high - low)
        is_open = np.ones(high - low, np.bool_)
        for slot, period, hours, active, messages in zip(slots, _PERIODS, *sums, strict=True):
            here = slot[low:high]
            others: Means = (hours - np.bincount(here, is_usual[low:high], period))[here]
            enough = is_open & (others >= MIN_SAMPLES)
            share[enough] = (active[here] / np.maximum(others, 1))[enough]
            rate[enough] = (messages[here] / np.maximum(others, 1))[enough]
            is_open &= ~enough
        unusual = np.flatnonzero(share >= MIN_ACTIVE_SHARE)
        expected = int(rate[unusual].sum())
        if expected >= MIN_EXPECTED:
            found.append((low + int(unusual[0]), low + int(unusual[-1]) + 1, expected))
    return found
