"""Tests of what a peer's filter proves that we lack."""

from storenode.sds.bloom import FilterShape, filter_of
from storenode.sds.events import Behind, Broadcast, CaughtUp, Reason
from storenode.sds.gaps import MAX_SEARCHES
from storenode.sds.limits import MAX_BEHIND_PEERS, MAX_COMPARED_PEERS, MAX_EXPLAINED_IDS
from storenode.sds.snapshot import restore, snapshot
from tests.unit.sds.worlds import NOW, SMALL, channel, later, of, take, wire

GRACE_MS = 10_000
TINY = FilterShape(40, 1e-6)


def shown(seen: list[str], at: int = NOW, sender: str = "peer") -> bytes:
    return wire(f"s{at}{sender}", content=None, seen=seen, lamport=at, sender=sender)


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


def test_what_arrives_in_time_is_no_gap() -> None:
    me = channel()
    take(me, shown(["a", "b"]))
    take(me, wire("b"), wire("a"), now=NOW + 9_000)
    assert of(Behind, later(me, 10, 20, 30)) == []
    assert me.lacks.peers == {}


def test_a_message_shown_just_before_the_grace_of_another_ends_has_its_own() -> None:
    me = channel()
    take(me, shown(["a"]))
    take(me, shown(["a", "b"], NOW + 9_999), now=NOW + 9_999)
    take(me, wire("a"), now=NOW + 10_000)
    later(me, 10, 19)
    take(me, wire("b"), now=NOW + 19_500)
    assert of(Behind, later(me, 20, 30)) == []


def test_what_is_missing_or_lost_by_name_is_known() -> None:
    me = channel(lost_after_ms=15_000)
    take(me, wire("b", after=["a"]), shown(["a", "b"]))
    assert of(Behind, later(me, 10, 20, 30, 40)) == []
    assert "a" in me.lost
    assert me.lacks.peers == {}


def test_each_search_reaches_further_and_the_last_covers_everything() -> None:
    me = channel(sync_min_ms=10**9, sync_max_ms=10**9, sync_at_least_ms=10**9, sync_owed_ms=10**9)
    take(me, wire("a"), shown(["a", "hidden"]))
    events = later(me, *range(10, 20_000, 10))
    searches = of(Behind, events)
    since = [each.since_ms for each in searches]
    assert [each.searches for each in searches] == list(range(1, MAX_SEARCHES + 1))
    assert since == sorted(since, reverse=True)
    assert since[-1] == 0
    syncs = [each for each in of(Broadcast, events) if each.reason is Reason.SYNC]
    assert len(syncs) == MAX_SEARCHES - 1
    assert me.lacks.at_least() == 1


def test_a_search_begins_where_the_peer_last_showed_nothing_new() -> None:
    me = channel()
    take(me, wire("a"), shown(["a"]))
    later(me, 1)
    at = NOW + 3_600_000
    take(me, shown(["a", "hidden"], at), now=at)
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
    again = restore(me.config, snapshot(me))
    take(again, wire("all", content=None, bloom_filter=filter_of(TINY, ids)), now=NOW + 20_000)
    later(again, 21)
    assert (again.lacks.peers, list(again.lacks.incomparable)) == ({}, ["peer"])


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
    take(me, shown(["a"], NOW + 1), shown(["a", "hidden"], NOW + 3), shown(["a"], NOW + 2))
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
    take(me, shown(["hidden"], at), now=at)
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


def test_filters_are_not_compared_when_that_is_off() -> None:
    me = channel(behind_after_ms=None)
    take(me, shown(["hidden"]))
    assert of(Behind, later(me, 10, 20)) == []
    assert me.lacks.peers == {}
