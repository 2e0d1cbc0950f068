"""Whether a store took messages in, from the intervals that it has recorded."""

from __future__ import annotations

from typing import Final

import pytest

from store.domain.coverage import HOUR_NS, Intake, Interval, Span, intake_of

NOW: Final = 10 * HOUR_NS
RECORD: Final = [
    Interval(HOUR_NS, 3 * HOUR_NS, resumed=False),
    # Off for an hour and a half, of which the resume has brought an hour.
    Interval(3 * HOUR_NS, 4 * HOUR_NS, resumed=True),
    Interval(4 * HOUR_NS + HOUR_NS // 2, 6 * HOUR_NS, resumed=False),
    # Another node of the store.
    Interval(5 * HOUR_NS, NOW - 5, resumed=False),
]


def hour(number: int) -> Span:
    return number * HOUR_NS, (number + 1) * HOUR_NS


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (hour(0), Intake.NEVER),
        (hour(1), Intake.ONLINE),
        (hour(3), Intake.RESUMED),
        ((2 * HOUR_NS, 4 * HOUR_NS), Intake.RESUMED),
        (hour(4), Intake.OFFLINE),
        (hour(5), Intake.ONLINE),
        ((0, 2 * HOUR_NS), Intake.OFFLINE),
        # The record may be some seconds behind.
        ((9 * HOUR_NS, 11 * HOUR_NS), Intake.ONLINE),
    ],
)
def test_a_span_is_what_all_of_it_is_recorded_as(span: Span, expected: Intake) -> None:
    assert intake_of(span, RECORD[::-1], NOW) is expected


def test_nothing_recorded_is_never() -> None:
    assert intake_of(hour(5), [], NOW) is Intake.NEVER
    assert intake_of(hour(9), RECORD[:3], NOW) is Intake.OFFLINE
