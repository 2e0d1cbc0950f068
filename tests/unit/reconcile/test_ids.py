import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.ids import LOWEST, SyncId, SyncIds, hashes_less, less, match

hashes = st.binary(min_size=32, max_size=32)
close_hashes = st.tuples(st.integers(0, 31), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])).map(
    lambda place: bytes(place[0]) + bytes([place[1]]) + bytes(31 - place[0])
)
pairs = st.tuples(st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1)), close_hashes | hashes)


@given(st.lists(pairs))
def test_pairs_survive(listed: list[SyncId]) -> None:
    ids = SyncIds.of(listed)
    assert len(ids) == len(listed)
    assert ids.pairs() == list(ids) == listed
    assert [ids.at(index) for index in range(len(ids))] == listed
    assert ids == SyncIds.of(listed)


@given(st.lists(pairs, min_size=1), st.data())
def test_some_are_chosen(listed: list[SyncId], data: st.DataObject) -> None:
    ids = SyncIds.of(listed)
    rows = data.draw(st.lists(st.integers(0, len(listed) - 1)))
    assert ids[np.array(rows, np.int64)].pairs() == [listed[row] for row in rows]
    mask = data.draw(st.lists(st.booleans(), min_size=len(listed), max_size=len(listed)))
    assert ids[np.array(mask)].pairs() == [
        pair for pair, kept in zip(listed, mask, strict=True) if kept
    ]
    begin, end = sorted((data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))))
    step = data.draw(st.sampled_from([1, 2, -1]))
    chosen = ids[begin:end:step]
    assert chosen.pairs() == listed[begin:end:step]
    assert chosen.hashes.flags.c_contiguous
    assert np.shares_memory(ids[:].hashes, ids.hashes)


@given(st.lists(st.lists(pairs)))
def test_parts_are_joined(parts: list[list[SyncId]]) -> None:
    joined = SyncIds.join([SyncIds.of(part) for part in parts])
    assert joined.pairs() == [pair for part in parts for pair in part]


@given(st.lists(st.tuples(pairs, pairs)))
def test_order_is_by_time_and_then_by_hash(both: list[tuple[SyncId, SyncId]]) -> None:
    left, right = SyncIds.of(a for a, _ in both), SyncIds.of(b for _, b in both)
    assert less(left, right).tolist() == [a < b for a, b in both]
    assert hashes_less(left.hashes, right.hashes).tolist() == [a[1] < b[1] for a, b in both]


some = st.lists(pairs, max_size=2) | st.lists(pairs)


@given(some, some, some)
def test_match_finds_every_place(
    shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId]
) -> None:
    local, remote = sorted({*shared, *ours}), sorted({*shared, *theirs})
    found = match(SyncIds.of(local), SyncIds.of(remote))
    assert found.places.tolist() == [sum(own < item for own in local) for item in remote]
    assert found.found.tolist() == [item in local for item in remote]


def test_none() -> None:
    empty = SyncIds.empty()
    empty.check()
    assert empty == SyncIds.of([]) == SyncIds.join([]) == empty[np.empty(0, np.int64)]
    assert empty != [LOWEST]


def test_a_hash_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SyncIds.of([(1, bytes(31))])
