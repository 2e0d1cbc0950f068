"""The flood gate: a burst per kind and interval, and nothing lost from the count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from store.observe.logging import OTHER_KINDS, FloodGate


def test_a_burst_passes_and_the_rest_is_counted_with_the_next_one() -> None:
    gate = FloodGate(burst=2, interval_s=10)
    assert [gate.admit("a", 0) for _ in range(5)] == [0, 0, None, None, None]
    assert gate.admit("b", 0) == 0, "kinds do not hinder each other"
    assert gate.admit("a", 9.9) is None
    assert gate.admit("a", 10) == 4
    assert gate.admit("a", 10) == 0


def test_a_flood_that_ends_is_reported_once() -> None:
    gate = FloodGate(burst=1, interval_s=10)
    for _ in range(4):
        gate.admit("a", 0)
    gate.admit("b", 0)
    assert gate.drain(5) == []
    assert gate.drain(10) == [("a", 3)]
    assert gate.drain(20) == []


def test_kinds_beyond_the_bound_share_a_count() -> None:
    gate = FloodGate(burst=1, interval_s=10, max_kinds=2)
    admitted = [gate.admit(kind, 0) for kind in ("a", "b", "c", "d", "e")]
    assert admitted == [0, 0, 0, None, None]
    assert gate.drain(10) == [(OTHER_KINDS, 2)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=200))
def test_every_event_is_either_passed_or_counted(events: list[tuple[str, int]]) -> None:
    gate = FloodGate(burst=3, interval_s=4, max_kinds=2)
    now_s, passed, counted = 0.0, 0, Counter[str]()
    for kind, pause_s in events:
        now_s += pause_s
        missed = gate.admit(kind, now_s)
        passed += missed is not None
        counted["with the next"] += missed or 0
    counted["drained"] = sum(count for _, count in gate.drain(now_s + 4))
    assert passed + counted.total() == len(events)
