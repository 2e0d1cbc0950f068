"""The index at its real sizes: memory, views beside changes, ties, order of input."""

import random
import threading
from itertools import pairwise
from queue import SimpleQueue

import numpy as np
import pytest
from numpy.typing import NDArray

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import MAX_CHUNKS_ABOUT, MIN_CHUNK_IDS, Index, IndexView
from reconcile.view import Spans
from reconcile.view import ViewRead as Read

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
    """The bytes of all arrays that views keep, each counted once."""
    blocks: dict[int, int] = {}
    for view in views:
        for chunk in view.rows.chunks:
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


@pytest.mark.parametrize("batch", [1, 37, 5_000, 60_000])
def test_memory_while_it_grows(batch: int) -> None:
    ids = ascending(random_ids(2, min(batch * 3_000, 180_000)))
    index = Index()
    for start in range(0, len(ids), batch):
        index.insert(ids[start : start + batch])
        if len(index) >= 1_500:
            assert index.memory_bytes <= MAX_BYTES_PER_ID * len(index)
    assert everything(index.view()) == ids
    index.check()


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
    before = index.view().rows.chunks
    index.insert(random_ids(18, 5, first_ns=HOUR_NS // 2, length_ns=9))
    after = index.view().rows.chunks
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


def test_memory_after_inserts_all_over() -> None:
    index = loaded(random_ids(5, 200_000))
    for seed in range(30):
        index.insert(random_ids(100 + seed, 3))
        assert index.memory_bytes <= MAX_BYTES_PER_ID * len(index)
    index.insert(random_ids(6, 200_000))
    assert index.memory_bytes <= MAX_BYTES_PER_ID * len(index)
    assert len(index) == 400_090
    index.check()


def test_a_large_index_has_a_bounded_number_of_chunks() -> None:
    ids = ascending(random_ids(7, 60_000))
    index = Index(min_chunk_ids=16)
    for start in range(0, len(ids), 500):
        index.insert(ids[start : start + 500])
    index.insert(random_ids(8, 10_000))
    assert len(index.view().rows.chunks) <= 8 * MAX_CHUNKS_ABOUT
    index.check()


# Changes


@pytest.mark.parametrize("shared_time", [False, True])
def test_any_order_of_input_gives_the_same_index(shared_time: bool) -> None:
    ids = random_ids(9, 70_000, length_ns=5 if shared_time else HOUR_NS)
    sorted_pairs = sorted(ids.pairs())
    doubled = SyncIds.join([ids, ids[::7]])
    shuffled = doubled[np.random.default_rng(1).permutation(len(doubled))]
    by_load = loaded(shuffled)
    by_insert = Index()
    half = len(shuffled) // 2
    added = by_insert.insert(shuffled[:half]) + by_insert.insert(shuffled[half:])
    assert added == len(ids)
    for index in (by_load, by_insert):
        index.check()
        assert everything(index.view()).pairs() == sorted_pairs


def test_times_too_far_apart_for_one_sorting_key() -> None:
    pairs = [(2**63 - 1, b"\x01" * 32), (0, b"\x02" * 32), (2**62, b"\x03" * 32), (0, NO_HASH)]
    view = loaded(SyncIds.of(pairs)).view()
    assert view.rows.between(0, 4).pairs() == sorted(pairs)


def test_hashes_that_differ_in_their_last_byte_only_are_ordered_and_told_apart() -> None:
    ids = [(START_NS, b"\xab" * 31 + bytes([last])) for last in (9, 3, 200, 3, 0, 9)]
    index = loaded(SyncIds.of(ids))
    assert everything(index.view()).pairs() == sorted(set(ids))
    assert index.insert(SyncIds.of(ids)) == 0
    assert index.insert(SyncIds.of([(START_NS, b"\xab" * 31 + b"\x04")])) == 1
    index.check()


def test_ids_of_the_newest_time_are_appended_or_inserted_by_hash() -> None:
    index = Index()
    for first in (5, 9, 7, 9, 1):
        index.insert(SyncIds.of([(START_NS, bytes([first]) * 32)]))
    assert [hash_[0] for _, hash_ in everything(index.view()).pairs()] == [1, 5, 7, 9]
    index.check()


def test_a_crowd_in_one_nanosecond_over_many_chunks() -> None:
    ids = random_ids(10, 200_000, length_ns=1)
    index = Index()
    rng = np.random.default_rng(2)
    for part in np.array_split(rng.permutation(len(ids)), 9):
        index.insert(ids[part])
    index.check()
    ordered = sorted(ids.pairs())
    view = index.view()
    chosen = sorted(rng.choice(len(ordered), 500, replace=False).tolist())
    bounds = SyncIds.of(ordered[place] for place in chosen)
    assert view.rows.ranks(bounds).tolist() == chosen
    assert [view.rank(bound) for bound in bounds.pairs()] == chosen
    low, high = bounds[:-1:2], bounds[1::2]
    measured = view.measure(Spans(low, high))
    assert measured.counts.tolist() == [
        b - a for a, b in zip(chosen[:-1:2], chosen[1::2], strict=True)
    ]


def test_pruning_to_anywhere() -> None:
    ids = ascending(random_ids(11, 100_000))
    index = loaded(ids)
    assert index.prune(LOWEST) == 0
    assert index.prune(ids.at(0)) == 0
    assert index.prune(ids.at(1)) == 1
    assert index.prune(ids.at(50_000)) == 49_999
    index.check()
    assert everything(index.view()) == ids[50_000:]
    assert index.prune(END) == 50_000
    assert len(index) == 0
    assert index.prune(END) == 0
    index.check()
    assert index.insert(ids[:10]) == 10
    assert everything(index.view()) == ids[:10]


def test_an_empty_index_answers() -> None:
    index = Index()
    view = index.view()
    assert index.insert(SyncIds.empty()) == 0
    spans = Spans.of([(LOWEST, at_ns(5)), (at_ns(5), END)])
    answer = view.answer(
        Read(
            measure=spans,
            split=(spans, np.array([4, 4])),
            items=spans,
            probe=(spans, np.ones((2, 4), np.uint64)),
        )
    )
    assert answer.measured is not None
    assert answer.measured.counts.tolist() == [0, 0]
    assert not answer.measured.fingerprints.any()
    assert answer.parts is not None
    assert answer.parts.offsets.tolist() == [0, 1, 2]
    assert answer.items is not None
    assert len(answer.items.ids) == 0
    assert answer.probed is not None
    assert not answer.probed.hit.any()
    count, fingerprint = view.fingerprint(LOWEST, END)
    assert (count, fingerprint.tolist()) == (0, [0, 0, 0, 0])
    assert view.rank(END) == 0
    assert view.answer(Read()).measured is None


# Views


def test_a_view_is_opened_once_for_one_state() -> None:
    index = loaded(random_ids(12, 1_000))
    first = index.view()
    assert index.view() is first
    assert index.insert(everything(first)[:5]) == 0
    index.insert(random_ids(13, 1))
    assert index.view() is not first


def test_open_views_copy_nothing_when_ids_are_appended() -> None:
    index = Index()
    index.insert(ascending(random_ids(14, 20_000)))
    first = index.view()
    index.insert(SyncIds.of([(START_NS + 2 * HOUR_NS, b"\x07" * 32)]))
    second = index.view()
    assert len(second) == len(first) + 1
    assert allocated([first, second]) == allocated([second])
    assert np.shares_memory(first.rows.chunks[-1].prefix, second.rows.chunks[-1].prefix)


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


def test_a_hash_that_two_ids_of_a_span_have_is_no_hit() -> None:
    twice, once = b"\x11" * 32, b"\x22" * 32
    pairs = [(5, twice), (6, once), (7, twice), (50, twice)]
    view = IndexView.of(SyncIds.of(pairs))
    spans = Spans.of([((0, NO_HASH), (10, NO_HASH)), ((40, NO_HASH), END)])
    wanted = SyncIds.of([(0, twice), (0, twice)]).words
    probed = view.probe(spans, wanted)
    assert probed.hit.tolist() == [False, True]
    assert probed.found.pairs()[1] == (50, twice)


def test_a_probe_finds_one_id_in_each_of_many_spans() -> None:
    ids = ascending(random_ids(16, 150_000))
    view = loaded(ids).view()
    rng = random.Random(3)
    edges = sorted({0, *(rng.randrange(len(ids)) for _ in range(400)), len(ids) - 1})
    spans = Spans(ids[np.array(edges[:-1])], ids[np.array(edges[1:])])
    targets = np.array([rng.randrange(start, end) for start, end in pairwise(edges)])
    probed = view.probe(spans, ids[targets].words)
    assert probed.hit.all()
    assert probed.found == ids[targets]
    every_other = Spans(spans.lower[::2], spans.upper[::2])
    missing = view.probe(every_other, ids[targets[1::2]][: len(every_other)].words.copy())
    assert not missing.hit[: len(targets[1::2])].any()
