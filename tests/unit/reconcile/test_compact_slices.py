"""The slices of the compact mode, against the rules applied to each one after the other."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.compact.frames import AnswerHead, SlicesFrame
from reconcile.compact.keys import first_key
from reconcile.compact.plan import CountRange, Slicing
from reconcile.compact.slices import Regions, SliceDifferences, Slices, SliceSurvey, WindowIndex
from reconcile.compact.table import MAX_CELLS
from reconcile.ids import Ints, SyncId, SyncIds
from storenode.message.limits import MAX_TIMESTAMP_NS
from tests.support.reconcile_pair import EVERYTHING, some_ids
from tests.unit.reconcile.worlds import chunked

SOME = settings(max_examples=80, deadline=None)
KEY = first_key(b"a nonce of theirs"[:16])
APART = 32
MASK = 0xFFFFFFFF


@given(st.randoms(use_true_random=False), st.sampled_from([5, 10**6]))
@SOME
def test_single_differences_are_found_by_the_rules(rng: random.Random, chunk: int) -> None:
    ids = sorted({(rng.randrange(2_000), rng.randbytes(32)) for _ in range(rng.choice((3, 200)))})
    index = WindowIndex(chunked(ids, chunk), EVERYTHING)
    edges = sorted(rng.randrange(len(ids) + 1) for _ in range(2 * rng.randrange(1, 9)))
    low, high = np.array(edges[::2]), np.array(edges[1::2])
    shorts = KEY.of_hashes(
        np.frombuffer(b"".join(hash_ for _, hash_ in ids), np.uint8).reshape(-1, 32)
    )
    prints, apart = np.zeros(len(low), np.uint64), np.zeros(len(low), np.int64)
    expected: list[tuple[int, int, list[int], bool]] = []
    for row, (first, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        apart[row] = rng.choice((-1, 1, 1, 3))
        print_ = rng.getrandbits(48) if first == end else int(shorts[rng.randrange(first, end)])
        prints[row] = print_ ^ rng.choice((0, 0, 1, 1 << 40))
        alike = [
            at
            for at in range(first, end)
            if (int(shorts[at]) ^ int(prints[row])) << 32 & (1 << 64) - 1 == 0
        ]
        single_row = len(alike) == 1 and apart[row] == 1 - 2 * (ids[alike[0]][1][0] & 1)
        left = (alike[0], alike[0] + 1) if single_row else (first, end)
        expected.append((*left, shorts[slice(*left)].tolist(), single_row))
    nothing = np.zeros(len(low), np.int64)
    compared = Slices(nothing, nothing, low, high, prints, apart)
    lows, highs, found, singles = index.sift(compared, KEY)
    assert lows.tolist() == [row[0] for row in expected]
    assert highs.tolist() == [row[1] for row in expected]
    assert found.tolist() == [short for row in expected for short in row[2]]
    at = 0
    for single_row, (_, _, own, is_single) in zip(singles.tolist(), expected, strict=True):
        assert single_row == (at if is_single else -1)
        at += len(own)


# Slices that differ


@dataclass
class World:
    """The slices of one side, and the facts about them."""

    ids: list[SyncId]
    slices: list[tuple[int, int]]
    apart: list[int]
    single: list[bool]
    regions: list[tuple[int, int]]
    usual: int
    most_listed: int
    equal: list[int]

    def places(self, number: int) -> tuple[int, int]:
        low, high = (bisect_left(self.ids, (time, b"")) for time in self.slices[number])
        return low, high


def made_up(rng: random.Random) -> World:
    span = rng.choice((40, 400, 100_000))
    ids = sorted({(rng.randrange(span), rng.randbytes(32)) for _ in range(rng.choice((0, 9, 900)))})
    cuts = sorted(rng.sample(range(span), min(span, rng.choice((2, 12, 60)))))
    every = list(pairwise(cuts))
    slices = sorted(rng.sample(every, rng.randrange(len(every) + 1)))
    size = rng.choice((1, 2, 30))
    return World(
        ids,
        slices,
        [rng.randint(-size, size) for _ in slices],
        [rng.random() < rng.choice((0.2, 0.9)) for _ in slices],
        rng.choice(([(cuts[0], cuts[-1])], every[:: 1 + rng.randrange(3)])),
        rng.choice((0, 1, len(ids) // len(cuts), 50, 1 << 40)),
        rng.choice((0, 20, MAX_CELLS)),
        [rng.randrange(60) for _ in range(rng.choice((0, 4, 12, 60)))],
    )


def counted(world: World, number: int) -> int:
    """Count the IDs in a slice; of many with one time no more than is usual."""
    low, high = world.places(number)
    if high - low <= world.usual + world.usual // 4:
        return high - low
    middle = world.ids[low + (high - low) // 2][0]
    alike = sum(time == middle for time, _ in world.ids)
    return high - low - max(0, min(alike, high - low) - world.usual)


def at_edge(world: World, number: int) -> bool:
    lower, upper = world.slices[number]
    begun = [region for region in world.regions if region[0] <= lower]
    start, end = (begun or world.regions)[-1 if begun else 0]
    return lower == start or upper == end


def summed(world: World, rows: list[int], least: list[int], most: list[int]) -> list[float]:
    sizes = [abs(world.apart[row]) for row in rows]
    outside = [row for row in rows if not most[row]]
    apart = [abs(world.apart[row]) for row in outside]
    return [
        len(rows),
        sizes.count(1),
        apart.count(0),
        sum(most[row] for row in rows),
        sum(apart),
        sum(size**2 for size in apart),
        sum(size**4 for size in apart),
        sum(max(world.apart[row] ** 2, least[row]) for row in outside),
    ]


def naive(world: World) -> tuple[list[float], list[float], bool, list[bool]]:
    """Return the survey of slices, by the rules."""
    rows = range(len(world.slices))
    counts = [counted(world, row) for row in rows]
    small = [at_edge(world, row) and counts[row] < world.usual for row in rows]
    alike = sorted(counts[row] for row in rows if world.single[row] and not small[row])
    if len(world.equal) >= len(alike):
        alike = sorted(world.equal)
    few, many = world.usual - world.usual // 32, world.usual + world.usual // 32
    if len(alike) >= 5:
        some = alike[min(2, len(alike) // 10) :][: len(alike) - 2 * min(2, len(alike) // 10)]
        few, many = min(world.usual, some[0]), max(world.usual, some[-1])
    few, many = few - 2, many + 2
    beside = (many - few) // 2 + 1
    least, most, worth = [0] * len(rows), [0] * len(rows), [False] * len(rows)
    for row in rows:
        beyond = max(few - counts[row], counts[row] - many)
        inside = max(few - beside, few // 2) < counts[row] < min(many + beside, 2 * many)
        if beyond <= 0 or inside:
            continue
        clear = abs(counts[row] - world.usual)
        in_gap = 4 * clear >= world.usual or clear >= 6 * abs(world.apart[row])
        worth[row] = in_gap and 6 * counts[row] < 11 * clear
        if not small[row]:
            least[row] = beyond
            most[row] = beyond + many - few if in_gap else 0
    listed = [
        not world.single[row]
        and any(
            worth[other]
            and (
                other == row or world.slices[min(row, other)][1] == world.slices[max(row, other)][0]
            )
            for other in range(max(0, row - 1), min(len(rows), row + 2))
        )
        for row in rows
    ]
    total = sum(np.subtract(*world.places(row)[::-1]) for row in rows if listed[row])
    if not world.most_listed or total > world.most_listed:
        listed = [False] * len(rows)
    rest = [row for row in rows if not world.single[row] and not listed[row]]
    return (
        summed(world, list(rows), least, most),
        summed(world, rest, least, most),
        any(most),
        listed,
    )


def looked_at(world: World, chunk: int) -> SliceSurvey:
    lower, upper = np.array(world.slices, np.int64).reshape(-1, 2).T.copy()
    places = np.array([world.places(row) for row in range(len(world.slices))], np.int64)
    low, high = places.reshape(-1, 2).T.copy()
    apart = np.array(world.apart, np.int64)
    chosen = Slices(lower, upper, low, high, np.zeros(len(apart), np.uint64), apart)
    regions = Regions(*np.array(world.regions, np.int64).T.copy())
    index = WindowIndex(chunked(world.ids, chunk), EVERYTHING)
    single = np.array(world.single, np.bool_)
    compared = SliceDifferences(np.ones_like(single), chosen, count_range(world.equal))
    return index.survey(compared, single, world.usual, regions, most_listed=world.most_listed)


def count_range(counts: list[int]) -> CountRange:
    """Return the range of counts without some of the largest and least, a tenth at most."""
    outside = min(2, len(counts) // 10)
    ordered = sorted(counts) or [0]
    return CountRange(len(counts), ordered[outside], ordered[-1 - outside])


@given(st.randoms(use_true_random=False))
@SOME
def test_slices_that_differ_are_looked_at_by_the_rules(rng: random.Random) -> None:
    world = made_up(rng)
    sums, rest, some_gap, listed = naive(world)
    found = looked_at(world, rng.choice((7, 10_000)))
    assert list(found.sums) == sums
    assert list(found.rest) == rest
    assert found.has_gap == some_gap
    assert (found.listed is not None) == any(listed)
    if found.listed is not None:
        assert found.listed.tolist() == listed


# Cuts


def slices_slowly(
    ids: list[SyncId], window: tuple[SyncId, SyncId], lower: Ints, upper: Ints
) -> list[tuple[int, int, int, int]]:
    """Return the places, print and balance of each slice."""
    shorts = KEY.of_hashes(SyncIds.of(ids).hashes).tolist()
    first, last = (bisect_left(ids, bound) for bound in window)
    found = []
    for bounds in zip(lower.tolist(), upper.tolist(), strict=True):
        low, high = (
            len(ids) if time == MAX_TIMESTAMP_NS else bisect_left(ids, (time, b""))
            for time in bounds
        )
        low, high = (min(max(place, first), last) for place in (low, high))
        print_ = 0
        for short in shorts[low:high]:
            print_ ^= short
        found.append((low, high, print_, sum(1 - 2 * (i[1][0] & 1) for i in ids[low:high])))
    return found


def rows_of(slices: Slices) -> list[tuple[int, int, int, int]]:
    """Return the places, prints and balances of slices."""
    columns = slices.low, slices.high, slices.prints, slices.balances
    return list(zip(*(column.tolist() for column in columns), strict=True))


def answer_of(frame: bytes) -> SlicesFrame:
    """Return an answer whose slices are some bytes."""
    head = AnswerHead(np.zeros(4, np.uint64), 0, np.ones(1, np.bool_), 4)
    return SlicesFrame(frame, 0, head)


@given(
    st.integers(0, 2**32),
    st.sampled_from([30, 700, 4_000]),
    st.sampled_from([200, 10**4, 10**9]),
    st.sampled_from([150, 10**5]),
    st.integers(2, 300),
)
@SOME
def test_slices_are_cut_and_compared_by_the_rules(
    seed: int, count: int, moments: int, chunk: int, slices: int
) -> None:
    rng = random.Random(seed)
    ids = sorted(some_ids(rng, count, moments))
    window = (ids[count // 20], ids[-1 - count // 20])
    index = WindowIndex(chunked(rng.sample(ids, len(ids)) if seed % 2 else ids, chunk), window)
    regions = index.regions
    if count > 100 and seed % 3:
        edges = np.array([ids[count * part // 8][0] for part in (1, 3, 3, 4, 5, 7)])
        lower, upper = edges[::2], edges[1::2]
        kept = lower < upper
        regions = Regions.join(lower[kept], upper[kept])
    own, frame = index.cut(regions, KEY, Slicing(slices, 4))
    assert rows_of(own) == slices_slowly(ids, window, own.lower, own.upper)
    assert Regions.join(own.lower, own.upper).start.tolist() == regions.start.tolist()
    assert Regions.join(own.lower, own.upper).end.tolist() == regions.end.tolist()
    assert len(own) <= slices + len(regions.start)
    if len(own) == len(regions.start):
        return
    others = sorted(rng.sample(ids, len(ids) - len(ids) // 10))
    other = WindowIndex(chunked(others, chunk), window)
    assert not index.compare(answer_of(frame), regions, KEY).differs.any()
    compared = other.compare(answer_of(frame), regions, KEY)
    expected = []
    equal = []
    slowly = slices_slowly(others, window, own.lower, own.upper)
    ends = {*regions.start.tolist(), *regions.end.tolist()}
    for row, (mine, theirs) in enumerate(zip(slowly, rows_of(own), strict=True)):
        print_, apart = mine[2] ^ theirs[2] & MASK, mine[3] - theirs[3]
        assert compared.differs[row] == bool(print_ & MASK or apart)
        if compared.differs[row]:
            expected.append((*mine[:2], print_, apart))
        elif int(own.lower[row]) not in ends and int(own.upper[row]) not in ends:
            equal.append(mine[1] - mine[0])
    assert rows_of(compared.chosen) == expected
    assert compared.equal.slices == len(equal)
    if moments == 10**9 and count >= 2 * slices:
        assert compared.equal == count_range(equal)


def test_the_last_times_there_are_leave_nothing_out() -> None:
    """Check bounds that need all bits of a time, and the last time, which means the end."""
    rng = random.Random(4)
    times = [1, 2, MAX_TIMESTAMP_NS - 1, MAX_TIMESTAMP_NS]
    ids = sorted((rng.choice(times), rng.randbytes(32)) for _ in range(300))
    window = (0, bytes(32)), (MAX_TIMESTAMP_NS, b"\xff" * 32)
    index = WindowIndex(chunked(ids, 10**5), window)
    own, frame = index.cut(index.regions, KEY, Slicing(10, 4))
    assert len(own) > 1
    assert own.high[-1] == 300
    assert not len(index.compare(answer_of(frame), index.regions, KEY).chosen)
