"""The index at its real sizes: memory, views beside changes, ties, order of input."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from numpy.typing import NDArray

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import MAX_CHUNKS_ABOUT, MIN_CHUNK_IDS, Index, IndexView, MemoryView
from reconcile.view import SpanParts, Spans
from tests.support.naive_view import NaiveView, run
from tests.unit.reconcile.answers import Asked, check_answers, check_parts
from tests.unit.reconcile.worlds import BASE, WORLDS

START_NS = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9
MAX_BYTES_PER_ID = 68
NO_HASH = bytes(32)


def random_ids(seed: int, count: int, *, first_ns: int = 0, length_ns: int = HOUR_NS) -> SyncIds:
    rng = np.random.default_rng(seed)
    return SyncIds(
        START_NS + first_ns + rng.integers(0, length_ns, count),
        rng.integers(0, 256, (count, 32), dtype=np.uint8),
    )


def ascending(ids: SyncIds) -> SyncIds:
    return ids[np.argsort(ids.timestamps, kind="stable")]


def loaded(ids: SyncIds) -> Index:
    index = Index()
    index.load(ids)
    return index


def at_ns(offset_ns: int) -> SyncId:
    return START_NS + offset_ns, NO_HASH


def everything(view: IndexView) -> SyncIds:
    return view.items(Spans.of([(LOWEST, END)])).ids


def total(ids: SyncIds) -> NDArray[np.uint64]:
    fingerprint: NDArray[np.uint64] = np.bitwise_xor.reduce(ids.words, axis=0)
    return fingerprint


def allocated(views: list[IndexView]) -> int:
    """Return the bytes of all arrays that views keep, each counted once."""
    blocks: dict[int, int] = {}
    for view in views:
        for chunk in view.chunks:
            for array in (chunk.timestamps, chunk.prefix):
                block = array
                while block.base is not None:
                    assert isinstance(block.base, np.ndarray)
                    block = block.base
                blocks[id(block)] = block.nbytes
    return sum(blocks.values())


# Memory


@pytest.mark.parametrize("count", [1_500, 20_000, MIN_CHUNK_IDS, MIN_CHUNK_IDS + 1, 400_000])
def test_memory_after_a_bulk_load(count: int) -> None:
    index = loaded(random_ids(1, count))
    assert len(index) == count
    assert 56 * count <= index.memory_bytes <= MAX_BYTES_PER_ID * count
    assert allocated([index.view()]) <= index.memory_bytes


def test_memory_with_an_open_view_while_newest_ids_arrive_out_of_order() -> None:
    index = loaded(random_ids(3, 300_000))
    opened = index.view()
    before = everything(opened)
    for second in range(40):
        index.insert(random_ids(second, 200, first_ns=HOUR_NS - 10**9, length_ns=2 * 10**9))
    assert len(index) == 308_000
    pinned = allocated([opened, index.view()])
    assert pinned <= MAX_BYTES_PER_ID * len(index)
    assert index.memory_bytes <= MAX_BYTES_PER_ID * len(index)
    assert everything(opened) == before


def test_a_late_insert_leaves_most_ids_where_they_are() -> None:
    index = loaded(random_ids(17, 600_000))
    before = index.view().chunks
    index.insert(random_ids(18, 5, first_ns=HOUR_NS // 2, length_ns=9))
    after = index.view().chunks
    stayed = sum(len(chunk) for chunk in after if np.shares_memory(chunk.prefix, before[0].prefix))
    assert stayed >= len(before[0]) - 2 * MIN_CHUNK_IDS
    assert np.shares_memory(after[-1].prefix, before[-1].prefix)
    index.check()


def test_memory_is_given_back_as_the_window_moves() -> None:
    index = loaded(random_ids(4, 200_000))
    minute_ns = 60 * 10**9
    for minute in range(60):
        index.insert(random_ids(minute, 3_000, first_ns=HOUR_NS + minute * minute_ns))
        index.prune(at_ns((minute + 1) * minute_ns))
        assert index.memory_bytes <= MAX_BYTES_PER_ID * len(index)
    index.check()


def test_a_large_index_has_a_bounded_number_of_chunks() -> None:
    ids = ascending(random_ids(7, 60_000))
    index = Index(min_chunk_ids=16)
    for start in range(0, len(ids), 500):
        index.insert(ids[start : start + 500])
    index.insert(random_ids(8, 10_000))
    assert len(index.view().chunks) <= 8 * MAX_CHUNKS_ABOUT
    index.check()


# Views


def test_open_views_copy_nothing_when_ids_are_appended() -> None:
    index = Index()
    index.insert(ascending(random_ids(14, 20_000)))
    first = index.view()
    index.insert(SyncIds.of([(START_NS + 2 * HOUR_NS, b"\x07" * 32)]))
    second = index.view()
    assert len(second) == len(first) + 1
    assert allocated([first, second]) == allocated([second])
    assert np.shares_memory(first.chunks[-1].prefix, second.chunks[-1].prefix)


def test_views_are_right_in_another_thread_while_the_index_changes() -> None:
    index = loaded(random_ids(15, 60_000))
    views: SimpleQueue[IndexView | None] = SimpleQueue()
    wrong: list[IndexView] = []

    def read_them_all() -> None:
        while (view := views.get()) is not None:
            if not np.array_equal(view.fingerprint(LOWEST, END)[1], total(everything(view))):
                wrong.append(view)

    reader = threading.Thread(target=read_them_all)
    reader.start()
    for step in range(60):
        views.put(index.view())
        index.insert(random_ids(20 + step, 300, first_ns=step * 10**9))
        index.insert(random_ids(90 + step, 300, first_ns=(3 + step) * HOUR_NS, length_ns=9))
        index.prune(at_ns(step * 10**10))
    views.put(None)
    reader.join()
    assert not wrong
    index.check()


# Random life of an index against a set, with views that stay open beside it

# Few values, so that IDs meet again, share a time and share the beginning of a hash.
bytes_ = st.sampled_from([0, 1, 255])
hashes = st.tuples(bytes_, bytes_, bytes_).map(
    lambda chosen: bytes([chosen[0], chosen[1], *bytes(29), chosen[2]])
)
times = st.one_of(st.integers(0, 6), st.integers(0, 60), st.sampled_from([2**62, 2**63 - 1]))
ids = st.tuples(times, hashes)
batches = st.lists(ids, max_size=40)
appended = st.lists(st.tuples(st.integers(0, 2), hashes), min_size=1, max_size=20)


def spans_between(bounds: list[SyncId]) -> Spans:
    """Return two of every three stretches between bounds: some touch, and some do not."""
    pairs = pairwise(sorted(set(bounds)))
    return Spans.of([pair for at, pair in enumerate(pairs) if at % 3 < 2])


def assert_same_answers(view: IndexView, naive: NaiveView, spans: Spans) -> None:
    wanted = np.zeros((len(spans), 4), np.uint64)
    for at, span in enumerate(spans.pairs()):
        inside = naive.within(*span)
        if inside:
            wanted[at] = np.frombuffer(inside[at % len(inside)][1], np.uint64)
    asked = Asked(spans, np.ones(len(spans), np.int64), wanted)
    ours = MemoryView(view)
    check_answers(naive, asked, [run(work) for work in asked.of(ours)])
    measured = naive.measured(spans.pairs())
    for at, (lower, upper) in enumerate(spans.pairs()):
        count, fingerprint = view.fingerprint(lower, upper)
        assert count == measured.counts[at]
        assert np.array_equal(fingerprint, measured.fingerprints[at])


class IndexLife(RuleBasedStateMachine):
    views: Bundle[tuple[IndexView, NaiveView]] = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.index = Index(min_chunk_ids=4)
        self.stored: set[SyncId] = set()

    @rule(batch=batches)
    def load(self, batch: list[SyncId]) -> None:
        self.index.load(SyncIds.of(batch))
        self.stored = set(batch)

    @rule(batch=batches)
    def insert(self, batch: list[SyncId]) -> None:
        self._insert(batch)

    def _insert(self, batch: list[SyncId]) -> None:
        new = set(batch) - self.stored
        assert self.index.insert(SyncIds.of(batch)) == len(new)
        self.stored |= new

    @rule(steps=appended)
    def append(self, steps: list[tuple[int, bytes]]) -> None:
        last = max((timestamp for timestamp, _ in self.stored if timestamp < 2**61), default=0)
        batch = []
        for step, hash_ in steps:
            last += step
            batch.append((last, hash_))
        self._insert(batch)

    @rule(before=ids)
    def prune(self, before: SyncId) -> None:
        kept = {stored for stored in self.stored if stored >= before}
        assert self.index.prune(before) == len(self.stored) - len(kept)
        self.stored = kept

    @rule(target=views)
    def open_view(
        self,
    ) -> tuple[IndexView, NaiveView] | MultipleResults[tuple[IndexView, NaiveView]]:
        if len(self.stored) > 300:
            return multiple()
        return self.index.view(), NaiveView(self.stored)

    @rule(opened=views, bounds=st.lists(ids, min_size=2, max_size=12))
    def read(self, opened: tuple[IndexView, NaiveView], bounds: list[SyncId]) -> None:
        view, naive = opened
        assert len(view) == len(naive.ids)
        assert_same_answers(view, naive, spans_between([LOWEST, *bounds, END]))

    @rule(opened=views, bounds=st.lists(ids, min_size=1, max_size=12))
    def rank(self, opened: tuple[IndexView, NaiveView], bounds: list[SyncId]) -> None:
        view, naive = opened
        for bound in bounds:
            assert view.rank(bound) == len(naive.within(LOWEST, bound))

    @rule(opened=consumes(views))
    def close_view(self, opened: tuple[IndexView, NaiveView]) -> None:
        view, naive = opened
        assert view.items(Spans.of([(LOWEST, END)])).ids.pairs() == [
            stored for stored in naive.ids if stored < END
        ]

    @invariant()
    def holds(self) -> None:
        self.index.check()
        assert len(self.index) == len(self.stored)
        everything = self.index.view()
        assert set(everything.between(0, len(everything)).pairs()) == self.stored


IndexLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndexLife = IndexLife.TestCase


# Splitting: parts of about equal counts, bounds that can be sent, and progress without end

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


heads = st.lists(st.sampled_from([0, 1, 2, 255]), min_size=4, max_size=4)
drawn = st.tuples(st.integers(0, 3), heads.map(lambda head: bytes(head) + bytes(28)))


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
