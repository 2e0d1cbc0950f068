"""The size of a table, by balances, counts, and the slices that differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from bench.compact import Run
from bench.reconcile_sets import HOUR_NS, MINUTE_NS, START_NS, Pair, uniform
from reconcile.compact.keys import BIT_BALANCES, NONCE_BYTES, balance_bits
from reconcile.compact.plan import SliceSums, estimate, size_by_bits
from reconcile.ids import Bools, Ints, SyncIds, ordered
from reconcile.index import IndexView


def summed(apart: Ints) -> SliceSums:
    """Return the sums over slices that differ by these balances."""
    size = np.abs(apart).astype(np.float64)
    single, silent = int((size == 1).sum()), int((size == 0).sum())
    squares, fourth = float((size**2).sum()), float((size**4).sum())
    return SliceSums(len(apart), single, silent, 0, float(size.sum()), squares, fourth, squares)


@pytest.mark.parametrize(("slices", "each"), [(12, 20), (30, 10), (100, 3), (270, 4)])
def test_balances_seldom_say_too_little(slices: int, each: int) -> None:
    rng = np.random.default_rng(slices)
    short = 0
    for _ in range(2_000):
        apart = 2 * rng.binomial(each, 0.5, slices) - each
        _, size = estimate(summed(apart), slices, 0, certain=True)
        short += size < slices * each
    assert short <= 10


def test_counts_say_how_many_differences_there_are_at_least() -> None:
    sums = summed(np.array([1, 1]))
    assert estimate(sums, 4_000, 9, certain=True)[0] == 9
    assert estimate(sums._replace(in_gaps=400), 4_000, 9, certain=True)[0] == 402


def test_the_largest_balances_there_are_fit() -> None:
    apart = np.full(60_000, 1 << 31)
    about, size = estimate(summed(apart), 60_000, 0, certain=True)
    assert size > about > 2**60


def test_balances_by_bits_seldom_say_too_little() -> None:
    rng = np.random.default_rng(4)
    for differing in (3, 100, 1_000):
        sizes = []
        for _ in range(400):
            ours = rng.integers(0, 1 << 48, differing // 2, np.uint64)
            theirs = rng.integers(0, 1 << 48, differing - len(ours), np.uint64)
            sizes.append(size_by_bits(balance_bits(ours) - balance_bits(theirs)))
        assert len(balance_bits(ours)) == BIT_BALANCES
        assert sum(size < differing for size in sizes) <= 4
        assert np.median(sizes) < 1.7 * differing


def lacking(ids: SyncIds, sides: tuple[Bools, Bools]) -> Pair:
    """Return two sides, each of which lacks IDs that the other one has."""
    ours, theirs = sides[0], sides[1] & ~sides[0]
    return Pair(ids[~ours], ids[~theirs], ids[theirs], ids[ours])


def in_a_minute(ids: SyncIds, random: np.random.Generator) -> Pair:
    """Return sides that differ in some of the IDs of a minute."""
    begin = START_NS + int(random.integers(0, HOUR_NS - MINUTE_NS))
    first, end = ids.timestamps.searchsorted((begin, begin + MINUTE_NS))
    count = min(int(10 ** random.uniform(1, 3)), int(end - first) // 2)
    sides = np.zeros((2, len(ids)), np.bool_)
    places = first + random.choice(end - first, count, replace=False)
    sides[random.integers(0, 2, count), places] = True
    return lacking(ids, (sides[0], sides[1]))


def with_gaps(ids: SyncIds, random: np.random.Generator, gaps: tuple[bool, bool]) -> Pair:
    """Return sides that differ in 30 scattered IDs, some of them in a gap of 20 to 1,500 too."""
    sides = np.zeros((2, len(ids)), np.bool_)
    sides[random.integers(0, 2, 30), random.choice(len(ids), 30, replace=False)] = True
    size = int(random.integers(20, 1_500))
    for side, has_gap in zip(sides, gaps, strict=True):
        begin = int(random.integers(0, len(ids) - size))
        side[begin : begin + size] |= has_gap
    return lacking(ids, (sides[0], sides[1]))


@pytest.mark.parametrize(
    "make",
    [in_a_minute, partial(with_gaps, gaps=(False, True)), partial(with_gaps, gaps=(True, True))],
    ids=["in a minute", "gap at the responder", "gaps at both"],
)
def test_one_table_is_enough(make: Callable[[SyncIds, np.random.Generator], Pair]) -> None:
    random = np.random.default_rng(17)
    shared = uniform(random, 60_000)
    for _ in range(40):
        sets = make(shared, random)
        views = IndexView.of(sets.ours), IndexView.of(sets.theirs)
        run = Run(views, (random.bytes(NONCE_BYTES), random.bytes(NONCE_BYTES)))
        run.check(sets)
        assert run.tables == 1


def test_many_ids_of_one_time_do_not_hide_a_gap() -> None:
    random = np.random.default_rng(3)
    shared = uniform(random, 60_000)
    times = shared.timestamps.copy()
    for pile in range(12):
        times[4_000 * pile : 4_000 * pile + 500] = times[4_000 * pile]
    shared = ordered(SyncIds(times, shared.hashes))
    theirs = np.ones(len(shared), np.bool_)
    theirs[30_000:31_000] = False
    ours = random.random(len(shared)) > 5e-4
    sets = Pair(shared[ours], shared[theirs], shared[~theirs & ours], shared[~ours & theirs])
    views = IndexView.of(sets.ours), IndexView.of(sets.theirs)
    for _ in range(20):
        run = Run(views, (random.bytes(NONCE_BYTES), random.bytes(NONCE_BYTES)))
        run.check(sets)
        assert sum(map(len, run.frames[0])) < 30_000
