from random import Random

import numpy as np
import pytest

from reconcile.codec import (
    MalformedPayloadError,
    Payload,
    PayloadLimitError,
    RangeKind,
    Ranges,
    decode,
    encode,
)
from reconcile.ids import END, SyncIds
from reconcile.limits import CodecLimits
from tests.support.spec_peer import Range, encoded, varint
from tests.unit.reconcile.naive_codec import Style, made_up, payload_of, ranges_of

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
    items = ((greatest - 1, ONES), (greatest, ZERO), (greatest, b"\xff" * 31 + b"\xfe"))
    records = [
        skip(greatest, b"\xff"),
        *(skip(greatest, b"\xff" * size) for size in range(2, 32)),
        Range(END, 1, fingerprint=FINGERPRINT),
    ]
    payload = payload_of(greatest, (greatest, 0, 7, 7), [skip(greatest), *records])
    assert decode(encode(payload)) == payload
    whole = payload_of(1, (), [Range((greatest - 1, ZERO), 0), *set_up_to_the_end(items)])
    assert decode(encode(whole)) == whole


def set_up_to_the_end(items: tuple[tuple[int, bytes], ...]) -> list[Range]:
    """Return the only way to (2^63-1, ff…): through its prefixes."""
    greatest = items[-1][0]
    first = Range((greatest, ZERO), 2, items=items[:1])
    steps = [skip(greatest, b"\xff" * size) for size in range(1, 32)]
    steps[0] = Range(steps[0].upper, 2, items=items[1:2])
    return [first, *steps, Range(END, 2, items=items[2:], reconciled=True)]


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


def test_the_first_mistake_is_the_one_that_is_named() -> None:
    ordinary = made_up(Random(1), Style(ties=0, kinds=(1, 2, 0)), 500)
    late = ordinary[-1].upper[0]
    unordered = item_set(late + 9, (late + 1, TWOS), (late + 1, ONES))
    records = [*ordinary, unordered, skip(late + 10), *[skip(late + 10 + n) for n in range(1, 900)]]
    data = encoded(1, (), records) + b"\1\7"
    with pytest.raises(MalformedPayloadError, match="not greater than the item before it"):
        decode(data)
    with pytest.raises(PayloadLimitError, match="510 ranges"):
        decode(encoded(1, (), [*records[:500], *map(skip, range(late + 1, late + 99))]), few(510))
    with pytest.raises(MalformedPayloadError, match="not greater than the item before it"):
        decode(data, few(510))


def few(ranges: int) -> CodecLimits:
    return CodecLimits(max_ranges=ranges)


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


def test_a_claim_that_exceeds_the_payload_is_malformed_even_if_it_exceeds_a_limit() -> None:
    with pytest.raises(MalformedPayloadError, match="claims 4503599627370496"):
        decode(HEAD + SET + varint(2**52) + bytes(99))
    with pytest.raises(MalformedPayloadError, match="A list of shards claims 4503599627370496"):
        decode(b"\1" + varint(2**52) + bytes(99))


def changed(ranges: Ranges, **columns: object) -> Ranges:
    kept = {name: getattr(ranges, name) for name in Ranges.__slots__}
    return Ranges(**{**kept, **columns})


@pytest.mark.parametrize("count", [3, 300])
def test_what_cannot_be_encoded_is_refused(count: int) -> None:
    records = made_up(Random(2), Style(ties=0, kinds=(0, 1, 0)), count)
    ranges = ranges_of([*records, item_set(2**62, (2**61, ONES), (2**61 + 1, TWOS))])
    encode(Payload(1, (), ranges))
    upper = ranges.upper
    late = [*upper.pairs()[:-1], (2**62, ONES)]
    back = [*upper.pairs()[:-2], (0, ONES), upper.at(count)]
    same = [*upper.pairs()[:-2], upper.at(count - 3) if count > 3 else (0, ZERO), upper.at(count)]
    for wrong, why in (
        ({"upper": SyncIds.of(late)}, "lead to it"),
        ({"upper": SyncIds.of(back)}, "cannot be expressed|ascending order"),
        ({"upper": SyncIds.of(same)}, "cannot be expressed|ascending order"),
        ({"items": ranges.items[::-1]}, "ascending order"),
        ({"items": ranges.items[:1]}, "columns that fit"),
        ({"fingerprints": ranges.fingerprints[:1]}, "columns that fit"),
        ({"counts": np.ones(count + 1, np.int64)}, "columns that fit"),
        ({"kinds": np.full(count + 1, 3, np.uint8)}, "columns that fit"),
    ):
        with pytest.raises(ValueError, match=why):
            encode(Payload(1, (), changed(ranges, **wrong)))


def test_lower_bounds_and_counts() -> None:
    records = [skip(3), item_set(5, (3, ONES)), item_set(6), item_set(9, (6, ONES), (7, ONES))]
    ranges = ranges_of(records)
    assert ranges.lower.pairs() == [(0, ZERO), (3, ZERO), (5, ZERO), (6, ZERO)]
    assert ranges.counts.tolist() == [0, 1, 0, 2]
    assert len(ranges) == 4
    assert Ranges.empty().lower == SyncIds.empty()
    Ranges.empty().check()
