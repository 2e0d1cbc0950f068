"""Slices cover what they must, and nothing twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.pipeline.fingerprints import Fingerprint
from store.pipeline.limits import (
    HOUR_NS,
    MAX_SLICE_ROWS,
    MAX_STEP_MESSAGES,
    MIN_SLICE_ROWS,
    MIN_STEP_MESSAGES,
)
from store.pipeline.source import in_shares, in_steps, plan_slices

hours = st.dictionaries(
    st.integers(0, 60).map(lambda hour: hour * HOUR_NS),
    st.integers(1, 3 * MIN_SLICE_ROWS).map(lambda count: Fingerprint(count, 1, 2, 3, 4)),
    max_size=20,
)


@given(hours, st.integers(1, 9), st.integers(0, 30), st.integers(31, 61))
def test_slices_are_the_hours_within_the_range_in_order(
    stored: dict[int, Fingerprint], tasks: int, first: int, end: int
) -> None:
    within = (first * HOUR_NS + 7, end * HOUR_NS - 5)
    groups = plan_slices(stored, within, tasks)
    assert len(groups) <= tasks
    assert all(groups)
    found = [each for group in groups for each in group]
    assert all(one.high_ns <= two.low_ns for one, two in pairwise(found))
    covered = sum(each.high_ns - each.low_ns for each in found)
    wanted = sum(max(0, min(hour + HOUR_NS, within[1]) - max(hour, within[0])) for hour in stored)
    assert covered == wanted
    assert all(each.low_ns // HOUR_NS * HOUR_NS in stored for each in found)
    most = max(MIN_SLICE_ROWS, -(-sum(each.messages for each in stored.values()) // tasks))
    assert all(each.rows < 2 * most for each in found)


@pytest.mark.parametrize(
    ("messages", "tasks", "slices"),
    [(9, 8, 1), (MIN_SLICE_ROWS * 3, 8, 3), (MAX_SLICE_ROWS * 10, 2, 10)],
)
def test_a_slice_is_neither_tiny_nor_huge(messages: int, tasks: int, slices: int) -> None:
    groups = plan_slices({0: Fingerprint(messages, 0, 0, 0, 0)}, (0, HOUR_NS), tasks)
    assert sum(map(len, groups)) == slices


@pytest.mark.parametrize(
    ("hours", "each", "most"),
    [
        (24, 1_000, 24_000),
        (24 * 30, 20_000, MIN_STEP_MESSAGES),
        (24 * 365, 60_000, MAX_STEP_MESSAGES),
        (3, 9_000_000, 9_000_000),
    ],
)
def test_steps_are_whole_hours_in_order_and_small_beside_all(
    hours: int, each: int, most: int
) -> None:
    stored = {hour * HOUR_NS: Fingerprint(each, 1, 2, 3, 4) for hour in reversed(range(hours))}
    steps = in_steps(stored)
    assert [start for step in steps for start in step] == sorted(stored)
    assert max(len(step) for step in steps) * each <= most + each
    assert in_steps({}) == []


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 80))
def test_shares_keep_the_order_and_come_near_their_size(sizes: list[int], share: int) -> None:
    groups = in_shares(sizes, int, share)
    assert [size for group in groups for size in group] == sizes
    assert all(groups)
    assert len(groups) <= max(bool(sizes), -(-sum(sizes) // share))
    assert all(sum(group) <= share + max(group) for group in groups)
    assert in_shares([16] * 8, int, 33) == [[16, 16]] * 4
