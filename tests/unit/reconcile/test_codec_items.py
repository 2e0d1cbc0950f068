"""Item sets that are read from many places at once."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.codec.itemwalk import find_item_sets, walk_singly
from reconcile.codec.largeset import read_items
from reconcile.codec.parse import parse_in_bulk, parse_singly
from reconcile.codec.ranges import Ranges
from reconcile.codec.varints import Source
from reconcile.limits import DEFAULT_CODEC_LIMITS
from tests.unit.reconcile.naive_codec import leb128


def items_of(random: Random, count: int, greatest: int, alphabet: bytes | None) -> bytes:
    """Encoded items; the alphabet has the bytes of their hashes."""
    parts = []
    for _ in range(count):
        whole = random.randbytes(32)
        hash_ = whole if alphabet is None else bytes(random.choices(alphabet, k=32))
        parts.append(leb128(random.randint(1, greatest)) + hash_)
    return b"".join(parts)


def places_of(data: bytes, count: int) -> list[int]:
    return walk_singly(data, 0, count)[0]


@pytest.mark.parametrize("greatest", [1, 127, 128, 2**22, 2**40])
@pytest.mark.parametrize("alphabet", [None, b"\0", b"\1", b"\x7f\x80", b"\x80\0\1\2"])
@pytest.mark.parametrize("count", [2, 63, 65, 2_000, 12_000])
def test_a_large_set(greatest: int, alphabet: bytes | None, count: int) -> None:
    data = items_of(Random(count), count, greatest, alphabet) + b"\0" * 64
    first = data[0]
    found = read_items(Source.of(data), first, places_of(data, 1)[0] + hash_offset(data, 0), count)
    assert found is not None
    places = places_of(data, count)
    assert found[1].tolist() == [at + hash_offset(data, at) for at in places]
    assert np.diff(found[0]).tolist() == [number_at(data, at) for at in places[1:]]
    assert found[0][0] == first


def hash_offset(data: bytes, at: int) -> int:
    return next(size for size in range(1, 10) if data[at + size - 1] < 0x80)


def number_at(data: bytes, at: int) -> int:
    return sum((data[at + n] & 0x7F) << 7 * n for n in range(hash_offset(data, at)))


def test_hashes_that_look_like_items_do_not_lead_astray() -> None:
    """Each reader that begins in a hash stays in hashes: lanes and true items never meet."""
    count = 12_000
    data = b"".join(b"\x81\1" + bytes([0] * 16 + [0x80] + [1] * 15) for _ in range(count)) + b"\0"
    found = read_items(Source.of(data), 129, 2, count)
    assert found is not None
    assert found[1].tolist() == list(range(2, 34 * count, 34))


@pytest.mark.parametrize("cut", [1, 32, 33, 34, 40, 4_000, 100_000])
def test_a_set_that_is_cut_off(cut: int) -> None:
    data = items_of(Random(cut), 12_000, 2**20, None)
    assert read_items(Source.of(data[:-cut]), 1, hash_offset(data, 0), 12_000) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [(b"\x81\0", "not minimal"), (b"\xff" * 8 + b"\1", "nine bytes"), (b"\xff" * 9, "no end")],
)
def test_a_set_with_a_number_that_arrays_do_not_read(bad: bytes, why: str) -> None:
    before, after = items_of(Random(1), 5_000, 2**20, None), items_of(Random(2), 5_000, 9, None)
    data = before + bad + bytes(32) + after + bytes(400)
    found = read_items(Source.of(data), 1, hash_offset(data, 0), 10_001)
    assert found is None, why


@given(st.integers(0, 2**32).map(Random), st.lists(st.integers(0, 200), max_size=150))
def test_many_sets_side_by_side(random: Random, counts: list[int]) -> None:
    parts = [b"\7" * 20]
    counts_at, ends = [], []
    for count in counts:
        counts_at.append(sum(map(len, parts)))
        parts.append(leb128(count) + items_of(random, count, 2 ** random.randint(0, 40), None))
        parts.append(random.choice((b"\0", b"\1")))
        ends.append(sum(map(len, parts)))
    data = b"".join(parts) + bytes(64)
    sets = find_item_sets(Source.of(data), np.array(counts_at, np.int64), 0, sum(counts))
    room = [
        at + 2 + 40 * count + 12 < len(data) for at, count in zip(counts_at, counts, strict=True)
    ]
    for index, (count, end) in enumerate(zip(counts, ends, strict=True)):
        if room[index]:
            assert (int(sets.counts[index]), int(sets.ends[index])) == (count, end)
    places = [
        place
        for index, (at, count) in enumerate(zip(counts_at, sets.counts.tolist(), strict=True))
        for place in walk_singly(data, at + len(leb128(counts[index])), count)[0]
    ]
    assert sets.items_at.tolist() == places


def test_larger_sets_are_given_up_when_there_are_too_many_items() -> None:
    parts = [
        leb128(count) + items_of(Random(count), count, 100, None) + b"\0" for count in (3, 9, 4)
    ]
    data = b"".join(parts) + bytes(600)
    counts_at = np.cumsum([0, len(parts[0]), len(parts[1])])
    sets = find_item_sets(Source.of(data), counts_at, 0, 8)
    assert sets.counts.tolist() == [3, 0, 4]
    assert sets.ends.tolist()[1] == len(data)
    chosen = sets[np.array([2])]
    assert chosen.counts.tolist() == [4]
    assert len(chosen.items_at) == 4


@given(st.integers(0, 2**32).map(Random), st.sampled_from([700, 5_000]))
def test_a_damaged_large_set_in_a_payload(random: Random, count: int) -> None:
    times, hashes = sorted(random.choices(range(2**20), k=count)), random.randbytes(32 * count)
    pairs = sorted({(time, hashes[32 * n : 32 * n + 32]) for n, time in enumerate(times)})
    parts, before = [], 0
    for time, hash_ in pairs:
        parts += [leb128(time - before), hash_]
        before = time
    data = leb128(2**20) + b"\2" + leb128(len(pairs)) + b"".join(parts) + b"\1" + b"\1\0" * 9
    assert len(parse_in_bulk(data, 0, DEFAULT_CODEC_LIMITS).items) == len(pairs)
    damaged = bytearray(data)
    damaged[random.randrange(len(data))] ^= 1 << random.randrange(8)
    results: list[Ranges | str] = []
    for parse in (parse_in_bulk, parse_singly):
        try:
            results.append(parse(bytes(damaged), 0, DEFAULT_CODEC_LIMITS))
        except ValueError as refusal:
            results.append(str(refusal))
    assert results[0] == results[1]
