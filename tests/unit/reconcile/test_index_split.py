"""Splitting: parts of about equal counts, bounds that can be sent, and progress without end."""

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.view import Spans
from tests.support.naive_view import NaiveView
from tests.unit.reconcile.answers import check_parts

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


def random_hash(rng: random.Random) -> bytes:
    return rng.randbytes(32)


def narrow_hash(rng: random.Random) -> bytes:
    """Return a hash of few values: beginnings are shared a long way."""
    return bytes(rng.choice((0, 0, 1, 255)) for _ in range(32))


def late_hash(rng: random.Random) -> bytes:
    """Return a hash of 28 equal bytes, none of them zero, and then something."""
    return b"\xaa" * 28 + rng.randbytes(4)


def distinct(rng: random.Random) -> SyncId:
    return START_NS + rng.randrange(3600 * SECOND_NS), random_hash(rng)


def in_seconds(rng: random.Random) -> SyncId:
    return START_NS + rng.randrange(12) * SECOND_NS, random_hash(rng)


def in_one_nanosecond(rng: random.Random) -> SyncId:
    return START_NS, random_hash(rng)


def narrow(rng: random.Random) -> SyncId:
    return START_NS + rng.randrange(3), narrow_hash(rng)


def late(rng: random.Random) -> SyncId:
    return START_NS, late_hash(rng)


def a_few_crowded(rng: random.Random) -> SyncId:
    """Return an ID; most times have one, some have many."""
    crowded = rng.random() < 0.7
    return START_NS + (rng.randrange(3) * 40 if crowded else rng.randrange(120)), random_hash(rng)


WORLDS = [distinct, in_seconds, in_one_nanosecond, narrow, late, a_few_crowded]
Draw = Callable[[random.Random], SyncId]

worlds = pytest.mark.parametrize("draw", WORLDS, ids=lambda draw: draw.__name__)


def some_ids(draw: Draw, count: int, seed: int = 1) -> list[SyncId]:
    rng = random.Random(seed)
    return sorted({draw(rng) for _ in range(count)})


def view_of(ids: list[SyncId], *, chunk: int = 32) -> IndexView:
    index = Index(min_chunk_ids=chunk)
    index.load(SyncIds.of(ids))
    return index.view()


def whole() -> Spans:
    return Spans.of([(LOWEST, END)])


def check_split(ids: list[SyncId], spans: Spans, wanted: list[int], *, chunk: int = 32) -> None:
    """Check all that a split of an index promises."""
    numbers = np.array(wanted)
    parts = view_of(ids, chunk=chunk).split(spans, numbers)
    check_parts(NaiveView(ids), spans, numbers, parts, largest=(2, 2))


@worlds
@pytest.mark.parametrize("fan_out", [2, 7, 64])
def test_splitting_again_and_again_ends_with_single_ids(draw: Draw, fan_out: int) -> None:
    ids = some_ids(draw, 700)
    view = view_of(ids)
    spans, singles, rounds = whole(), 0, 0
    while len(spans):
        parts = view.split(spans, np.full(len(spans), fan_out))
        singles += int(np.count_nonzero(parts.counts == 1))
        spans, rounds = parts.spans(spans.lower)[parts.counts > 1], rounds + 1
        # Parts of a round have at most two thirds, but for the last few IDs, of the one before.
        assert rounds <= 16
    assert singles == len(ids)


def test_ids_of_different_times_are_split_evenly_at_times() -> None:
    ids = some_ids(distinct, 1_000)
    parts = view_of(ids).split(whole(), np.array([64]))
    assert len(parts.counts) == 64
    assert set(parts.counts.tolist()) <= {15, 16}
    assert not parts.upper.words[:-1].any()
    starts = {timestamp for timestamp, _ in ids}
    assert starts.issuperset(parts.upper.timestamps[:-1].tolist())


def test_a_crowd_in_one_nanosecond_is_split_with_short_bounds() -> None:
    # 200,000 hashes differ early: nearly every bound is one byte long and a part of its own.
    rng = np.random.default_rng(5)
    count = 200_000
    hashes = rng.integers(0, 256, (count, 32), dtype=np.uint8)
    ids = SyncIds(np.full(count, START_NS), hashes)
    index = Index()
    index.load(ids)
    parts = index.view().split(whole(), np.array([64]))
    filled = parts.counts[parts.counts > 0]
    assert len(parts.counts) <= 64 + 1
    assert len(filled) == 64
    assert int(filled.sum()) == count
    assert int(filled.max()) <= 1.5 * count / 64
    assert not parts.upper.hashes[:-1, 1:].any()


def test_a_cut_moves_to_the_edge_of_a_second_that_is_near() -> None:
    seconds = [START_NS + second * SECOND_NS for second in range(16)]
    ids = [(second, bytes([at]) * 32) for second in seconds for at in range(10)]
    parts = view_of(ids).split(whole(), np.array([7]))
    assert len(parts.counts) == 7
    assert not parts.upper.words[:-1].any()
    assert set(parts.counts.tolist()) <= {20, 30}


def test_zeros_in_a_hash_need_no_steps() -> None:
    ids = [(START_NS, number.to_bytes(32, "big")) for number in range(256)]
    parts = view_of(ids).split(whole(), np.array([256]))
    assert parts.counts.tolist() == [0, *[1] * 256]
    assert parts.upper[:-1] == SyncIds.of(ids)


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
    bounds = sorted({LOWEST, *edges, END})
    spans = Spans.of(list(pairwise(bounds)))
    check_split(sorted(ids), spans, wanted[: len(spans)], chunk=5)
