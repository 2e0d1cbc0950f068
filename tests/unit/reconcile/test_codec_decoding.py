"""Payloads are read alike with compiled code, without it, and by a naive reader."""

import tracemalloc
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.codec import MalformedPayloadError, PayloadLimitError, decode, encode
from reconcile.codec.decoding import parse_ranges
from reconcile.codec.ranges import Ranges
from reconcile.limits import DEFAULT_CODEC_LIMITS, CodecLimits
from tests.support.spec_peer import Range, Reader, RefusedError, encoded, varint, write_ranges
from tests.unit.reconcile.naive_codec import Style, made_up, payload_of, ranges_of

NOW = 1_700_000_000_000_000_000
LATE = NOW, bytes(32)
styles = st.builds(
    Style,
    kinds=st.sampled_from([(1, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 8, 1), (1, 1, 8)]),
    ties=st.sampled_from([0.0, 0.1, 0.9]),
    step=st.sampled_from([1, 100, 2**22, 2**50]),
    items=st.sampled_from([0, 2, 30, 150]),
    hash_bytes=st.sampled_from([bytes(range(256)), b"\0\1\2", b"\x80\0\1", b"\xff", b"\0"]),
)
begins = st.sampled_from([0, 1, NOW])
HEADS = [b"", write_ranges([Range(LATE, 0)]), b"\1\2", b"\1\1", b"\0\1\1\2\2"]
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
def test_limits(
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
def test_damaged_payloads(
    random: Random, style: Style, count: int, begin: int, changes: int
) -> None:
    data = write_ranges(made_up(random, style, count, begin))
    assert_all_agree(mutated(random, data, changes))


@given(randoms, st.sampled_from([700, 2_000]))
@FEWER
def test_a_damaged_large_set(random: Random, count: int) -> None:
    times, hashes = sorted(random.choices(range(2**20), k=count)), random.randbytes(32 * count)
    pairs = sorted({(time, hashes[32 * n : 32 * n + 32]) for n, time in enumerate(times)})
    records = [Range((2**20, bytes(32)), 2, items=tuple(pairs), reconciled=True)]
    records += [Range((2**20 + n, bytes(32)), 0) for n in range(1, 9)]
    assert_all_agree(write_ranges(records))
    assert_all_agree(mutated(random, write_ranges(records), 1))


def test_memory_is_a_small_multiple_of_the_payload() -> None:
    half = 1 << 17
    for unit in (b"\1\0", b"\1\1" + b"\2" * 32, b"\1\2\0\0", b"\1\1" + b"\x80" * 32):
        data = unit * (half // len(unit)) + b"\x80" * half
        tracemalloc.start()
        with pytest.raises(MalformedPayloadError):
            parse_ranges(data, 0, DEFAULT_CODEC_LIMITS)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 16 * len(data)


def test_a_claim_is_refused_before_memory_is_taken_for_it() -> None:
    data = b"\1\2" + varint(2**40) + bytes(40)
    tracemalloc.start()
    with pytest.raises(MalformedPayloadError, match="claims 1099511627776 items"):
        parse_ranges(data, 0, DEFAULT_CODEC_LIMITS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000
