"""Slices cover what they must, and nothing twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.domain.partitioning import Bounds
from store.pipeline.errors import PipelineError
from store.pipeline.fingerprints import Fingerprint
from store.pipeline.limits import (
    HOUR_NS,
    MAX_SLICE_ROWS,
    MAX_STEP_MESSAGES,
    MIN_SLICE_ROWS,
    MIN_STEP_MESSAGES,
)
from store.pipeline.source import (
    Slice,
    from_text,
    good_slice_rows,
    grouped,
    in_shares,
    in_steps,
    plan_slices,
    to_text,
)

EVERYTHING = Bounds(0, 2**62)

hours = st.dictionaries(
    st.integers(0, 60).map(lambda hour: hour * HOUR_NS),
    st.integers(1, 5_000).map(lambda count: Fingerprint(count, 1, 2, 3, 4)),
    max_size=20,
)
edges = st.lists(st.integers(0, 61 * 4).map(lambda part: part * HOUR_NS // 4), max_size=6)


def partitions(cuts: list[int]) -> list[Bounds]:
    ordered = sorted({0, 61 * HOUR_NS, *cuts})
    return [Bounds(low, high) for low, high in pairwise(ordered)]


@given(hours, edges, st.integers(1, 3_000), st.integers(0, 30), st.integers(31, 61))
def test_slices_are_the_hours_within_the_range(
    held: dict[int, Fingerprint], cuts: list[int], rows: int, first: int, end: int
) -> None:
    within = Bounds(first * HOUR_NS + 7, end * HOUR_NS - 5)
    found = plan_slices(held, partitions(cuts), within, rows)
    assert all(one.high_ns <= two.low_ns for one, two in pairwise(found))
    covered = sum(each.high_ns - each.low_ns for each in found)
    wanted = sum(max(0, min(hour + HOUR_NS, within.high) - max(hour, within.low)) for hour in held)
    assert covered == wanted
    for each in found:
        assert each.low_ns // HOUR_NS * HOUR_NS in held
        assert not any(each.low_ns < cut < each.high_ns for cut in cuts)
        assert each.rows < 2 * rows or each.high_ns - each.low_ns <= HOUR_NS


@given(hours, st.integers(1, 9))
def test_groups_keep_every_slice_in_order(held: dict[int, Fingerprint], most: int) -> None:
    slices = plan_slices(held, [], EVERYTHING, 500)
    groups = grouped(slices, most)
    assert [each for group in groups for each in group] == slices
    assert len(groups) <= most
    assert all(groups)


def test_an_hour_with_much_in_it_is_cut() -> None:
    held = {0: Fingerprint(10_000, 0, 0, 0, 0)}
    assert len(plan_slices(held, [], EVERYTHING, 1_000)) == 10


def test_a_slice_is_neither_tiny_nor_huge() -> None:
    assert good_slice_rows(0, 8) == good_slice_rows(9, 8) == MIN_SLICE_ROWS
    assert good_slice_rows(10**12, 8) == MAX_SLICE_ROWS
    assert good_slice_rows(2_000_000, 8) == 250_000


def test_slices_are_read_back() -> None:
    slices = [Slice(1, 2, 3), Slice(-5, 2**62, 0)]
    assert from_text(to_text(slices)) == slices


@pytest.mark.parametrize(
    "text", ["", "{", "1", "[1]", "[[1, 2]]", '[["a", 1, 2]]', "[[null, 1, 2]]"]
)
def test_what_are_no_slices_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        from_text(text)


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
    held = {hour * HOUR_NS: Fingerprint(each, 1, 2, 3, 4) for hour in reversed(range(hours))}
    steps = in_steps(held)
    assert [start for step in steps for start in step] == sorted(held)
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
