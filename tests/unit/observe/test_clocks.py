"""Comparison of clocks: offsets, delays, samples that are old, and publishers in bulk."""

from __future__ import annotations

import pytest

from store.observe.clocks import SAMPLE_AGE_NS, ClockComparison, parse_time

S = 10**9
DRIFT_NS = 20 * S


class Clocks:
    """A node's clock, the steady one behind it, and the right time."""

    def __init__(self) -> None:
        self.right_ns = 1_800_000_000 * S
        self.steady_ns = 0
        self.set_ns = 0
        self.comparison = ClockComparison(DRIFT_NS, self.now, lambda: self.steady_ns)

    def now(self) -> int:
        return self.right_ns + self.steady_ns + self.set_ns

    def right(self) -> int:
        return self.right_ns + self.steady_ns


def test_a_clock_that_is_set_back_differs_until_it_is_right_again() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right())
    assert clocks.comparison.offsets_s() == {"b": 0}
    clocks.set_ns = -7_200 * S
    assert clocks.comparison.offsets_s() == {"b": 7_200}, "without another sample"
    clocks.set_ns = 0
    clocks.steady_ns += 60 * S
    assert clocks.comparison.offsets_s() == {"b": 0}


def test_a_sample_that_was_delayed_makes_no_clock_late() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right())
    clocks.comparison.note("b", clocks.right() - 30 * S)
    assert clocks.comparison.offsets_s() == {"b": 0}
    clocks.comparison.note("b", clocks.right() - 30 * S)
    assert clocks.comparison.offsets_s() == {"b": -30}, "it is late indeed"
    clocks.comparison.note("c", clocks.right() - 3 * S, delay_ns=3 * S)
    assert clocks.comparison.offsets_s()["c"] == 0


def test_an_old_sample_says_nothing() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right() + 90 * S)
    clocks.steady_ns += SAMPLE_AGE_NS + 1
    assert clocks.comparison.offsets_s() == {}


def test_only_several_publishers_tell_of_a_clock() -> None:
    clocks = Clocks()
    for name in ("a", "b"):
        clocks.comparison.note_publisher(name, in_time=False)
    for _ in range(100):
        clocks.comparison.note_publisher("a", in_time=False)
    assert clocks.comparison.refused_publishers() == 0
    clocks.comparison.note_publisher("c", in_time=False)
    clocks.comparison.note_publisher("d", in_time=True)
    assert clocks.comparison.refused_publishers() == 0.75
    clocks.steady_ns += 301 * S
    assert clocks.comparison.refused_publishers() == 0


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        (None, None),
        ("1800000000000000000", 1_800_000_000 * S),
        *((each, None) for each in ("", "-1", "1.5", "٣", " 1", "9" * 20)),
    ],
)
def test_a_time_that_cannot_be_read_is_no_time(text: str | None, time_ns: int | None) -> None:
    assert parse_time(text) == time_ns
