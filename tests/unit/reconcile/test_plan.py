"""The cost model: what it chooses, and what it makes of a received message."""

from __future__ import annotations

import numpy as np
import pytest

from reconcile.algorithm.plan import Estimate, SplitPlan, Tuning, estimate, fan_outs


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
