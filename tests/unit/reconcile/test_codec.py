"""Payloads are written and read as WAKU-SYNC says: by examples, and beside a naive codec.

The engine's two codecs, compiled and in Python, must agree with the naive one and with each other.
"""

from __future__ import annotations

import tracemalloc
from collections import deque
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.codec import (
    MalformedPayloadError,
    Payload,
    PayloadLimitError,
    RangeKind,
    Ranges,
    bridge,
    decode,
    encode,
    expressible,
)
from reconcile.codec.bounds import prefix_length
from reconcile.codec.decoding import parse_ranges
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.limits import DEFAULT_CODEC_LIMITS, CodecLimits
from tests.support.spec_peer import (
    Range,
    Reader,
    RefusedError,
    encoded,
    encoded_bound,
    varint,
    write_ranges,
)


def ranges_of(records: list[Range]) -> Ranges:
    fingerprints = b"".join(record.fingerprint or bytes(32) for record in records)
    return Ranges(
        SyncIds.of(record.upper for record in records),
        np.array([record.kind for record in records], np.uint8),
        np.frombuffer(fingerprints, np.uint64).reshape(-1, 4),
        np.array([len(record.items) for record in records], np.int64),
        np.array([record.reconciled for record in records], np.bool_),
        SyncIds.of(item for record in records for item in record.items),
    )


def payload_of(cluster: int, shards: tuple[int, ...], records: list[Range]) -> Payload:
    return Payload(cluster, shards, ranges_of(records))


@dataclass(frozen=True)
class Style:
    """The kind of records to make up.

    Attributes:
        kinds: weights of the kinds.
        ties: share of bounds within the nanosecond of the bound before.
        step: greatest difference in time between bounds.
        items: most items of a set.
        hash_bytes: the values that bytes of hashes have.
    """

    kinds: tuple[int, int, int] = (1, 1, 1)
    ties: float = 0.2
    step: int = 2**22
    items: int = 8
    hash_bytes: bytes = bytes(range(256))


def made_up(random: Random, style: Style, count: int, begin: int = 0) -> list[Range]:
    """Return random legal records, the first of which may begin late."""
    records: list[Range] = []
    lower = LOWEST
    if begin:
        records.append(Range((begin, bytes(32)), 0))
        lower = records[-1].upper
    while len(records) < count:
        upper = _next_bound(random, style, lower)
        kind = random.choices((0, 1, 2), style.kinds)[0]
        records.append(_record(random, style, lower, upper, kind))
        lower = upper
    return records


def _next_bound(random: Random, style: Style, lower: SyncId) -> SyncId:
    if random.random() < style.ties:
        place = random.choice((0, 1, 1, 2, 31))
        if lower[1][place] < 255:
            byte = random.randint(lower[1][place] + 1, 255)
            return lower[0], (lower[1][:place] + bytes([byte])).ljust(32, b"\0")
    return lower[0] + random.randint(1, style.step), bytes(32)


def _hash(random: Random, style: Style) -> bytes:
    return bytes(random.choices(style.hash_bytes, k=32))


def _record(random: Random, style: Style, lower: SyncId, upper: SyncId, kind: int) -> Range:
    if kind == 1:
        return Range(upper, kind, fingerprint=_hash(random, style))
    if kind == 0:
        return Range(upper, kind)
    wanted = random.randint(0, style.items)
    times = [random.randint(lower[0], upper[0]) for _ in range((wanted + 1) // 2)]
    drawn = {(random.choice(times), _hash(random, style)) for _ in range(wanted)}
    items = tuple(sorted(item for item in drawn if lower <= item < upper))
    return Range(upper, kind, items=items, reconciled=random.random() < 0.5)


ZERO = bytes(32)
FINGERPRINT = bytes(range(32))
HEAD = bytes([1, 2, 2, 3])
NOW = 1_700_000_000_000_000_000
ONES, TWOS = b"\1" * 32, b"\2" * 32


def skip(time: int, hash_: bytes = ZERO) -> Range:
    return Range((time, hash_.ljust(32, b"\0")), RangeKind.SKIP)


def item_set(time: int, *items: tuple[int, bytes], reconciled: bool = False) -> Range:
    return Range((time, ZERO), RangeKind.ITEM_SET, items=items, reconciled=reconciled)


def test_a_payload_by_hand() -> None:
    records = [
        skip(1000),
        Range((1002, ZERO), RangeKind.FINGERPRINT, fingerprint=FINGERPRINT),
        Range((1002, b"\x35" + bytes(31)), 2, items=((1002, ONES), (1002, TWOS))),
        Range((1003, ZERO), 2, reconciled=True),
    ]
    expected = bytes.fromhex(
        "01 02 02 03"  # cluster 1, two shards: 2 and 3
        "e807 00"  # up to 1000: Skip
        f"02 01 {FINGERPRINT.hex()}"  # up to 1002
        "00 01 35 02 02"  # up to (1002, 35…): two items
        f"ea07 {ONES.hex()}"  # at 1002
        f"00 {TWOS.hex()}"  # at the same time
        "00"  # not reconciled
        "01 02 00 01"  # up to 1003: no items, reconciled
    )
    payload = payload_of(1, (2, 3), records)
    assert encode(payload) == expected
    assert decode(expected) == payload


def test_the_empty_payload() -> None:
    none = Payload(0, (), Ranges.empty())
    assert decode(b"") == decode(b"\0") == decode(b"\0\0") == none
    assert decode(b"\1\2\5\6") == Payload(1, (5, 6), Ranges.empty())
    assert encode(none) == encode(Payload(1, (5, 6), Ranges.empty())) == b""


def test_greatest_numbers() -> None:
    greatest = 2**63 - 1
    steps = [skip(greatest, b"\xff" * size) for size in range(1, 32)]
    items = (greatest, b"\xff" * 31 + b"\xfe")
    first = item_set(greatest, (greatest - 1, ONES))
    records = [first, *steps, Range(END, 2, items=(items,), reconciled=True)]
    payload = payload_of(greatest, (greatest, 0, 7, 7), records)
    assert decode(encode(payload)) == payload


LONG = b"\xff" * 8 + b"\x7f"  # 2^63-1
SET = b"\5\2"  # up to 5: item set
BAD = [
    # the head
    (b"\1", 1, "A varint is cut off"),
    (b"\x80", 0, "A varint is cut off"),
    (b"\x80\0\0", 0, "A varint is longer than it must be"),
    (b"\xff" * 9 + b"\1\0", 0, "A varint is past 2^63-1"),
    (b"\1\3\1\2", 2, "A list of shards claims 3, more than can follow"),
    (b"\1\2\1\x80", 3, "A varint is cut off"),
    (b"\1\1\x80\0\1", 2, "A varint is longer than it must be"),
    # bounds
    (HEAD + b"\x80", 4, "A varint is cut off"),
    (HEAD + b"\x85\0\0", 4, "A varint is longer than it must be"),
    (HEAD + b"\xff" * 9 + b"\0", 4, "A varint is past 2^63-1"),
    (HEAD + LONG + b"\0" + b"\1\0", 14, "A bound's timestamp is past 2^63-1"),
    (HEAD + b"\5", 5, "A range ends before its type"),
    (HEAD + b"\0", 5, "The prefix of a bound's hash has 0 bytes"),
    (HEAD + b"\0\0\0", 5, "The prefix of a bound's hash has 0 bytes"),
    (HEAD + b"\0\x21" + ONES + b"\1\0", 5, "The prefix of a bound's hash has 33 bytes"),
    (HEAD + b"\0\4\1\1\1", 5, "The prefix of a bound's hash is cut off"),
    (HEAD + b"\0\1\1", 7, "A range ends before its type"),
    (HEAD + b"\0\1\0\0", 5, "A bound is not greater than the bound before it"),
    (HEAD + b"\5\0\0\1\0\0", 7, "A bound is not greater than the bound before it"),
    (HEAD + b"\0\1\2\0\0\1\2\0", 9, "A bound is not greater than the bound before it"),
    (HEAD + b"\0\1\2\0\0\2\1\xff\0", 9, "A bound is not greater than the bound before it"),
    # types
    (HEAD + b"\5\3", 5, "Type 3 of a range is unknown"),
    (HEAD + b"\5\xff", 5, "Type 255 of a range is unknown"),
    (HEAD + b"\5\1" + ONES[1:], 6, "A fingerprint is cut off"),
    # item sets
    (HEAD + SET, 6, "A varint is cut off"),
    (HEAD + SET + b"\x81\0", 6, "A varint is longer than it must be"),
    (HEAD + SET + b"\0", 7, "An item set ends before its reconciled byte"),
    (HEAD + SET + b"\0\2", 7, "The reconciled byte of an item set is 2"),
    (HEAD + SET + b"\1\1" + ONES, 6, "An item set claims 1 items, more than can follow"),
    (HEAD + SET + b"\1\1" + ONES + b"\2", 40, "The reconciled byte of an item set is 2"),
    (HEAD + SET + b"\1\x81\1" + ONES, 41, "An item set ends with an item above its range"),
    (HEAD + SET + b"\1\x81\0" + ONES, 7, "A varint is longer than it must be"),
    (HEAD + SET + b"\1\5" + ZERO + b"\0", 40, "An item set ends with an item above its range"),
    (HEAD + b"\4\0\1\2\1\3" + ONES + b"\0", 9, "An item lies below its range"),
    (HEAD + b"\4\0\0\1\2\0\1\2\1\4" + ONES + b"\0", 13, "An item lies below its range"),
    (
        HEAD + SET + b"\2\1" + ONES + b"\0" + ONES + b"\0",
        40,
        "An item is not greater than the item before it",
    ),
    (
        HEAD + SET + b"\2\1" + TWOS + b"\0" + ONES + b"\0",
        40,
        "An item is not greater than the item before it",
    ),
    (
        HEAD + SET + b"\2" + LONG + ONES + b"\1" + ONES + b"\0",
        48,
        "An item's timestamp is past 2^63-1",
    ),
    (HEAD + SET + b"\2\x81\x81\1" + ONES + b"\x81\1" + ONES[1:], 44, "An item's hash is cut off"),
]


@pytest.mark.parametrize(("data", "offset", "what"), BAD)
def test_what_is_malformed_is_refused_with_its_place(data: bytes, offset: int, what: str) -> None:
    with pytest.raises(MalformedPayloadError) as refusal:
        decode(data)
    assert (refusal.value.offset, refusal.value.what) == (offset, what)
    assert f"{what} at byte {offset} of the payload" in str(refusal.value)


def test_limits() -> None:
    records = [
        skip(1),
        item_set(5, (1, ONES), (2, ONES)),
        skip(6),
        item_set(9, (7, ONES), (8, ONES), reconciled=True),
    ]
    data = encoded(1, (7, 300), records)
    exact = {"max_payload_bytes": len(data), "max_ranges": 4, "max_elements": 4, "max_shards": 2}
    assert decode(data, CodecLimits(**exact)) == payload_of(1, (7, 300), records)
    for name, value in exact.items():
        limits = CodecLimits(**{**exact, name: value - 1})
        with pytest.raises(PayloadLimitError, match="send less at a time") as refusal:
            decode(data, limits)
        assert (refusal.value.limit, refusal.value.claimed) == (name, value)
        assert refusal.value.allowed == value - 1


def changed(ranges: Ranges, **columns: object) -> Ranges:
    kept = {name: getattr(ranges, name) for name in Ranges.__slots__}
    return Ranges(**{**kept, **columns})


def test_what_cannot_be_encoded_is_refused() -> None:
    records = made_up(Random(2), Style(ties=0, kinds=(0, 1, 0)), 3)
    ranges = ranges_of([*records, item_set(2**62, (2**61, ONES), (2**61 + 1, TWOS))])
    encode(Payload(1, (), ranges))
    upper = ranges.upper
    late = [*upper.pairs()[:-1], (2**62, ONES)]
    back = [*upper.pairs()[:-2], (0, ONES), upper.at(3)]
    same = [*upper.pairs()[:-2], (0, ZERO), upper.at(3)]
    for wrong, why in (
        ({"upper": SyncIds.of(late)}, "lead to it"),
        ({"upper": SyncIds.of(back)}, "cannot be expressed|ascending order"),
        ({"upper": SyncIds.of(same)}, "cannot be expressed|ascending order"),
        ({"items": ranges.items[::-1]}, "ascending order"),
        ({"items": ranges.items[:1]}, "columns that fit"),
        ({"fingerprints": ranges.fingerprints[:1]}, "columns that fit"),
        ({"counts": np.ones(4, np.int64)}, "columns that fit"),
        ({"kinds": np.full(4, 3, np.uint8)}, "columns that fit"),
    ):
        with pytest.raises(ValueError, match=why):
            encode(Payload(1, (), changed(ranges, **wrong)))


# Beside the naive codec

styles = st.builds(
    Style,
    kinds=st.sampled_from([(1, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 8, 1), (1, 1, 8)]),
    ties=st.sampled_from([0.0, 0.1, 0.9]),
    step=st.sampled_from([1, 100, 2**22, 2**50]),
    items=st.sampled_from([0, 2, 30, 150]),
    hash_bytes=st.sampled_from([bytes(range(256)), b"\0\1\2", b"\x80\0\1", b"\xff", b"\0"]),
)
begins = st.sampled_from([0, 1, NOW])
HEADS = [b"", write_ranges([skip(NOW)]), b"\1\2", b"\1\1", b"\0\1\1\2\2"]
FEWER = settings(max_examples=60, deadline=None)
randoms = st.integers(0, 2**64).map(Random)
EDGES = [max(0, (1 << 7 * groups) + by) for groups in range(9) for by in (-2, -1, 0, 1)]
numbers = st.integers(0, 2**63 - 1) | st.sampled_from(EDGES)
heads = st.tuples(numbers, st.lists(numbers, max_size=5).map(tuple))


def outcome(data: bytes, limits: CodecLimits) -> Ranges | tuple[object, ...]:
    try:
        ranges = parse_ranges(data, 0, limits)
    except MalformedPayloadError as refusal:
        return "malformed", refusal.offset, refusal.what
    except PayloadLimitError as refusal:
        return "limit", refusal.limit, refusal.claimed
    ranges.check()
    return ranges


def assert_all_agree(data: bytes, limits: CodecLimits = DEFAULT_CODEC_LIMITS) -> None:
    with kernel.python_only():
        singly = outcome(data, limits)
    assert outcome(data, limits) == singly
    try:
        expected = ranges_of(Reader(data).ranges())
    except RefusedError:
        assert not isinstance(singly, Ranges)
    else:
        assert singly == expected or (isinstance(singly, tuple) and singly[0] == "limit")


@given(randoms, styles, st.sampled_from([1, 10, 200]), begins, heads)
@FEWER
def test_valid_payloads(
    random: Random, style: Style, count: int, begin: int, head: tuple[int, tuple[int, ...]]
) -> None:
    records = made_up(random, style, count, begin)
    assert_all_agree(write_ranges(records))
    payload = payload_of(*head, records)
    payload.ranges.check()
    data = encode(payload)
    assert data == encoded(*head, records)
    assert decode(data) == payload
    with kernel.python_only():
        assert encode(payload) == data
        assert decode(data) == payload


@given(randoms, styles, st.integers(1, 160), st.integers(0, 160), begins)
@FEWER
def test_limits_beside_the_naive_codec(
    random: Random, style: Style, max_ranges: int, max_elements: int, begin: int
) -> None:
    data = write_ranges(made_up(random, style, 120, begin))
    limits = CodecLimits(max_ranges=max_ranges, max_elements=max_elements)
    assert_all_agree(data, limits)
    assert_all_agree(mutated(random, data, 1), limits)


@given(st.binary(max_size=300), st.sampled_from(HEADS))
@example(b"\1\2" + varint(2**62), b"")
@example(b"\1\2" + varint(2**63 - 1) + bytes(40), b"")
@example(b"\x80" * 8 + b"\1\0", b"\xff" * 8 + b"\x7f\0")
@example(b"\1", b"\xff" * 8 + b"\x7f\0")
def test_any_bytes(data: bytes, head: bytes) -> None:
    assert_all_agree(head + data)


def mutated(random: Random, data: bytes, changes: int) -> bytes:
    result = bytearray(data)
    for _ in range(changes):
        at = random.randrange(len(result) + 1)
        match random.randrange(4):
            case 0:
                result[at : at + 1] = bytes([random.randrange(256)])
            case 1:
                result[at : at + 1] = bytes([random.choice((0, 1, 2, 127, 128, 255))])
            case 2:
                result[at:at] = random.randbytes(random.randrange(4))
            case _:
                del result[at : at + random.randrange(4)]
    return bytes(result)


@given(randoms, styles, st.sampled_from([10, 100]), begins, st.integers(1, 5))
@FEWER
@example(Random(1), Style(kinds=(0, 0, 1), step=2**20, items=2_000), 3, 0, 1)
@example(Random(2), Style(kinds=(0, 0, 1), step=2**20, items=2_000), 3, 0, 1)
def test_damaged_payloads(
    random: Random, style: Style, count: int, begin: int, changes: int
) -> None:
    data = write_ranges(made_up(random, style, count, begin))
    assert_all_agree(mutated(random, data, changes))


def memory_of(data: bytes, sentence: str | None = None) -> int:
    """Return the memory that it takes to refuse a payload."""
    tracemalloc.start()
    with pytest.raises(MalformedPayloadError, match=sentence):
        parse_ranges(data, 0, DEFAULT_CODEC_LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_memory_is_a_small_multiple_of_the_payload() -> None:
    half = 1 << 17
    for unit in (b"\1\0", b"\1\1" + b"\2" * 32, b"\1\2\0\0", b"\1\1" + b"\x80" * 32):
        data = unit * (half // len(unit)) + b"\x80" * half
        assert memory_of(data) < 16 * len(data)


def test_a_claim_is_refused_before_memory_is_taken_for_it() -> None:
    data = b"\1\2" + varint(2**40) + bytes(40)
    assert memory_of(data, "claims 1099511627776 items") < 100_000


# Bounds that can follow each other, against the letter of the specification

places = st.integers(0, 31)
sparse_hashes = st.lists(st.tuples(places, st.integers(0, 255)), max_size=3).map(
    lambda changes: bytes(dict(changes).get(place, 0) for place in range(32))
)
hashes = sparse_hashes | st.binary(min_size=32, max_size=32)
bounds = st.tuples(st.integers(0, 2) | st.integers(0, 2**63 - 1), hashes)


def test_the_table_of_the_specification() -> None:
    # WAKU-SYNC, "Delta encoding for sequential SyncIds": its example.
    # Of the third row, which has the second's time, the hash is sent up to the byte that differs.
    records = [Range((time, bytes(32)), 0) for time in (1000, 1002, 1003)]
    assert encode(payload_of(0, (), records))[2:] == b"\xe8\x07\0\x02\0\x01\0"
    second, third = bytes.fromhex("351c5e86").ljust(32, b"\x22"), bytes.fromhex("3560")
    assert prefix_length(second, third.ljust(32, b"\0")) == 2


def can_follow(previous: SyncId, bound: SyncId) -> bool:
    """Return True if a decoder reads a bound as it was meant."""
    if bound <= previous:
        return False
    try:
        return Reader(encoded_bound(previous, bound)).bound(previous) == bound
    except RefusedError:
        return False


@given(st.lists(st.tuples(bounds, bounds)))
def test_expressible_is_what_a_decoder_sees(pairs: list[tuple[SyncId, SyncId]]) -> None:
    previous, following = SyncIds.of(a for a, _ in pairs), SyncIds.of(b for _, b in pairs)
    expected = [can_follow(a, b) for a, b in pairs]
    assert expressible(previous, following).tolist() == expected


def steps_between(previous: SyncId, target: SyncId) -> list[SyncId]:
    """Return the bounds that lead from one to a greater one."""
    return bridge(SyncIds.of([previous]), SyncIds.of([target]))[1].pairs()


@given(st.lists(st.tuples(bounds, bounds)))
def test_a_bridge_leads_to_each_bound_in_expressible_steps(
    pairs: list[tuple[SyncId, SyncId]],
) -> None:
    pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    rows, found = bridge(SyncIds.of(a for a, _ in pairs), SyncIds.of(b for _, b in pairs))
    for row, (previous, target) in enumerate(pairs):
        chain = found[rows == row].pairs()
        assert chain[-1] == target
        assert chain == steps_between(previous, target)
        assert len(chain) <= 33
        assert all(can_follow(a, b) for a, b in zip([previous, *chain], chain, strict=False))


def test_a_bridge_takes_the_fewest_steps() -> None:
    all_hashes = [bytes(29) + bytes(tail) for tail in product((0, 1, 255), repeat=3)]
    every = [(time, hash_) for time in (4, 5) for hash_ in all_hashes]
    steps = {a: [b for b in every if can_follow(a, b)] for a in every}
    for begin in every:
        distances, queue = {begin: 0}, deque([begin])
        while queue:
            here = queue.popleft()
            for there in steps[here]:
                if there not in distances:
                    distances[there] = distances[here] + 1
                    queue.append(there)
        assert {
            target: len(steps_between(begin, target)) for target in every if target > begin
        } == {target: distance for target, distance in distances.items() if distance}


def test_the_longest_way() -> None:
    assert len(steps_between(LOWEST, END)) == 33
    assert steps_between((7, b"\1" * 32), (7, b"\1" * 31 + b"\2")) == [(7, b"\1" * 31 + b"\2")]
