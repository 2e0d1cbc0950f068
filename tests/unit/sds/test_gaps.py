"""The gaps that filters of peers show, in the shape of the channel and in others."""

from __future__ import annotations

import struct
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, Shape, filter_of
from storenode.sds.codec import decode_message
from storenode.sds.config import RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Behind,
    Broadcast,
    CaughtUp,
    Event,
    PossiblyAcknowledged,
    Reason,
)
from storenode.sds.filters import FilterSample, InferredShape
from storenode.sds.gaps import MAX_SEARCHES
from storenode.sds.limits import (
    MAX_BEHIND_PEERS,
    MAX_COMPARED_PEERS,
    MAX_EXPLAINED_IDS,
    MAX_FOREIGN_SHAPES,
    MAX_SDS_MESSAGE_BYTES,
)
from storenode.sds.snapshot import restore, snapshot
from tests.unit.sds.worlds import NOW, SMALL, channel, later, make_rng, of, payloads, take, wire

TINY = FilterShape(40, 1e-6)


def shown(ids: list[str], shape: Shape = SMALL, at: int = NOW, sender: str = "peer") -> bytes:
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


def test_what_arrives_in_time_is_no_gap() -> None:
    me = channel()
    take(me, shown(["a", "b"]))
    take(me, wire("b"), wire("a"), now=NOW + 9_000)
    assert of(Behind, later(me, 10, 20, 30)) == []
    assert me.lacks.peers == {}


def test_a_message_shown_just_before_the_grace_of_another_ends_has_its_own() -> None:
    me = channel()
    take(me, shown(["a"]))
    take(me, shown(["a", "b"], at=NOW + 9_999), now=NOW + 9_999)
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


def test_filters_are_not_compared_when_that_is_off() -> None:
    me = channel(behind_after_ms=None)
    take(me, shown(["hidden"]))
    assert of(Behind, later(me, 10, 20)) == []
    assert me.lacks.peers == {}


OTHERS = [
    FilterShape(300, 0.001),
    FilterShape(1_000, 0.05),
    FilterShape(2_000, 1e-6),
    FilterShape(10_000, 0.001),
]
SAME_SIZE = FilterShape(750, 0.0001)
"""As many positions as those of `SMALL`, and more hashes."""


def numbered(count: int, seed: int = 0) -> list[str]:
    return [f"m{seed}-{number:05}" for number in range(count)]


def naive_positions(data: bytes) -> set[int]:
    """Return the positions that are set, by the definition of the bytes."""
    words = struct.unpack(f">{len(data) // 8}Q", data)
    return {64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(10, 600),
    st.sampled_from([0.05, 0.01, 0.001, 1e-6]),
    st.floats(0.01, 2.5),
    st.floats(0, 0.6),
    st.integers(0, 2**32),
)
def test_a_shape_is_found_out_or_left_open_and_never_mistaken(
    capacity: int, rate: float, filled: float, absent: float, seed: int
) -> None:
    shape, rng = FilterShape(capacity, rate), make_rng(seed)
    ids = numbered(int(capacity * filled) + 1, seed)
    rolling = RollingFilter(shape)
    stored = [each for each in ids if rng.uniform(0, 1) >= absent]
    for message_id in stored:
        rolling.add(message_id)
    data = rolling.encode()
    found = FilterSample(data, ids[-64:]).infer()
    if found is None:
        newest = len(set(stored[-len(rolling) :]) & set(ids[-64:]))
        assert newest < 32 or absent > 0.5
        return
    assert (found.bits, found.hashes) == (shape.bits, shape.hashes)
    assert found.capacity <= shape.capacity <= found.capacity * 1.5
    inserted = stored[len(stored) - len(rolling) :]
    explained = {place for each in inserted for place in found.positions(each)}
    assert naive_positions(data) == explained


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([SMALL, *OTHERS, SAME_SIZE]), st.integers(40, 150), st.data())
def test_a_hole_shows_if_and_only_if_the_peer_has_what_we_lack(
    shape: FilterShape, count: int, data: st.DataObject
) -> None:
    ids = numbered(count)
    holes = set(data.draw(st.lists(st.sampled_from(ids), max_size=5)))
    theirs = set(data.draw(st.lists(st.sampled_from(ids), max_size=5)))
    me = channel()
    take(me, *[wire(each) for each in ids if each not in holes])
    seen = [each for each in ids if each not in theirs]
    events = take(me, shown(seen, shape))
    events += later(me, 1, 2, 12, 24)
    lacking = (holes - theirs) if shape.error_rate < 0.01 else set()
    behind = of(Behind, events)
    if lacking:
        assert [each.searches for each in behind] == [1]
        assert 1 <= behind[0].at_least <= len(lacking)
    elif not holes:
        assert behind == []
    take(me, *[wire(each, lamport=NOW + 1) for each in holes], now=NOW + 25_000)
    assert len(of(CaughtUp, later(me, 37, 50))) == len(behind)
    assert not me.lacks.incomparable


@pytest.mark.parametrize("own", [SMALL, FilterShape(100, 0.001)])
@pytest.mark.parametrize("shape", [FilterShape(100, 0.001), FilterShape(200, 0.05)])
def test_filters_that_roll_over_show_nothing_where_nothing_is_lacking(
    shape: FilterShape, own: FilterShape
) -> None:
    me, peer, rng = channel(filter=own), RollingFilter(shape), make_rng(4)
    ids = numbered(shape.capacity * 3)
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
    sync = wire("s", content=None, bloom_filter=peer.encode(), lamport=hidden)
    take(me, sync, now=hidden)
    found = [event for after in range(0, 40_000, 5_000) for event in me.tick(hidden + after, rng)]
    assert [each.at_least for each in of(Behind, found)][:1] == [1]


def test_a_filter_that_reaches_further_back_than_ours_in_its_shape_proves_nothing() -> None:
    me, shape = channel(keep_entries=1_000), FilterShape(20_000, 0.001)
    ids = numbered(5_000)
    take(me, *[wire(each, lamport=NOW + n) for n, each in enumerate(ids)], now=NOW + 5_000)
    assert me.log.pruned
    take(me, shown([*ids, "hidden"], shape, NOW + 6_000), now=NOW + 6_000)
    assert of(Behind, later(me, *range(7, 60))) == []
    assert list(me.lacks.incomparable) == ["peer"]
    take(me, shown(["hidden", *ids[-500:]], shape, NOW + 61_000), now=NOW + 61_000)
    assert len(of(Behind, later(me, *range(62, 90)))) == 1


def test_acknowledgements_and_gaps_are_read_from_them() -> None:
    shape = OTHERS[2]
    me = channel(gap_entries=4, gap_every_ms=1, repair=RepairConfig(1_000, 2_000))
    ids = numbered(100)
    take(me, *[wire(each, lamport=NOW + n) for n, each in enumerate(ids)], now=NOW + 100)
    mine = of(Broadcast, me.send(NOW + 200, b"mine"))[0].message_id
    at = NOW + 20_000
    seen = [*ids[:60], *ids[61:], mine]
    first = take(me, shown(seen, shape, at), now=at)
    second = take(me, shown(seen, shape, at + 1, "other"), now=at + 1)
    assert [each.message_id for each in of(PossiblyAcknowledged, first)] == [mine]
    (reported,) = of(Acknowledged, second)
    assert (reported.message_id, reported.error_probability < 1e-6) == (mine, True)
    message = decode_message(payloads(me.send_sync(at + 2))[0])
    assert ids[60] in [entry.message_id for entry in message.history]


def test_a_peer_that_changes_its_shape_is_compared_by_the_new_one() -> None:
    me, ids = channel(), numbered(100)
    take(me, *map(wire, ids))
    take(me, shown([*ids, "hidden"], OTHERS[0]))
    assert len(of(Behind, later(me, 1, 2, 12, 24))) == 1
    take(me, shown(ids, OTHERS[2], NOW + 30_000), now=NOW + 30_000)
    assert of(CaughtUp, later(me, 31, 32, 44, 56)) == [CaughtUp("peer")]
    assert not me.lacks.peers


def test_a_filter_that_cannot_be_compared_takes_nothing_back() -> None:
    me, ids = channel(), numbered(150)
    take(me, *map(wire, ids))
    take(me, shown([*ids, "hidden"], OTHERS[0]))
    assert len(of(Behind, later(me, 1, 2, 12, 24))) == 1
    small = FilterShape(100, 0.001)
    take(me, shown([*ids, "hidden"], small, NOW + 30_000), now=NOW + 30_000)
    assert of(CaughtUp, later(me, 31, 32, 44)) == []
    assert list(me.lacks.incomparable) == list(me.lacks.peers) == ["peer"]
    take(me, wire("hidden"), now=NOW + 45_000)
    assert of(CaughtUp, later(me, 56)) == [CaughtUp("peer")]


def test_a_shape_for_hardly_any_messages_harms_no_participant() -> None:
    shape = InferredShape(100, 32)
    assert shape.capacity < 4
    # All positions of these IDs are one and the same, so that the shape looks certain.
    alike = (each for each in numbered(60_000) if len(set(shape.positions(each))) == 1)
    ids = list(islice((each for each in alike if shape.positions(each)[0] < 20), 64))
    me = channel(gap_entries=4, gap_every_ms=1, repair=RepairConfig(1_000, 2_000))
    take(me, *[wire(each, lamport=NOW + n) for n, each in enumerate(ids)], now=NOW + 100)
    for at in (NOW + 20_000, NOW + 22_000):
        take(me, shown(ids, shape, at, "enemy"), now=at)
    assert me.filters.shape_of("enemy", filter_of(shape, ids)) == shape
    assert len(of(Behind, later(me, 23, 34, 45))) <= 1  # What an enemy has cannot be checked.
    me.check()


@pytest.mark.parametrize("shape", [SMALL, OTHERS[1]])
def test_some_chosen_ids_do_not_make_a_shape_of_more_hashes(shape: FilterShape) -> None:
    # All positions of these IDs are one and the same, as if they were held by any number of hashes.
    alike = (each for each in numbered(10**6, 1) if not shape.pair(each)[1])
    ids = [*numbered(400), *islice(alike, 40)]
    data = filter_of(shape, ids)
    assert FilterSample(data, ids[-64:]).infer() is None
    me = channel(filter=shape)
    take(me, *[wire(each, lamport=NOW + n) for n, each in enumerate(ids)], now=NOW + 1_000)
    take(me, shown(ids, shape, NOW + 2_000), now=NOW + 2_000)
    assert me.filters.shape_of("peer", data) is me.config.filter
    assert of(Behind, later(me, *range(3, 60, 3))) == []
    assert not me.lacks.incomparable


def test_what_says_nothing_is_counted_and_costs_a_bounded_amount() -> None:
    me, ids = channel(), numbered(100)
    take(me, *map(wire, ids))
    rng = make_rng(1)
    room = MAX_SDS_MESSAGE_BYTES - 1_000
    bad = [b"", b"\0" * 64, b"\xff" * 64, b"\xff" * room, b"\1" * 63]
    bad += [bytes(rng.getrandbits(8) for _ in range(size)) for size in (8, 800, room)]
    for number, data in enumerate(bad):
        at = NOW + number * 1_000
        sender = f"enemy{number}"
        take(me, wire(sender, content=None, bloom_filter=data, lamport=at, sender=sender), now=at)
    assert of(Behind, later(me, *range(len(bad), 60))) == []
    # An empty field is none at all.
    assert len(me.lacks.incomparable) == me.counts.filters_unreadable == len(bad) - 1


def test_only_some_shapes_are_known_and_what_is_compared_stays() -> None:
    me, ids = channel(), numbered(100)
    take(me, *map(wire, ids))
    shapes = [FilterShape(400 + 100 * number, 0.001) for number in range(MAX_FOREIGN_SHAPES + 2)]
    for number, shape in enumerate(shapes):
        at = NOW + number * 2_000
        take(me, shown([*ids, f"x{number}"], shape, at, f"peer{number}"), now=at)
        later(me, number * 2 + 1)
    later(me, 20, 30, 40)
    first = [f"peer{number}" for number in range(MAX_FOREIGN_SHAPES)]
    assert list(me.lacks.peers) == first
    assert list(me.lacks.incomparable) == ["peer3", "peer4"]
    take(me, wire("x0"), now=NOW + 41_000)
    assert of(CaughtUp, later(me, 52, 53)) == [CaughtUp("peer0")]
    at = NOW + 60_000
    take(me, shown([*ids, "x4"], shapes[4], at, "peer4"), now=at)
    later(me, 61, 62)
    assert "peer4" in me.lacks.peers


def test_the_channels_own_shape_is_taken_where_nothing_speaks_for_another() -> None:
    me = channel()
    take(me, *map(wire, numbered(100)))
    take(me, shown(["hidden"], SMALL))
    assert len(of(Behind, later(me, 1, 11, 21))) == 1


def test_unfit_numbers_are_left_out() -> None:
    assume_nothing = FilterSample(b"", ["a"])
    assert assume_nothing.infer() is None
    assert FilterSample(bytes(64), ["a"]).infer() is None
    assert FilterSample(b"\xff" * 64, []).infer() is None
