"""Silence: what is usual at a time of the week is no gap, and what is not is one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.limits import HOUR_NS
from store.pipeline.report.silence import (
    MIN_ACTIVE_HOURS,
    MIN_ACTIVE_SHARE,
    MIN_EXPECTED,
    MIN_SAMPLES,
    silences,
)

MONDAY = 20_003 * 24
"""An hour: midnight of a Monday."""

WEEK = 7 * 24


def found(counts: dict[int, int], end: int) -> list[tuple[int, int, int]]:
    """Return the gaps of a shard by hours since `MONDAY`."""
    hours = sorted(hour for hour, count in counts.items() if count)
    starts = np.array([(MONDAY + hour) * HOUR_NS for hour in hours], np.int64)
    messages = np.array([counts[hour] for hour in hours], np.int64)
    given = silences(starts, messages, (MONDAY + end) * HOUR_NS)
    return [
        (each.start_ns // HOUR_NS - MONDAY, each.end_ns // HOUR_NS - MONDAY, each.expected)
        for each in given
    ]


def of_days(hours: range, days: range, count: int = 12) -> dict[int, int]:
    return {24 * day + hour: count for day in days for hour in hours}


def test_nights_are_no_gap_and_a_silent_day_is_one() -> None:
    counts = of_days(range(8, 20), range(10))
    assert found(counts, 10 * 24) == []
    for hour in range(24):
        counts.pop(24 * 5 + hour, None)
    assert found(counts, 10 * 24) == [(5 * 24 + 8, 5 * 24 + 20, 144)]


def test_weekends_are_no_gap_once_there_are_weeks() -> None:
    counts = of_days(range(24), range(5 * 7))
    for day in (5, 6, 12, 13, 19, 20, 26, 27, 33, 34):
        for hour in range(24):
            del counts[24 * day + hour]
    assert found(counts, 5 * WEEK) == []
    del counts[3 * WEEK + 30]
    assert found(counts, 5 * WEEK) == [(3 * WEEK + 30, 3 * WEEK + 31, 12)]


def naive(counts: dict[int, int], end: int) -> list[tuple[int, int, int]]:
    """Compute the gaps hour by hour, as the documentation puts it."""
    active = [hour for hour, count in counts.items() if count and hour < end]
    if len(active) < MIN_ACTIVE_HOURS:
        return []
    gaps: list[tuple[int, int, int]] = []
    for _ in range(4):
        before, gaps = gaps, once(counts, range(min(active), end), gaps)
        if gaps == before:
            break
    return gaps


def once(
    counts: dict[int, int], every: range, known: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    gaps, run = [], []
    hours = [one for one in every if not any(low <= one < high for low, high, _ in known)]
    end = every.stop
    for hour in [*every, end]:
        if hour < end and not counts.get(hour):
            run.append(hour)
            continue
        unusual = []
        for silent in run:
            for period in (WEEK, 24, 1):
                like = [one for one in hours if (one - silent) % period == 0 and one not in run]
                if len(like) >= MIN_SAMPLES:
                    break
            busy = [one for one in like if counts.get(one)]
            if len(like) >= MIN_SAMPLES and len(busy) / len(like) >= MIN_ACTIVE_SHARE:
                unusual.append((silent, sum(counts.get(one, 0) for one in like) / len(like)))
        expected = int(sum(rate for _, rate in unusual) + 1e-9)
        if expected >= MIN_EXPECTED:
            gaps.append((unusual[0][0], unusual[-1][0] + 1, expected))
        run = []
    return gaps


@given(
    st.dictionaries(st.integers(0, 90), st.sampled_from([0, 4, 8, 16]), min_size=60),
    st.integers(0, 100),
)
def test_gaps_are_those_of_the_rules(counts: dict[int, int], end: int) -> None:
    # Sums in another order may fall on the other side of a whole number.
    ours, theirs = found(counts, end), naive(counts, end)
    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    assert all(abs(one[2] - other[2]) <= 1 for one, other in zip(ours, theirs, strict=True))
