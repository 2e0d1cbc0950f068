"""Comparing sets, and the narrow ranges that show just the differences."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.algorithm.answer import assemble
from reconcile.algorithm.differences import differences, moments, narrow_sets, show_deduced
from reconcile.codec import RangeKind, Ranges, expressible
from reconcile.ids import SyncId, SyncIds, match
from reconcile.view import Items, Spans
from tests.unit.reconcile.answers import on_both

END = (2**63 - 1, b"\xff" * 32)


def an_id(timestamp: int, head: list[int]) -> SyncId:
    begin = bytes(head)
    return timestamp, (begin + sha256(begin).digest())[:32] if head else bytes(32)


def many_ids(times: list[int], size: int = 50) -> st.SearchStrategy[list[SyncId]]:
    heads = st.lists(st.sampled_from([0, 1, 0x7F, 0xFF]), max_size=12)
    made = st.builds(an_id, st.sampled_from(times), heads)
    return st.lists(made, max_size=size).map(lambda ids: sorted(set(ids)))


times = [0, 1, 2, 5, 10**18, 2**63 - 1]


@given(many_ids(times), many_ids(times))
@settings(max_examples=120, deadline=None)
def test_match_finds_every_place(local: list[SyncId], remote: list[SyncId]) -> None:
    for found in on_both(partial(match, SyncIds.of(local), SyncIds.of(remote))):
        for item, place, hit in zip(remote, found.places, found.found, strict=True):
            assert place == sum(other < item for other in local)
            assert hit == (item in local)


def test_match_of_many_ids_of_few_times() -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 256, (4000, 32), dtype=np.uint8)
    hashes[:2000, :8] = hashes[0, :8]
    ids = sorted(
        {(int(t), h.tobytes()) for t, h in zip(rng.integers(0, 9, 4000), hashes, strict=True)}
    )
    local, remote = ids[::2] + ids[1::4], ids[::3]
    local.sort()
    found = match(SyncIds.of(local), SyncIds.of(remote))
    stored = set(local)
    assert found.found.tolist() == [item in stored for item in remote]
    ranks = np.searchsorted(np.array([ids.index(i) for i in local]), [ids.index(i) for i in remote])
    assert found.places.tolist() == ranks.tolist()


def in_spans(ids: list[SyncId], spans: list[tuple[SyncId, SyncId]]) -> Items:
    parts = [[item for item in ids if lower <= item < upper] for lower, upper in spans]
    offsets = np.cumsum([0, *map(len, parts)])
    return Items(offsets, SyncIds.of(item for part in parts for item in part))


@given(many_ids(times), many_ids(times), many_ids(times, 8))
@settings(max_examples=120, deadline=None)
def test_narrow_sets_show_every_difference_and_nothing_else(
    ours: list[SyncId], theirs: list[SyncId], edges: list[SyncId]
) -> None:
    bounds = [edge for edge in edges if edge > (0, bytes(32))] + [END]
    spans = list(zip([(0, bytes(32)), *bounds], bounds, strict=False))[::2]
    local, remote = in_spans(ours, spans), in_spans(theirs, spans)
    found = differences(local, remote)
    mine, yours = set(local.ids), set(remote.ids)
    assert found.ids.pairs() == sorted(mine ^ yours)
    assert found.ids[found.ours].pairs() == sorted(mine - yours)
    of = Spans.of(spans)
    pieces = narrow_sets(found, local, of)
    offsets = np.concatenate(([0], np.cumsum(pieces.counts)))
    learnt_missing, learnt_extra = set[SyncId](), set[SyncId]()
    last = (0, bytes(32))
    for at, (lower, upper) in enumerate(pieces.spans.pairs()):
        assert last <= lower < upper
        assert any(home[0] <= lower and upper <= home[1] for home in spans)
        shown = set(pieces.items[int(offsets[at]) : int(offsets[at + 1])])
        assert shown == {item for item in mine if lower <= item < upper}
        here = {item for item in yours if lower <= item < upper}
        learnt_missing |= shown - here
        learnt_extra |= here - shown
        last = upper
    assert learnt_missing == mine - yours
    assert learnt_extra == yours - mine
    ranges = assemble([pieces])
    if len(ranges):
        ranges.check()
        assert expressible(ranges.lower, ranges.upper).all()
        assert ranges.items == pieces.items


@given(many_ids(times, 12), many_ids(times, 12))
@settings(max_examples=80, deadline=None)
def test_assembled_ranges_can_be_encoded_and_say_what_the_pieces_say(
    edges: list[SyncId], items: list[SyncId]
) -> None:
    # Sets between any bounds at all, with gaps before some.
    spans = [pair for pair in pairwise(edges) if pair[1][1][0] < 0x80]
    stored = in_spans(items, spans)
    of = Spans.of(spans)
    pieces = Ranges.of_sets(of, np.diff(stored.offsets), stored.ids, reconciled=True)
    ranges = assemble([pieces])
    ranges.check()
    assert expressible(ranges.lower, ranges.upper).all()
    assert ranges.items == stored.ids
    is_set = ranges.kinds == RangeKind.ITEM_SET
    covered = list(zip(ranges.lower[is_set].pairs(), ranges.upper[is_set].pairs(), strict=True))
    inside = [any(lower <= item < upper for lower, upper in spans) for item in items]
    for item, expected in zip(items, inside, strict=True):
        assert any(lower <= item < upper for lower, upper in covered) == expected


@given(many_ids(times, 40), st.integers(0, 2**40))
@settings(max_examples=80, deadline=None)
def test_a_deduced_id_is_shown_without_its_neighbours(ids: list[SyncId], chosen: int) -> None:
    inside = [item for number, item in enumerate(ids) if item < END and chosen >> number & 1]
    homes = Spans.of([(item, min([*(i for i in ids if i > item), END])) for item in inside])
    shown = SyncIds.of(inside)
    within = moments(shown, homes)
    pieces = show_deduced(shown, in_spans(ids, within.pairs()), within)
    assert pieces.counts.tolist() == [1] * len(inside)
    assert pieces.items == shown
    for item, (lower, upper), home in zip(inside, pieces.spans.pairs(), homes.pairs(), strict=True):
        assert home[0] <= lower <= item < upper <= home[1]
        assert upper <= (item[0] + 1, bytes(32)) or item[0] == 2**63 - 1


def test_a_deduced_id_is_alone_where_many_share_a_nanosecond() -> None:
    rng = np.random.default_rng(3)
    ids = sorted((5, rng.bytes(32)) for _ in range(20_000))
    middle = SyncIds.of([ids[10_000]])
    within = moments(middle, Spans.of([((0, bytes(32)), END)]))
    pieces = show_deduced(middle, Items(np.array([0, len(ids)]), SyncIds.of(ids)), within)
    ((lower, upper),) = pieces.spans.pairs()
    assert [item for item in ids if lower <= item < upper] == middle.pairs()


def test_pieces_of_different_kinds_come_in_their_order() -> None:
    def spans(*edges: int) -> Spans:
        return Spans.of([((edge, bytes(32)), (edge + 1, bytes(32))) for edge in edges])

    def sets(*edges: int, reconciled: bool) -> Ranges:
        items = SyncIds.of((edge, bytes([edge]) * 32) for edge in edges)
        counts = np.ones(len(edges), np.int64)
        return Ranges.of_sets(spans(*edges), counts, items, reconciled=reconciled)

    prints = Ranges.of_prints(spans(3, 7), np.arange(8, dtype=np.uint64).reshape(2, 4))
    ranges = assemble([prints, sets(2, 9, reconciled=True), sets(5, 8, reconciled=False)])
    bounds = [timestamp for timestamp, _ in ranges.upper]
    assert bounds == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert ranges.kinds.tolist() == [0, 2, 1, 0, 2, 0, 1, 2, 2]
    assert ranges.reconciled[ranges.kinds == 2].tolist() == [True, False, False, True]
    assert [timestamp for timestamp, _ in ranges.items] == [2, 5, 8, 9]
    assert ranges.fingerprints[ranges.kinds == 1].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
