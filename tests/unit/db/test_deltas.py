"""Packed summaries against an oracle that adds up one message at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.summaries.buckets import TimeBuckets
from store.db.buckets import (
    DAY_NS,
    HOUR_NS,
    LEVELS_NS,
    MINUTE_NS,
    RECORD_BYTES,
    between,
    coarser,
    pack,
    unpack,
)

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
        assert said(coarser(minutes, length_ns)) == summed(everything, length_ns)


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
