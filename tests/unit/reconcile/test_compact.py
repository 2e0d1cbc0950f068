"""The compact mode against the difference of sets, on indexes of all kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.compact import Run
from bench.reconcile_sets import HOUR_NS, MINUTE_NS, START_NS, Pair, uniform
from reconcile.compact.frames import TableFrame, decode
from reconcile.compact.keys import BIT_BALANCES, NONCE_BYTES, ShortKey, balance_bits, derive_keys
from reconcile.compact.plan import SliceSums, estimate, size_by_bits
from reconcile.compact.session import CompactResult, FallBack
from reconcile.compact.table import NOWHERE, SEVERAL, ShortIdTable, TableShape, find, shape_for
from reconcile.ids import Bools, Ints, SyncId, SyncIds, Words, ordered
from reconcile.index import IndexView
from tests.support.reconcile_pair import Joined, compact_pair, reconcile_compactly, some_ids
from tests.unit.reconcile.worlds import chunked

SOME = settings(max_examples=80, deadline=None)
TOP = 1 << 64
MULTIPLY = range(3)
"""The ways in which the kernel multiplies: the best one, tables, CLMUL."""


def assert_exact(joined: Joined, ours: set[SyncId], theirs: set[SyncId]) -> None:
    """Check that both sides found just what each lacks."""
    for outcome, own, other in zip(joined.outcomes, (ours, theirs), (theirs, ours), strict=True):
        assert isinstance(outcome, CompactResult)
        assert outcome.to_send.pairs() == sorted(own - other)
        lacking = SyncIds.of(sorted(other - own))
        assert outcome.to_receive.complete(lacking.hashes)
        if len(lacking):
            wrong = lacking.hashes.copy()
            wrong[0, 5] ^= 1
            assert not outcome.to_receive.complete(wrong)
            assert list(outcome.to_receive.accepts(wrong)) == [False] + [True] * (len(wrong) - 1)


def sets_of(seed: int, shared: int, ours: int, theirs: int, moments: int) -> list[list[SyncId]]:
    rng = random.Random(seed)
    ids = some_ids(rng, shared + ours + theirs, moments)
    return [ids[: shared + ours], ids[:shared] + ids[shared + ours :]]


def joined_at(sides: list[list[SyncId]], chunk: int, *, offered: bool = True) -> Joined:
    """Return a session of two sets in chunks, whose results are exact."""
    first, second = sides
    joined = compact_pair(chunked(first, chunk), chunked(second, chunk))
    joined.run(offered=offered)
    assert_exact(joined, set(first), set(second))
    return joined


def table_in(joined: Joined) -> TableFrame:
    """Return the initiator's last frame, a table."""
    slices = joined.sides[1]._slices
    assert slices is not None
    frame = decode(joined.frames[0][-1], slices=len(slices))
    assert isinstance(frame, TableFrame)
    return frame


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 1, 40, 900]),
    st.sampled_from([0, 1, 2, 9, 120]),
    st.sampled_from([0, 1, 2, 9, 120]),
    st.tuples(st.sampled_from([700, 10**6]), st.booleans()),
)
@SOME
def test_differences_are_those_of_sets(
    seed: int, shared: int, ours: int, theirs: int, how: tuple[int, bool]
) -> None:
    moments, offered = how
    ours += not offered and not theirs  # equal sides do not use the mode without an offer
    first, second = sets_of(seed, shared, ours, theirs, moments)
    ours_view, theirs_view = (IndexView.of(SyncIds.of(ids)) for ids in (first, second))
    joined = compact_pair(ours_view, theirs_view)
    joined.run(offered=offered)
    if any(isinstance(outcome, FallBack) for outcome in joined.outcomes):
        assert moments == 700 or ours + theirs > 100
        assert all(isinstance(outcome, FallBack) for outcome in joined.outcomes)
        return
    assert_exact(joined, set(first), set(second))


def test_one_difference_is_found_by_either_side() -> None:
    first, second = sets_of(2, 20_000, 1, 0, 10**6)
    for ours, theirs, frames in ((first, second, [2, 1]), (second, first, [1, 1])):
        joined = reconcile_compactly(ours, theirs)
        assert_exact(joined, set(ours), set(theirs))
        assert [len(sent) for sent in joined.frames] == frames
        assert sum(map(len, (*joined.frames[0], *joined.frames[1]))) < 150


def test_a_count_that_differs_by_one_may_hide_three_differences() -> None:
    for seed in range(12):
        for ours, theirs in ((2, 1), (1, 2)):
            ids = sets_of(seed, 300, ours, theirs, 10**6)
            for number, own in enumerate(ids):
                moved = [(1_700_000_000_000_000_000 + i, own[i][1]) for i in range(300, len(own))]
                ids[number] = own[:300] + moved
            joined = reconcile_compactly(*ids)
            assert_exact(joined, set(ids[0]), set(ids[1]))


def test_windows_end_within_nanoseconds() -> None:
    first, second = sets_of(3, 3_000, 40, 30, 300)
    bounds = sorted(first)[200], sorted(first)[-200]
    ours, theirs = (IndexView.of(SyncIds.of(ids)) for ids in (first, second))
    joined = compact_pair(ours, theirs, bounds)
    joined.run()
    inside = [{an_id for an_id in ids if bounds[0] <= an_id < bounds[1]} for ids in (first, second)]
    assert_exact(joined, *inside)


# Short IDs


def slowly(words: tuple[int, ...], hash_: bytes) -> int:
    """Return the sum of products in GF(2^64), bit by bit."""
    total = 0
    for number, key in enumerate(words):
        word = int.from_bytes(hash_[8 * number : 8 * number + 8], "little")
        product = 0
        for bit in range(64):
            product ^= key << bit if word >> bit & 1 else 0
        total ^= product
    for bit in range(127, 63, -1):
        if total >> bit & 1:
            total ^= (TOP | 0x1B) << (bit - 64)
    return total & (1 << 48) - 1


@given(st.tuples(*[st.integers(0, TOP - 1)] * 4), st.lists(st.binary(min_size=32, max_size=32)))
@SOME
def test_short_ids_are_products(words: tuple[int, ...], hashes: list[bytes]) -> None:
    expected = [slowly(words, hash_) for hash_ in hashes]
    ids = SyncIds.of((place, hash_) for place, hash_ in enumerate(hashes))
    rows = IndexView.of(ids)
    low, high = np.array([0]), np.array([len(hashes)])
    for multiply in MULTIPLY:
        key = ShortKey(words, multiply=multiply)
        assert key.of_hashes(ids.hashes).tolist() == expected
        assert key.of_places(rows, low, high).tolist() == expected
        assert [key.of_xor(row) for row in ids.words] == expected


def test_short_ids_depend_on_both_nonces() -> None:
    hashes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    a, b = b"a" * NONCE_BYTES, b"b" * NONCE_BYTES
    made = {tuple(derive_keys(*two)[0].of_hashes(hashes)) for two in ((a, b), (b, a))}
    assert len(made) == 2
    with pytest.raises(ValueError, match="whole nonces"):
        derive_keys(a, b"short")


# Tables


def some_shorts(seed: int, count: int) -> Words:
    made = np.random.default_rng(seed).integers(1, 1 << 48, count, np.uint64)
    return np.unique(made)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30, 400, 5_000, 20_000])
def test_tables_give_back_what_differs(count: int) -> None:
    shared, own = some_shorts(1, 3_000), some_shorts(2, count)
    results = []
    for narrow in (False, True):
        table = ShortIdTable(shape_for(count), 99, narrow=narrow)
        table.toggle(shared)
        table.toggle(own)
        results.append(table.cells.tolist())
        table.toggle(shared)
        found = table.peel()
        assert found is not None
        assert found.tolist() == own.tolist()
    assert results[0] == results[1]


def test_tables_that_do_not_empty_end() -> None:
    full = ShortIdTable(TableShape(4, 25, 1), 5)
    full.toggle(some_shorts(3, 400))
    assert full.peel() is None
    once = ShortIdTable(TableShape(4, 25, 1), 5)
    once.toggle(some_shorts(3, 1))
    chased = ShortIdTable(TableShape(4, 25, 1), 5, once.cells * np.uint64(0))
    chased.cells[once.cells.nonzero()[0][:1]] = once.cells.max()
    assert chased.peel() is None, "one cell of a short ID, which wanders for ever"
    for seed in range(30):
        cells = np.random.default_rng(seed).integers(0, TOP - 1, 100, np.uint64)
        assert ShortIdTable(TableShape(4, 25, 1), 5, cells).peel() is None


def test_short_ids_are_looked_up() -> None:
    own = np.array([5, 9, 300, 5, 7], np.uint64)
    wanted = np.array([4, 5, 9, 300], np.uint64)
    assert find(wanted, own).tolist() == [NOWHERE, SEVERAL, 1, 2]
    assert find(np.array([44], np.uint64), own, 0xFF).tolist() == [2]
    assert find(wanted[:0], own).tolist() == []


def test_what_a_peer_wants_may_be_spread_as_it_likes() -> None:
    clustered = np.arange(1 << 40, (1 << 40) + 40_000, dtype=np.uint64)
    strided = np.arange(40_000, dtype=np.uint64) << np.uint64(32)
    for wanted in (clustered, strided):
        own = np.concatenate((wanted[::-2], wanted[:10_000] + np.uint64((1 << 47) + (1 << 20))))
        expected = np.full(len(wanted), NOWHERE)
        expected[::-2] = np.arange(20_000)
        assert find(wanted, own).tolist() == expected.tolist()


# Slices


@given(st.integers(0, 2**32), st.sampled_from([40, 90]), st.sampled_from([500, 10_000]))
@settings(max_examples=4, deadline=None)
def test_single_differences_are_reported_by_their_prints(
    seed: int, lacking: int, chunk: int
) -> None:
    frame = table_in(joined_at(sets_of(seed, 6_000, lacking, 5, 10**6), chunk))
    assert frame.explained is not None
    assert len(frame.single) == int(frame.explained.sum()) > lacking // 4


@pytest.mark.parametrize("chunk", [500, 10**6])
@pytest.mark.parametrize("offered", [True, False])
def test_a_few_differences_are_reported_by_what_prints_are_apart(offered: bool, chunk: int) -> None:
    reported = tables = 0
    ids = sorted(sets_of(5, 9_000, 0, 0, 10**9)[0])
    for seed in range(12):
        lacking = random.Random(seed).sample(ids, 2 + seed % 3)
        if seed % 3 == 0:
            lacking.append(ids[ids.index(lacking[0]) + 1])
        sides = [[an_id for an_id in ids if an_id not in lacking[at::2]] for at in range(2)]
        frame = table_in(joined_at(sides, chunk, offered=offered))
        reported += frame.by_prints and len(frame.single) >= len(lacking) - 2
        tables += frame.by_prints and len(frame.cells) > 1
    assert reported > 6
    assert 0 < tables < 6, "a table is for two differences in a slice"


def test_three_differences_in_a_slice_are_not_taken_for_one() -> None:
    # Nothing says so before the initiator lacks what it is asked for, or counts are others.
    ids = sorted(sets_of(3, 9_000, 0, 0, 10**9)[0])
    ends = set()
    for at in range(4_000, 4_200, 20):
        lacking = ({900, 2_000, at, at + 1}, {at + 2, 8_000})
        sides = [[own for place, own in enumerate(ids) if place not in some] for some in lacking]
        joined = reconcile_compactly(*sides)
        ours, theirs = joined.outcomes
        assert type(ours) is type(theirs)
        ends.add(type(ours))
        if isinstance(ours, CompactResult):
            assert_exact(joined, *map(set, sides))
    assert ends == {FallBack, CompactResult}


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 2_040, 2_041, 5_000])
def test_short_ids_have_balances_by_bits(count: int) -> None:
    shorts = np.random.default_rng(count).integers(0, 1 << 48, count, np.uint64)
    found = balance_bits(shorts)
    assert len(found) == BIT_BALANCES
    bits = [[short >> bit & 1 for bit in range(48)] for short in shorts.tolist()]
    for turn in range(BIT_BALANCES // 48):
        for bit in (0, 1, 23, 47):
            ones = sum(row[bit] ^ (row[bit - turn] if turn else 0) for row in bits)
            assert found[48 * turn + bit] == count - 2 * ones


@pytest.mark.parametrize("differing", [3, 40, 400])
def test_one_table_is_enough_for_what_no_bound_divides(differing: int) -> None:
    first, second = sets_of(0, 9_000, differing, differing // 2, 10**9)
    ids = [
        sorted((1_700_000_000_000_000_000, hash_) for _, hash_ in own) for own in (first, second)
    ]
    joined = reconcile_compactly(*ids)
    assert_exact(joined, set(ids[0]), set(ids[1]))
    assert joined.sides[0].tables == 1
    total = sum(map(len, (*joined.frames[0], *joined.frames[1])))
    assert total < 1_000 + 25 * (differing + differing // 2)


@pytest.mark.parametrize(("lacks", "chunk"), [(0, 500), (1, 10_000)])
def test_what_differs_all_over_a_slice_is_listed(lacks: int, chunk: int) -> None:
    sides = [sorted(ids) for ids in sets_of(8, 20_000, 30, 20, 10**9)]
    gap = set(sorted(set(sides[0]) & set(sides[1]))[9_000:9_400])
    sides[lacks] = [an_id for an_id in sides[lacks] if an_id not in gap]
    joined = joined_at(sides, chunk)
    assert [len(frames) for frames in joined.frames] == [2, 2]
    frame = table_in(joined)
    assert frame.listed is not None
    assert frame.listed.any()
    assert (len(frame.named) < 200) == (lacks == 0)
    assert len(frame.cells) < 400


# The size of a table, by balances, counts, and the slices that differ


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
