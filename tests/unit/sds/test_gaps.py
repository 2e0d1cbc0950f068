"""The gaps that filters of peers show."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, filter_of
from storenode.sds.events import Behind, Broadcast, BroadcastReason, CaughtUp, Event
from storenode.sds.gaps import MAX_SEARCHES
from storenode.sds.limits import MAX_BEHIND_PEERS, MAX_COMPARED_PEERS, MAX_EXPLAINED_IDS
from tests.unit.sds.worlds import NOW, SMALL, channel, later, make_rng, of, take, wire

TINY = FilterShape(40, 1e-6)


def shown(ids: list[str], shape: FilterShape = SMALL, at: int = NOW, sender: str = "peer") -> bytes:
    name = f"s{at}{sender}"
    return wire(name, content=None, bloom_filter=filter_of(shape, ids), lamport=at, sender=sender)


def test_a_message_that_no_participant_names_is_reported_after_the_grace_and_found() -> None:
    me = channel()
    take(me, wire("a"), shown(["a", "hidden"]))
    assert of(Behind, later(me, 5, 10)) == []
    (behind,) = of(Behind, later(me, 20))
    assert behind == Behind("peer", NOW - 600_000, 1, 1)
    assert me.lacks.at_least() == 1
    take(me, wire("hidden"), now=NOW + 21_000)
    assert of(CaughtUp, later(me, 31)) == [CaughtUp("peer")]
    assert (me.lacks.at_least(), me.lacks.peers) == (0, {})


def test_what_is_missing_or_lost_by_name_is_known() -> None:
    me = channel(lost_after_ms=15_000)
    take(me, wire("b", after=["a"]), shown(["a", "b"]))
    assert of(Behind, later(me, 10, 20, 30, 40)) == []
    assert "a" in me.lost
    assert me.lacks.peers == {}


def test_each_search_reaches_further_and_the_last_covers_everything() -> None:
    me = channel(sync_min_ms=10**9, sync_max_ms=10**9, sync_at_least_ms=10**9, sync_owed_ms=10**9)
    take(me, wire("a"), shown(["a", "hidden"]))
    steps = [(second, later(me, second)) for second in range(10, 20_000, 10)]
    events = [event for _, found in steps for event in found]
    at = [second for second, found in steps if of(Behind, found)]
    searches = of(Behind, events)
    waits = [after - before for before, after in pairwise(at)]
    assert waits == sorted(set(waits))
    since = [each.since_ms for each in searches]
    assert [each.searches for each in searches] == list(range(1, MAX_SEARCHES + 1))
    assert since == sorted(since, reverse=True)
    assert since[-1] == 0
    syncs = [each for each in of(Broadcast, events) if each.reason is BroadcastReason.SYNC]
    assert len(syncs) == MAX_SEARCHES - 1
    assert me.lacks.at_least() == 1


def test_a_search_begins_where_the_peer_last_showed_nothing_new() -> None:
    me = channel()
    take(me, wire("a"), shown(["a"]))
    later(me, 1)
    at = NOW + 3_600_000
    take(me, shown(["a", "hidden"], at=at), now=at)
    (behind,) = of(Behind, later(me, 3_610, 3_620))
    assert behind.since_ms == NOW - 600_000


def test_a_filter_that_reaches_further_back_than_ours_proves_nothing() -> None:
    me = channel(filter=TINY)
    ids = [f"m{number}" for number in range(200)]
    for name in ids:
        take(me, wire(name))
    take(me, wire("all", content=None, bloom_filter=filter_of(TINY, ids)))
    later(me, 1)
    assert (me.lacks.peers, list(me.lacks.incomparable)) == ({}, ["peer"])
    seen = filter_of(TINY, [*ids[-20:], "hidden"])
    take(me, wire("newest", content=None, bloom_filter=seen))
    assert len(of(Behind, later(me, 10, 20))) == 1
    assert not me.lacks.incomparable


def test_a_peer_whose_filter_has_another_size_is_counted_until_it_can_be_compared() -> None:
    me = channel()
    take(me, wire("a"), wire("s", content=None, bloom_filter=bytes(8)))
    later(me, 1)
    assert list(me.lacks.incomparable) == ["peer"]
    take(me, wire("t", content=None, seen=["a"], lamport=NOW + 1), now=NOW + 2_000)
    later(me, 3)
    assert not me.lacks.incomparable


def test_of_many_filters_of_a_peer_only_the_newest_is_compared() -> None:
    me = channel()
    take(me, shown(["a"], at=NOW + 1), shown(["a", "hidden"], at=NOW + 3), shown(["a"], at=NOW + 2))
    assert me.lacks.peers == {}
    take(me, wire("a"))
    assert len(of(Behind, later(me, 1, 11, 21))) == 1


def test_strangers_cannot_make_it_grow_or_hide_what_others_show() -> None:
    me = channel()
    ones = b"\xff" * SMALL.size_bytes
    take(me, wire("ones", content=None, bloom_filter=ones, sender="enemy"))
    later(me, 1)
    assert (me.lacks.peers, list(me.lacks.incomparable)) == ({}, ["enemy"])
    for number in range(MAX_COMPARED_PEERS + 50):
        take(me, shown([], sender=f"clean{number}"), shown([f"x{number}"], sender=f"e{number}"))
    assert len(me.lacks.peers) == MAX_BEHIND_PEERS
    assert len(me.lacks.compared) == MAX_COMPARED_PEERS
    later(me, *range(10, 20_000, 10))
    at = NOW + 20_000_000
    take(me, shown(["hidden"], at=at), now=at)
    later(me, 20_001)
    assert "peer" in me.lacks.peers
    assert me.lacks.at_least() == 1


def test_nothing_is_proven_while_too_much_is_missing_by_name() -> None:
    me = channel(lost_after_ms=None)
    for number in range(MAX_EXPLAINED_IDS // 256 + 1):
        take(me, wire(f"m{number}", after=[f"c{number}-{n}" for n in range(256)]))
    take(me, shown(["hidden"]))
    assert of(Behind, later(me, 10, 20, 30)) == []
    assert me.lacks.next_due_ms() > NOW + 30_000


@settings(max_examples=25, deadline=None)
@given(st.integers(40, 150), st.data())
def test_a_hole_shows_if_and_only_if_the_peer_has_what_we_lack(
    count: int, data: st.DataObject
) -> None:
    ids = [f"m{number:05}" for number in range(count)]
    holes = set(data.draw(st.lists(st.sampled_from(ids), max_size=5)))
    theirs = set(data.draw(st.lists(st.sampled_from(ids), max_size=5)))
    me = channel()
    take(me, *[wire(each) for each in ids if each not in holes])
    events = take(me, shown([each for each in ids if each not in theirs]))
    behind = of(Behind, [*events, *later(me, 1, 2, 12, 24)])
    if lacking := holes - theirs:
        assert [each.searches for each in behind] == [1]
        assert 1 <= behind[0].at_least <= len(lacking)
    else:
        assert behind == []
    take(me, *[wire(each, lamport=NOW + 1) for each in holes], now=NOW + 25_000)
    assert len(of(CaughtUp, later(me, 37, 50))) == len(behind)


def test_filters_that_roll_over_show_nothing_where_nothing_is_lacking() -> None:
    shape = FilterShape(100, 0.001)
    me, peer, rng = channel(filter=shape), RollingFilter(shape), make_rng(4)
    ids = [f"m{number:05}" for number in range(300)]
    order = sorted(range(len(ids)), key=lambda place: place + rng.uniform(0, 6))
    events: list[Event] = []
    for number, place in enumerate(order):
        at = NOW + number * 250
        take(me, wire(ids[number], lamport=at), now=at)
        peer.add(ids[place])
        if number % 40 == 39:
            sync = wire(f"s{number}", content=None, bloom_filter=peer.encode(), lamport=at)
            events += take(me, sync, now=at) + me.tick(at, rng)
    assert of(Behind, events) == []
    assert not me.lacks.incomparable
    hidden = NOW + len(ids) * 250
    peer.add("hidden")
    take(me, wire("s", content=None, bloom_filter=peer.encode(), lamport=hidden), now=hidden)
    found = [event for after in range(0, 40_000, 5_000) for event in me.tick(hidden + after, rng)]
    assert [each.at_least for each in of(Behind, found)][:1] == [1]
