"""Anchors of an index, and slices of the compact mode that are cut at them."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.compact import plan
from reconcile.compact.keys import first_key
from reconcile.compact.outcome import Found
from reconcile.compact.plan import Slicing
from reconcile.compact.sizing import Ordinary
from reconcile.compact.slices import Held, Regions, Slices
from reconcile.ids import SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.index.chunk import Chunk, chunk_of
from storenode.message.limits import MAX_TIMESTAMP_NS
from tests.support.compact_pair import compact_pair
from tests.support.reconcile_pair import some_ids

SOME = settings(max_examples=60, deadline=None)
KEY = first_key(bytes(16))
APART = 32


def marked_ids(rng: random.Random, count: int, moments: int) -> list[SyncId]:
    """Of many the hash is one that somebody ground to be that of an anchor."""
    return [
        (time, bytes((hash_[0] & 0xC1,)) + hash_[1:] if rng.random() < 0.3 else hash_)
        for time, hash_ in some_ids(rng, count, moments)
    ]


def anchors_slowly(ids: list[SyncId]) -> list[int]:
    """Places of the anchors of ascending IDs."""
    found = [0]
    for place, (before, own) in enumerate(pairwise(ids), 1):
        if before[0] < own[0] and not own[1][0] & 0x3E and place - found[-1] >= APART:
            found.append(place)
    return found[1:]


def chunk_like(ids: list[SyncId]) -> Chunk:
    """In memory that is read only here."""
    return chunk_of(SyncIds.of(ids))


@given(st.integers(0, 2**32), st.integers(1, 600), st.sampled_from([30, 400, 10**6]))
@SOME
def test_anchors_are_chosen_by_hashes(seed: int, count: int, moments: int) -> None:
    ids = sorted(marked_ids(random.Random(seed), count, moments))
    chunk = chunk_like(ids)
    assert chunk.anchor_places.tolist() == anchors_slowly(ids)
    with kernel.python_only():
        plain = chunk_like(ids)
        assert chunk.anchors.tobytes() == plain.anchors.tobytes()
        assert chunk.samples.tobytes() == plain.samples.tobytes()
    assert not len(chunk.anchors) or chunk.anchors.ctypes.data % 64 == 0
    rows, columns = np.split(chunk.anchors, [8 * len(chunk.anchor_places)])
    rows = rows.reshape(-1, 8)
    assert columns.tolist() == rows[:, :2].T.reshape(-1).tolist()
    for row, place in enumerate(chunk.anchor_places.tolist()):
        signs = [1 - 2 * (hash_[0] & 1) for _, hash_ in ids[:place]]
        said = [ids[place][0], place, ids[place - 1][0], sum(signs)]
        assert rows[row, :4].view(np.int64).tolist() == said
        assert bool((rows[row, 4:] == chunk.prefix[place]).all())


def test_two_sides_have_nearly_the_same_anchors() -> None:
    rng = random.Random(7)
    ids = sorted(some_ids(rng, 40_000, 10**12))
    chosen = []
    for _ in range(2):
        own = [an_id for an_id in ids if rng.random() < 0.999]
        chosen.append({own[place] for place in anchors_slowly(own)})
    assert len(chosen[0] & chosen[1]) > 0.9 * max(map(len, chosen))
    assert len(chosen[0]) > len(ids) // 80


def view_of(ids: list[SyncId], chunk: int) -> IndexView:
    index = Index(min_chunk_ids=chunk)
    for at in range(0, len(ids), 3 * chunk):
        index.insert(SyncIds.of(ids[at : at + 3 * chunk]))
    return index.view()


@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 30, 700, 4_000]),
    st.sampled_from([200, 10**4, 10**9]),
    st.sampled_from([150, 10**5]),
    st.integers(1, 300),
)
@SOME
def test_slices_at_anchors_are_cut_alike(
    seed: int, count: int, moments: int, chunk: int, slices: int
) -> None:
    rng = random.Random(seed)
    ids = sorted(marked_ids(rng, count, moments))
    view = view_of(rng.sample(ids, len(ids)) if seed % 2 else ids, chunk)
    window = (ids[count // 20], ids[-1 - count // 20]) if ids else ((0, bytes(32)), (9, bytes(32)))
    held = Held(view, window)
    regions = held.regions
    if count > 100 and seed % 3:
        edges = np.array([ids[count * part // 8][0] for part in (1, 3, 3, 4, 5, 7)])
        lower, upper = edges[::2], edges[1::2]
        kept = lower < upper
        regions = Regions.joined(lower[kept], upper[kept])
    own, frame = held.cut(regions, KEY, Slicing(slices, 4, anchored=True))
    with kernel.python_only():
        plain, plain_frame = held.cut(regions, KEY, Slicing(slices, 4, anchored=True))
    assert frame == plain_frame
    for name in Slices.__slots__:
        assert getattr(own, name).tolist() == getattr(plain, name).tolist(), name
    others = rng.sample(ids, len(ids) - len(ids) // 10)
    other = Held(view_of(sorted(others), chunk), window)
    may_be = Slicing(65_536, 4, anchored=seed % 2 == 0)
    compared = other.compare_quickly((frame, 0), regions, KEY, may_be)
    again = held.compare_quickly((frame, 0), regions, KEY, may_be)
    assert compared is not None
    assert again is not None
    assert not again.differs.any()
    with kernel.python_only():
        slowly = other.slices(own.lower, own.upper, KEY)
    mask = np.uint64(0xFFFFFFFF)
    prints = (slowly.prints ^ own.prints) & mask
    apart = slowly.balances - own.balances
    differs = (prints != 0) | (apart != 0)
    assert compared.differs.tolist() == differs.tolist()
    assert compared.chosen.low.tolist() == slowly.low[differs].tolist()
    assert compared.chosen.high.tolist() == slowly.high[differs].tolist()
    assert (compared.chosen.prints & mask).tolist() == prints[differs].tolist()
    unsaid = (compared.chosen.prints ^ slowly.prints[differs]) & ~mask
    assert not unsaid.any(), "above what was said are the own prints"
    assert compared.chosen.balances.tolist() == apart[differs].tolist()
    inside = ~differs & ~regions.at_edge(slowly.lower, slowly.upper)
    counts = other.counts(slowly, slowly.items // max(1, len(slowly)))
    assert compared.equal == Ordinary.of(counts[inside])


@pytest.mark.parametrize("chunk", [400, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_many_ids_are_cut_at_anchors(
    monkeypatch: pytest.MonkeyPatch, seed: int, chunk: int
) -> None:
    monkeypatch.setattr(plan, "NEAR_ITEMS", 900)
    monkeypatch.setattr(plan, "ANCHORED_SLICE_ITEMS", 1)
    assert plan.slicing(120, 120, 8_000).anchored
    rng = random.Random(seed)
    ids = sorted(some_ids(rng, 9_000, 10**12))
    sides = [sorted(rng.sample(ids, len(ids) - 60)) for _ in range(2)]
    views = [view_of(own, chunk) for own in sides]
    joined = compact_pair(views[0], views[1])
    joined.run()
    with kernel.python_only():
        plain = compact_pair(views[0], views[1])
        plain.run()
    assert joined.frames == plain.frames
    for outcome, own, other in zip(joined.outcomes, sides, reversed(sides), strict=True):
        assert isinstance(outcome, Found)
        assert outcome.to_send.pairs() == sorted(set(own) - set(other))


def test_slices_are_more_and_at_anchors_where_there_are_many_ids() -> None:
    some, many = plan.slicing(1_000, 1_000, 10**6), plan.slicing(1_000, 1_000, 10**7)
    assert some.anchored
    assert many.anchored
    assert many.count > 4 * some.count
    assert not plan.slicing(1_000, 1_000, 10**5).anchored
    assert not plan.slicing(10, 10, 10**7).anchored
    assert not plan.slicing(10_000, 10_000, 10**6).anchored, "a slice has fewer IDs than an anchor"
    assert plan.slicing(10_000, 10_000, 10**8).count == 65_536


def test_an_anchor_of_the_last_time_there_is_leaves_nothing_out() -> None:
    """As a bound this time means the end, and an ID of it is before that."""
    ids = [
        (time, bytes((0x3E,)) + hash_[1:]) for time, hash_ in some_ids(random.Random(3), 300, 10**6)
    ]
    last = MAX_TIMESTAMP_NS, bytes(31) + b"\1"
    held = Held(view_of(sorted([*ids, last]), 10**5), ((0, bytes(32)), (last[0], b"\xff" * 32)))
    for anchored in (False, True):
        own, frame = held.cut(held.regions, KEY, Slicing(10, 4, anchored=anchored))
        with kernel.python_only():
            assert held.cut(held.regions, KEY, Slicing(10, 4, anchored=anchored))[1] == frame
        assert own.high[-1] == held.count
        may_be = Slicing(65_536, 4, anchored=True)
        compared = held.compare_quickly((frame, 0), held.regions, KEY, may_be)
        assert compared is not None
        assert not len(compared.chosen)
