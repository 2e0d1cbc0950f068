"""Splitting: parts of about equal counts, bounds that can be sent, and progress without end."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.view import SpanParts, Spans
from tests.support.naive_view import NaiveView
from tests.unit.reconcile.answers import check_parts
from tests.unit.reconcile.worlds import BASE, WORLDS

SECOND_NS = 1_000_000_000
WHOLE = Spans.of([(LOWEST, END)])


def view_of(ids: SyncIds, *, chunk: int = 32) -> IndexView:
    index = Index(min_chunk_ids=chunk)
    index.load(ids)
    return index.view()


def split(ids: SyncIds, parts: int) -> SpanParts:
    """Cut all of time into parts."""
    return view_of(ids).split(WHOLE, np.array([parts]))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("fan_out", [2, 7, 64])
def test_splitting_again_and_again_ends_with_single_ids(world: str, fan_out: int) -> None:
    ids = set(WORLDS[world](random.Random(1), 700)) - {END}
    view = view_of(SyncIds.of(ids))
    spans, singles, rounds = WHOLE, 0, 0
    while len(spans):
        parts = view.split(spans, np.full(len(spans), fan_out))
        singles += int(np.count_nonzero(parts.counts == 1))
        spans, rounds = parts.spans(spans.lower)[parts.counts > 1], rounds + 1
        # Parts of a round have at most two thirds, but for the last few IDs, of the one before.
        assert rounds <= 18
    assert singles == len(ids)


def test_ids_of_different_times_are_split_evenly_at_times() -> None:
    rng = random.Random(1)
    ids = SyncIds.of(
        (BASE + rng.randrange(3600 * SECOND_NS), rng.randbytes(32)) for _ in range(999)
    )
    parts = split(ids, 64)
    assert len(parts.counts) == 64
    assert set(parts.counts.tolist()) <= {15, 16}
    assert not parts.upper.words[:-1].any()
    assert set(ids.timestamps.tolist()).issuperset(parts.upper.timestamps[:-1].tolist())


def test_a_crowd_in_one_nanosecond_is_split_with_short_bounds() -> None:
    # 200,000 hashes differ early: nearly every bound is one byte long and a part of its own.
    count = 200_000
    hashes = np.random.default_rng(5).integers(0, 256, (count, 32), dtype=np.uint8)
    parts = split(SyncIds(np.full(count, BASE), hashes), 64)
    filled = parts.counts[parts.counts > 0]
    assert len(parts.counts) <= 64 + 1
    assert len(filled) == 64
    assert int(filled.sum()) == count
    assert int(filled.max()) <= 1.5 * count / 64
    assert not parts.upper.hashes[:-1, 1:].any()


def test_a_cut_moves_to_the_edge_of_a_second_that_is_near() -> None:
    seconds = [BASE + second * SECOND_NS for second in range(16)]
    parts = split(SyncIds.of((at, bytes([n]) * 32) for at in seconds for n in range(10)), 7)
    assert len(parts.counts) == 7
    assert not parts.upper.words[:-1].any()
    assert set(parts.counts.tolist()) <= {20, 30}


def test_zeros_in_a_hash_need_no_steps() -> None:
    ids = SyncIds.of((BASE, number.to_bytes(32, "big")) for number in range(256))
    parts = split(ids, 256)
    assert parts.counts.tolist() == [0, *[1] * 256]
    assert parts.upper[:-1] == ids


bytes_ = st.sampled_from([0, 1, 2, 255])
hashes = st.lists(bytes_, min_size=4, max_size=4).map(lambda head: bytes(head) + bytes(28))
drawn = st.tuples(st.integers(0, 3), hashes)


@settings(deadline=None, max_examples=150)
@given(
    ids=st.sets(drawn, max_size=60),
    edges=st.sets(drawn, max_size=6),
    wanted=st.lists(st.integers(0, 20), min_size=8, max_size=8),
)
def test_any_ids_any_spans(ids: set[SyncId], edges: set[SyncId], wanted: list[int]) -> None:
    spans = Spans.of(list(pairwise(sorted({LOWEST, *edges, END}))))
    numbers = np.array(wanted[: len(spans)])
    parts = view_of(SyncIds.of(ids), chunk=5).split(spans, numbers)
    check_parts(NaiveView(ids), spans, numbers, parts, largest=(2, 2))
