"""Columns as binary arrays, and packed summaries, against plain oracles."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.array import ArrayBinaryLoader

from reconcile.summaries.buckets import TimeBuckets
from store.db.arrays import (
    BinaryArray,
    bigints,
    fixed_bytes,
    hash_column,
    texts,
    uuids,
    varied_bytes,
)
from store.db.buckets import LEVELS_NS, RECORD_BYTES, between, pack, unpack
from store.domain.partitioning import DAY_NS, HOUR_NS, MINUTE_NS

INT64: Final = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.lists(INT64, max_size=50)
HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=50)
KEYS = st.lists(st.binary(min_size=16, max_size=16), max_size=50)
TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=50)
BYTES = st.lists(st.binary(max_size=300), max_size=50)


def taken(array: BinaryArray) -> list[Any]:
    """Return what psycopg reads from an array, whose elements have their type."""
    elements = ArrayBinaryLoader(0).load(array)
    return [each.bytes if isinstance(each, UUID) else each for each in elements]


def laid_out_hashes(values: list[bytes]) -> BinaryArray:
    return hash_column(np.frombuffer(b"".join(values), np.uint8).reshape(-1, 32))


COLUMNS = st.one_of(
    st.tuples(st.just(bigints), NUMBERS),
    st.tuples(st.just(texts), TEXTS),
    st.tuples(st.just(lambda values: fixed_bytes(values, 32)), HASHES),
    st.tuples(st.just(laid_out_hashes), HASHES),
    st.tuples(st.just(varied_bytes), BYTES),
    st.tuples(st.just(uuids), KEYS),
)


@settings(max_examples=120)
@given(column=COLUMNS)
def test_a_column_is_read_as_it_was(
    column: tuple[Callable[[Sequence[Any]], BinaryArray], list[Any]],
) -> None:
    lay_out, values = column
    assert taken(lay_out(values)) == values


LAST = 2**63 - 1
Summary = dict[int, tuple[int, int]]
"""Start -> count and XOR of the hashes as little-endian numbers."""

moments = st.one_of(
    st.integers(1, LAST),
    st.integers(1_763_600_000, 1_763_600_400).map(lambda seconds: seconds * 10**9),
    st.sampled_from([1, MINUTE_NS - 1, MINUTE_NS, HOUR_NS - 1, HOUR_NS, DAY_NS - 1, DAY_NS, LAST]),
)
messages = st.lists(st.tuples(moments, st.binary(max_size=4)), max_size=60).map(
    lambda drawn: [(ts, sha256(seed).digest()) for ts, seed in drawn]
)


def summed(stored: Iterable[tuple[int, bytes]], length_ns: int) -> Summary:
    found: Summary = {}
    for ts, digest in stored:
        start = ts - ts % length_ns
        count, xor = found.get(start, (0, 0))
        found[start] = count + 1, xor ^ int.from_bytes(digest, "little")
    return found


def said(buckets: TimeBuckets) -> Summary:
    assert (np.diff(buckets.starts) > 0).all()
    return {
        int(start): (int(count), int.from_bytes(xor.astype("<u8").tobytes(), "little"))
        for start, count, xor in zip(buckets.starts, buckets.counts, buckets.xors, strict=True)
    }


def packed(stored: list[tuple[int, bytes]]) -> bytes:
    return pack([ts for ts, _ in stored], [digest for _, digest in stored])


@given(messages)
def test_a_delta_says_what_is_in_each_minute(stored: list[tuple[int, bytes]]) -> None:
    delta = packed(stored)
    wanted = summed(stored, MINUTE_NS)
    assert said(unpack([delta])) == wanted
    assert delta == b"".join(
        struct.pack("<qq", start, count) + xor.to_bytes(32, "little")
        for start, (count, xor) in sorted(wanted.items())
    )


@given(st.lists(messages, max_size=5))
def test_deltas_add_up_at_every_level(batches: list[list[tuple[int, bytes]]]) -> None:
    everything = [each for stored in batches for each in stored]
    minutes = unpack(packed(stored) for stored in batches)
    for length_ns in LEVELS_NS:
        assert said(TimeBuckets.join(length_ns, [minutes])) == summed(everything, length_ns)


@given(messages, moments, moments)
def test_ranges_are_cut_out(stored: list[tuple[int, bytes]], low: int, high: int) -> None:
    low, high = sorted((low - low % MINUTE_NS, high - high % MINUTE_NS))
    minutes = unpack([packed(stored)])
    inside = [each for each in stored if low <= each[0] < high]
    assert said(between(minutes, low, high)) == summed(inside, MINUTE_NS)


@pytest.mark.parametrize("cut", [1, RECORD_BYTES // 2, RECORD_BYTES - 1])
def test_a_delta_that_is_cut_is_refused(cut: int) -> None:
    delta = packed([(1, bytes(32))])
    with pytest.raises(ValueError, match=f"multiple of {RECORD_BYTES} bytes"):
        # The parts are a whole number of records together, and still none of them can be right.
        unpack([delta[:cut], delta[cut:]])
