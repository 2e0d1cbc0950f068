"""How many differences a table is made for, by balances, counts, and which slices differ."""

from __future__ import annotations

import numpy as np
import pytest

from bench.compact import EVERYTHING, Run
from bench.reconcile_sets import START_NS, Case, Pair, pair, uniform
from bench.reconcile_tables import DISTRIBUTIONS
from reconcile.compact.choosing import _gaps
from reconcile.compact.keys import NONCE_BYTES, TALLIED, tally
from reconcile.compact.sizing import (
    Gaps,
    Ordinary,
    are_single,
    estimate,
    gaps,
    left_over,
    occupied,
    summed,
    tallied,
)
from reconcile.compact.slices import Compared, Held, Regions, Slices
from reconcile.ids import SyncIds, ordered
from reconcile.index import IndexView


def of_counts(counts: list[int], apart: int = 0, single: int = 0, usual: int = 64) -> Gaps | None:
    """What counts say; the first few slices have no gap."""
    ordinary = Ordinary.of(np.array(counts[:single]))
    return gaps(np.full(len(counts), apart), np.array(counts), ordinary, usual)


def test_a_slice_with_few_ids_or_many_is_in_a_gap() -> None:
    assert of_counts([64, 63, 65, 66, 62]) is None
    found = of_counts([0, 64, 10, 200, 90, 640])
    assert found is not None
    assert (found.least > 0).tolist() == [True, False, True, True, True, True]
    for count, most in zip((0, 10, 200, 90, 640), found.most[[0, 2, 3, 4, 5]], strict=True):
        assert abs(count - 64) <= most <= abs(count - 64) + 10
    assert found.named.tolist() == [True, False, True, True, False, True]


def test_counts_that_vary_anyway_say_nothing() -> None:
    varied = [40, 95, 60, 70, 50, 85, 90, 45]
    assert of_counts([*varied, 99, 38], single=8) is None
    found = of_counts([*varied, 0, 300], single=8)
    assert found is not None
    assert found.most[:8].tolist() == [0] * 8
    assert (found.most[8:] > 0).all()


def test_a_count_is_that_of_a_gap_if_it_is_clearly_outside_of_what_varies() -> None:
    varied = [60, 62, 64, 66, 68, 70, 61, 69]
    assert of_counts([*varied, 79], single=8) is None
    found = of_counts([*varied, 82, 46], single=8)
    assert found is not None
    assert (found.most > 0).tolist() == [False] * 8 + [True] * 2


def test_slices_cut_off_at_an_edge_do_not_show_how_counts_vary() -> None:
    counts = np.array([3, 300, 302, 298, 301, 299, 360])
    lower = 1_000 * np.arange(len(counts))
    places = counts.cumsum()
    nothing = np.zeros(len(counts), np.int64)
    chosen = Slices(lower, lower + 1_000, places - counts, places, nothing.view(np.uint64), nothing)
    regions = Regions(lower[:1], lower[-1:] + 9_000)
    view = IndexView.of(uniform(np.random.default_rng(1), int(counts.sum())))
    held, single = Held(view, EVERYTHING), counts != 360
    compared = Compared(np.ones_like(single), chosen, Ordinary(0, 0, 0))
    found = _gaps(held, compared, single, 300, regions)
    assert found is not None
    assert (found.most > 0).tolist() == [False] * 6 + [True]
    # Slices that are equal say more if they are more.
    compared = Compared(np.ones_like(single), chosen, Ordinary(9, 290, 400))
    found = _gaps(held, compared, single, 300, regions)
    assert found is not None
    assert not found.most.any()


def test_equal_slices_show_how_counts_vary_but_for_some() -> None:
    counts = np.array([64] * 30 + [9, 700, 50, 90, 60])
    assert Ordinary.of(counts) == (35, 60, 64)
    assert Ordinary.of(counts[26:]) == (9, 9, 700)
    assert Ordinary.of(counts[:0]) == (0, 0, 0)


def test_a_gap_is_credible_as_far_as_balances_leave_room_for_it() -> None:
    found = of_counts([64, 0, 400, 66])
    assert found is not None
    apart = np.array([1, 3, 20, 0])
    assert summed(apart, found).credible(apart).in_gaps == found.most.sum()
    small = np.array([1, 3, 4, 0])
    assert (5 + 1) ** 2 <= summed(small, found).credible(small).in_gaps <= 2 * (5 + 1) ** 2
    assert summed(small, None).credible(small).in_gaps == 0


def test_balances_that_counts_do_not_explain_are_no_gap() -> None:
    found = of_counts([720], apart=15, usual=640)
    assert found is not None
    assert found.least.all()
    assert not found.most.any()
    found = of_counts([720], apart=1, usual=640)
    assert found is not None
    assert found.most.all()


def test_what_is_at_an_edge_has_no_number() -> None:
    found = of_counts([0, 200])
    assert found is not None
    some = found.but_for(np.array([True, False]))
    assert some.most.tolist() == [0, found.most[1]]
    assert some.named.tolist() == [True, True]


@pytest.mark.parametrize(("slices", "each"), [(12, 20), (30, 10), (100, 3), (270, 4)])
def test_balances_seldom_say_too_little(slices: int, each: int) -> None:
    rng = np.random.default_rng(slices)
    short = 0
    for _ in range(2_000):
        apart = 2 * rng.binomial(each, 0.5, slices) - each
        _, size = estimate(summed(apart, None), slices, 0, certain=True)
        short += size < slices * each
    assert short <= 10


def test_single_differences_are_counted_exactly() -> None:
    about, size = estimate(summed(np.array([1, -1, 1, 1]), None), 4_000, 0, certain=True)
    assert (about, round(size)) == (4, 4)
    about, _ = estimate(summed(np.array([1, 0, 0]), None), 4_000, 0, certain=True)
    assert about == 5
    assert estimate(summed(np.array([1, 1]), None), 4_000, 9, certain=True)[0] == 9
    assert estimate(summed(np.zeros(0, np.int64), None), 1, 0, certain=True) == (0, 0)


def test_the_largest_balances_there_are_fit() -> None:
    apart = np.full(60_000, 1 << 31)
    about, size = estimate(summed(apart, None), 60_000, 0, certain=True)
    assert size > about > 2**60


def test_slices_in_a_gap_count_by_their_number() -> None:
    found = of_counts([64, 0, 400], single=0)
    assert found is not None
    about, _ = estimate(summed(np.array([1, 3, 20]), found), 500, 0, certain=True)
    assert about == 1 + found.most.sum()
    rest = found.of(np.array([True, False, False]))
    assert estimate(summed(np.array([1]), rest), 500, 0, certain=True)[0] == 1


def test_counts_of_both_sides_say_what_is_left() -> None:
    assert left_over(-7, 1, sifted=False) == 7
    assert left_over(-2, 2, sifted=True) == 2
    assert left_over(31, 2, sifted=True) == 35


def test_the_fewer_slices_between_are_equal_the_more_differences_there_are() -> None:
    slices, few = occupied(np.array([3, 900]))
    assert slices == 898
    assert 2 <= few < 2.1
    slices, many = occupied(np.delete(np.arange(40, 80), [7, 19, 30]))
    assert slices == 40
    assert 95 < many < 110
    assert occupied(np.zeros(0, np.int64)) == (1, 0)


def test_slices_differ_in_one_id_where_these_are_scattered() -> None:
    places = np.arange(5, 405, 40)
    apart = np.array([1, -1] * 5)
    assert are_single(summed(apart, None), places, 4)
    assert not are_single(summed(apart, None), places, 12), "counts say that there are more"
    assert not are_single(summed(apart, None), places // 4, 4), "they are close together"
    assert not are_single(summed(2 * apart, None), places, 4)
    assert not are_single(summed(apart[:1], None), places[:1], 1), (
        "nothing says how close together they are"
    )
    assert are_single(summed(np.array([1, 1, 0]), None), np.array([3, 80, 200]), 0)


def test_balances_by_bits_seldom_say_too_little() -> None:
    rng = np.random.default_rng(4)
    for differing in (3, 100, 1_000):
        sizes = []
        for _ in range(400):
            ours = rng.integers(0, 1 << 48, differing // 2, np.uint64)
            theirs = rng.integers(0, 1 << 48, differing - len(ours), np.uint64)
            sizes.append(tallied(tally(ours) - tally(theirs)))
        assert len(tally(ours)) == TALLIED
        assert sum(size < differing for size in sizes) <= 4
        assert np.median(sizes) < 1.7 * differing


@pytest.mark.parametrize("name", ["in a minute", "gap at the responder", "gaps at both"])
def test_one_table_is_enough(name: str) -> None:
    random = np.random.default_rng(17)
    shared = uniform(random, 60_000)
    for _ in range(40):
        sets = DISTRIBUTIONS[name][1](shared, random)
        views = IndexView.of(sets.ours), IndexView.of(sets.theirs)
        run = Run(views, (random.bytes(NONCE_BYTES), random.bytes(NONCE_BYTES)))
        run.check(sets)
        assert run.tables == 1


@pytest.mark.parametrize("spread", ["ours", "theirs", "bursts", "seconds"])
def test_counts_that_vary_without_a_gap_take_no_more_bytes(spread: str) -> None:
    def sent(sets: Pair) -> int:
        views = IndexView.of(sets.ours), IndexView.of(sets.theirs)
        run = Run(views, (bytes(NONCE_BYTES), bytes(range(NONCE_BYTES))))
        run.check(sets)
        assert run.tables == 1
        return run.frame_bytes

    scattered, other = (pair(Case("", 520_000, 600, kind)) for kind in ("uniform", spread))
    assert sent(other) < 2 * sent(scattered)


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


def test_many_ids_of_one_time_are_no_gap() -> None:
    random = np.random.default_rng(3)
    shared = uniform(random, 60_000)
    times = shared.timestamps.copy()
    times[20_000:26_000] = times[20_000]
    shared = SyncIds(times, shared.hashes)
    order = np.lexsort((shared.hashes[:, 1], shared.hashes[:, 0], shared.timestamps))
    shared = shared[order]
    ours = np.ones(len(shared), np.bool_)
    ours[[20_100, 20_200, 25_000, 40_000, 500]] = False
    views = IndexView.of(shared[ours]), IndexView.of(shared)
    run = Run(views, (random.bytes(NONCE_BYTES), random.bytes(NONCE_BYTES)))
    assert not run.fell_back
    assert shared.timestamps[0] >= START_NS
    assert sum(map(len, run.frames[0])) < 6_000
