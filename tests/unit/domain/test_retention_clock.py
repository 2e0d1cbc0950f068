"""The caution with which retention reads the clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.partitioning import DAY_NS
from store.domain.retention import MAX_DOUBT_NS, TOLERANCE_NS, Reading, RetentionClock

NOW = 1_795_000_000 * 10**9
HOUR_NS = DAY_NS // 24
YEAR_NS = 365 * DAY_NS


def test_a_leap_is_not_believed_and_is_over_when_the_clock_is_set_right() -> None:
    clock = RetentionClock(NOW, 0)
    assert clock.read(NOW + YEAR_NS, 0) == Reading(NOW, YEAR_NS)
    assert clock.read(NOW + YEAR_NS + HOUR_NS, HOUR_NS) == Reading(NOW + HOUR_NS, YEAR_NS)
    right = NOW + 2 * HOUR_NS
    assert clock.read(right, 2 * HOUR_NS) == Reading(right)


@pytest.mark.parametrize(("leap_ns", "doubt_ns"), [(YEAR_NS, MAX_DOUBT_NS), (HOUR_NS, HOUR_NS)])
def test_a_leap_is_believed_after_as_long_as_it_leapt_over_or_a_day(
    leap_ns: int, doubt_ns: int
) -> None:
    clock, leapt = RetentionClock(NOW, 0), NOW + leap_ns
    assert clock.read(leapt, 0).doubted
    assert clock.read(leapt + doubt_ns - 1, doubt_ns - 1).doubted
    assert clock.read(leapt + doubt_ns, doubt_ns) == Reading(leapt + doubt_ns)


def test_a_clock_that_is_set_back_is_believed() -> None:
    clock = RetentionClock(NOW, 0)
    assert clock.read(NOW - YEAR_NS, 0) == Reading(NOW - YEAR_NS)
    assert clock.read(NOW, HOUR_NS).doubted, "to be set right again is a leap as well"


@given(st.lists(st.tuples(st.integers(-YEAR_NS, YEAR_NS), st.integers(0, HOUR_NS)), max_size=30))
def test_time_never_runs_ahead_of_the_clock_nor_faster_than_it_passes(
    steps: list[tuple[int, int]],
) -> None:
    clock, steady, last = RetentionClock(NOW, 0), 0, NOW
    for offset, passed in steps:
        steady += passed
        reading = clock.read(NOW + steady + offset, steady)
        assert reading.time_ns <= NOW + steady + offset
        # Within a day nothing large is believed: 30 steps may last 30 hours.
        if steady < MAX_DOUBT_NS and abs(offset) > MAX_DOUBT_NS:
            assert reading.time_ns <= max(last + passed, 0) + TOLERANCE_NS
        last = reading.time_ns
