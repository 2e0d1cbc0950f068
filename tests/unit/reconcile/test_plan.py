"""The plan of an answer, and hashes of messages as IDs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.algorithm.plan import Estimate, SplitPlan, Tuning, estimate, fan_outs
from reconcile.ids import LOWEST, SyncId, SyncIds, hashes_less, less, match


def one(size: int, density: float, depth: int) -> int:
    return int(fan_outs(np.array([size]), density, depth)[0])


def test_any_size_density_and_depth_have_an_answer() -> None:
    sizes = np.array([0, 1, 7, 10**6, 2**40])
    for density in (0.0, 1e-30, 1e-3, 1.0, 1e9):
        for depth in (-1, 0, 1, 7, 100):
            chosen = fan_outs(sizes, density, depth)
            assert ((chosen >= 0) & (chosen <= 256)).all()


@pytest.mark.parametrize("density", [1e-5, 1e-4, 1e-3, 3e-3])
def test_the_density_is_found_from_the_share_that_differs(density: float) -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(800, 1200, 2_000)
    differs = rng.random(2_000) < -np.expm1(-density * sizes)
    found = estimate(sizes, differs)
    assert found.density == pytest.approx(density, rel=0.4)
    assert not found.saturated


def test_if_all_differ_the_density_is_only_known_from_below() -> None:
    found = estimate(np.full(64, 1000), np.ones(64, np.bool_))
    assert found.saturated
    assert 0.002 < found.density < 0.02


def test_gauges_show_the_density_where_all_else_differs() -> None:
    rng = np.random.default_rng(2)
    density = 0.05
    sizes = np.concatenate((np.full(1000, 1000), np.tile([4, 4, 8, 16, 32, 64, 128], 8)))
    differs = rng.random(len(sizes)) < -np.expm1(-density * sizes)
    assert differs[:1000].all()
    found = estimate(sizes, differs)
    assert found.density == pytest.approx(density, rel=0.5)
    assert not found.saturated


def plan(ordinal: int, known: Estimate | None, *, large: bool = False) -> SplitPlan:
    return SplitPlan(Tuning(), ordinal, large, known)


def parts(made: SplitPlan, sizes: list[int]) -> list[int]:
    """Return what a plan says of ranges that were all searched in vain."""
    chosen: list[int] = made.parts(np.array(sizes), np.ones(len(sizes), np.bool_)).tolist()
    return chosen


def test_the_first_answer_has_the_parts_that_the_tuning_says() -> None:
    assert parts(plan(2, None), [10**6]) == [64]
    assert parts(plan(2, None, large=True), [10**7]) == [128]
    assert parts(plan(2, None), [10]) == [0]
    assert parts(plan(2, None), [100]) == [12]


def test_late_messages_hold_sets_unless_they_would_be_large() -> None:
    known = Estimate(1e-3, saturated=False)
    assert parts(plan(6, known), [1000]) == [0]
    assert parts(plan(6, known, large=True), [1000])[0] > 0
    assert parts(plan(6, known), [100_000])[0] >= 16


def test_an_echo_is_for_ranges_that_were_searched() -> None:
    # The other side can then name the one difference, if it is its own.
    assert one(100, 1e-3, 2) == 1
    assert int(fan_outs(np.array([100]), 1e-3, 2, probed=False)[0]) != 1


hashes = st.binary(min_size=32, max_size=32)
close_hashes = st.tuples(st.integers(0, 31), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])).map(
    lambda place: bytes(place[0]) + bytes([place[1]]) + bytes(31 - place[0])
)
pairs = st.tuples(st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1)), close_hashes | hashes)


@given(st.lists(pairs))
def test_pairs_survive(listed: list[SyncId]) -> None:
    ids = SyncIds.of(listed)
    assert len(ids) == len(listed)
    assert ids.pairs() == list(ids) == listed
    assert [ids.at(index) for index in range(len(ids))] == listed
    assert ids == SyncIds.of(listed)


@given(st.lists(pairs, min_size=1), st.data())
def test_some_are_chosen(listed: list[SyncId], data: st.DataObject) -> None:
    ids = SyncIds.of(listed)
    rows = data.draw(st.lists(st.integers(0, len(listed) - 1)))
    assert ids[np.array(rows, np.int64)].pairs() == [listed[row] for row in rows]
    mask = data.draw(st.lists(st.booleans(), min_size=len(listed), max_size=len(listed)))
    assert ids[np.array(mask)].pairs() == [
        pair for pair, kept in zip(listed, mask, strict=True) if kept
    ]
    begin, end = sorted((data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))))
    step = data.draw(st.sampled_from([1, 2, -1]))
    chosen = ids[begin:end:step]
    assert chosen.pairs() == listed[begin:end:step]
    assert chosen.hashes.flags.c_contiguous
    assert np.shares_memory(ids[:].hashes, ids.hashes)


@given(st.lists(st.lists(pairs)))
def test_parts_are_joined(parts: list[list[SyncId]]) -> None:
    joined = SyncIds.join([SyncIds.of(part) for part in parts])
    assert joined.pairs() == [pair for part in parts for pair in part]


@given(st.lists(st.tuples(pairs, pairs)))
def test_order_is_by_time_and_then_by_hash(both: list[tuple[SyncId, SyncId]]) -> None:
    left, right = SyncIds.of(a for a, _ in both), SyncIds.of(b for _, b in both)
    assert less(left, right).tolist() == [a < b for a, b in both]
    assert hashes_less(left.hashes, right.hashes).tolist() == [a[1] < b[1] for a, b in both]


some = st.lists(pairs, max_size=2) | st.lists(pairs)


@given(some, some, some)
def test_match_finds_every_place(
    shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId]
) -> None:
    local, remote = sorted({*shared, *ours}), sorted({*shared, *theirs})
    found = match(SyncIds.of(local), SyncIds.of(remote))
    assert found.places.tolist() == [sum(own < item for own in local) for item in remote]
    assert found.found.tolist() == [item in local for item in remote]


def test_none() -> None:
    empty = SyncIds.empty()
    empty.check()
    assert empty == SyncIds.of([]) == SyncIds.join([]) == empty[np.empty(0, np.int64)]
    assert empty != [LOWEST]


def test_a_hash_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SyncIds.of([(1, bytes(31))])
