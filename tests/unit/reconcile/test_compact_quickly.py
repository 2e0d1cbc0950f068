"""What compiled code makes of frames, and of slices that differ, in one call each.

Slices are looked at by the rules one after the other here, and by arrays; frames by the reader of
the arrays, whose errors are the ones that are seen.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.compact.choosing import Survey, survey
from reconcile.compact.frames import _cut_words, decode, encode, read_answer_head
from reconcile.compact.keys import first_key
from reconcile.compact.limits import MAX_CELLS
from reconcile.compact.sizing import Ordinary
from reconcile.compact.slices import Compared, Held, Regions, Slices
from reconcile.compact.table import divided
from reconcile.errors import LimitExceeded, MalformedCompact
from reconcile.ids import SyncId
from tests.support.compact_pair import EVERYTHING
from tests.unit.reconcile.test_compact_hostile import frames
from tests.unit.reconcile.test_kernel import chunked, on_both

SOME = settings(max_examples=150, deadline=None)
KEY = first_key(b"a nonce of theirs"[:16])
SLICES = 3
"""Of the frames that tests of hostile peers begin with."""


# Frames


def read(data: bytes) -> bytes | str:
    """The frame that is read, as it is written, or what is said against it."""
    try:
        return encode(decode(data, lambda differs: int(differs.sum()), SLICES))
    except (MalformedCompact, LimitExceeded) as refusal:
        return f"{type(refusal).__name__}: {refusal}"


@given(st.sampled_from(frames()).map(encode), st.randoms(use_true_random=False))
@SOME
def test_frames_are_read_alike_whole_or_spoiled(data: bytes, rng: random.Random) -> None:
    spoiled = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(min(len(spoiled), rng.choice((6, 60, 6_000))))
        spoiled[at] = rng.choice((0, 1, 5, 127, 128, 255, rng.randrange(256)))
    if rng.random() < 0.3:
        del spoiled[rng.randrange(1, len(spoiled) + 1) :]
    first, second = on_both(lambda: read(bytes(spoiled)))
    assert first == second
    if spoiled == data:
        assert first == data


@given(st.sampled_from(frames()).map(encode), st.integers(0, 60))
@SOME
def test_an_answer_begins_with_what_the_reader_reads(data: bytes, end: int) -> None:
    data = data[:end]
    found = read_answer_head(data, SLICES)
    with kernel.python_only():
        assert read_answer_head(data, SLICES) is None
    if found is None or kernel.compiled is None:
        return
    head, at = found
    assert (data[1:33], data[at - 1]) == (head.xor.tobytes(), head.print_bytes)
    assert len(head.differs) == SLICES
    with pytest.raises(MalformedCompact, match="cut off"):
        decode(data[:at], lambda differs: int(differs.sum()), SLICES)


# Short IDs


@given(st.lists(st.integers(0, 40)), st.lists(st.integers(0, 40)), st.booleans())
@SOME
def test_named_short_ids_are_told_from_the_own_ones(
    named: list[int], own: list[int], large: bool
) -> None:
    shift = 40 if large else 0
    named = sorted({value << shift for value in named})
    own = [value << shift for value in own]
    columns = np.array(named, np.uint64), np.array(own, np.uint64)
    for wanted, rows, alone, clear in on_both(lambda: divided(*columns)):
        rest = [row for row, value in enumerate(own) if value not in named]
        once = [value for value in named if own.count(value) <= 1]
        assert clear == (once == named)
        assert wanted.tolist() == [value for value in named if value not in own]
        if clear:
            assert rows.tolist() == rest
            assert alone.tolist() == [own[row] for row in rest]


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 8))
@SOME
def test_words_are_packed_alike(words: list[int], size: int) -> None:
    column = np.array(words, np.uint64)
    expected = b"".join(word.to_bytes(8, "little")[:size] for word in words)
    assert on_both(lambda: _cut_words(column, size)) == (expected, expected)


@given(st.randoms(use_true_random=False), st.sampled_from([5, 10**6]))
@SOME
def test_single_differences_are_found_by_the_rules(rng: random.Random, chunk: int) -> None:
    ids = sorted((rng.randrange(2_000), rng.randbytes(32)) for _ in range(rng.choice((3, 200))))
    held = Held(chunked(ids, chunk), EVERYTHING)
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
        told = len(alike) == 1 and apart[row] == 1 - 2 * (ids[alike[0]][1][0] & 1)
        left = (alike[0], alike[0] + 1) if told else (first, end)
        expected.append((*left, shorts[slice(*left)].tolist(), told))
    nothing = np.zeros(len(low), np.int64)
    compared = Slices(nothing, nothing, low, high, prints, apart)
    for found in on_both(lambda: held.sift(compared, KEY)):
        assert found.low.tolist() == [row[0] for row in expected]
        assert found.high.tolist() == [row[1] for row in expected]
        assert found.shorts.tolist() == [short for row in expected for short in row[2]]
        at = 0
        for told, (_, _, own, is_told) in zip(found.told.tolist(), expected, strict=True):
            assert told == (at if is_told else -1)
            at += len(own)


# Slices that differ


@dataclass
class World:
    """Some slices of one side, and what is known of them."""

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
    """IDs in a slice; of many with one time no more than is usual."""
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
    """What is to be said of slices, by the rules."""
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


def looked_at(world: World, chunk: int) -> Survey:
    lower, upper = np.array(world.slices, np.int64).reshape(-1, 2).T.copy()
    places = np.array([world.places(row) for row in range(len(world.slices))], np.int64)
    low, high = places.reshape(-1, 2).T.copy()
    apart = np.array(world.apart, np.int64)
    chosen = Slices(lower, upper, low, high, np.zeros(len(apart), np.uint64), apart)
    regions = Regions(*np.array(world.regions, np.int64).T.copy())
    held = Held(chunked(world.ids, chunk), EVERYTHING)
    single = np.array(world.single, np.bool_)
    equal, most = Ordinary.of(np.array(world.equal, np.int64)), world.most_listed
    compared = Compared(np.ones_like(single), chosen, equal)
    return survey(held, compared, single, world.usual, regions, most_listed=most)


@given(st.randoms(use_true_random=False))
@SOME
def test_slices_that_differ_are_looked_at_by_the_rules(rng: random.Random) -> None:
    world = made_up(rng)
    sums, rest, some_gap, listed = naive(world)
    for found in on_both(lambda: looked_at(world, rng.choice((7, 10_000)))):
        assert list(found.sums) == sums
        assert list(found.rest) == rest
        assert found.some_gap == some_gap
        assert (found.listed is not None) == any(listed)
        if found.listed is not None:
            assert found.listed.tolist() == listed


@pytest.mark.parametrize("spoil", ["low", "high", "apart", "usual", "rows", "few", "many"])
def test_slices_that_are_none_are_refused(spoil: str) -> None:
    if kernel.compiled is None:
        return
    world = made_up(random.Random(2))
    rows = Held(chunked(world.ids, 50), EVERYTHING).rows
    columns = {
        name: np.zeros(2, np.int64) for name in ("lower", "upper", "low", "high", "apart")
    } | {"single": np.zeros(2, np.bool_), "starts": np.zeros(0, np.int64)}
    columns |= {
        "ends": columns["starts"],
        "numbers": np.array((5, 0, 0, 0, 0)),
        "listed": np.zeros(2, np.bool_),
    }
    kernel.compiled.survey_slices(rows.handle, *columns.values())
    if spoil == "rows":
        columns["listed"] = columns["listed"][1:]
    elif spoil == "usual":
        columns["numbers"] = np.array((-1, 0, 0, 0, 0))
    elif spoil in ("few", "many"):
        columns["numbers"] = np.array((5, 0, 9, -1, 2) if spoil == "few" else (5, 0, 9, 3, 1 << 41))
    else:
        columns[spoil] = np.array((0, {"low": 1, "high": len(rows) + 1, "apart": 1 << 50}[spoil]))
    with pytest.raises(ValueError, match="do not fit"):
        kernel.compiled.survey_slices(rows.handle, *columns.values())
