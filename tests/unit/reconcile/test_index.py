"""The index at its real sizes: memory, views beside changes, ties, order of input."""

import threading
from queue import SimpleQueue

import numpy as np
import pytest
from numpy.typing import NDArray

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import MAX_CHUNKS_ABOUT, MIN_CHUNK_IDS, Index, IndexView
from reconcile.view import Spans

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
