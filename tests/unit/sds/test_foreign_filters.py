"""Peers whose filters have another size or number of hashes than the channel's."""

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
)
from storenode.sds.filters import FilterSample, InferredShape
from storenode.sds.limits import MAX_FOREIGN_SHAPES, MAX_SDS_MESSAGE_BYTES
from tests.unit.sds.worlds import NOW, SMALL, channel, later, make_rng, of, payloads, take, wire

OTHERS = [
    FilterShape(300, 0.001),
    FilterShape(1_000, 0.05),
    FilterShape(2_000, 1e-6),
    FilterShape(10_000, 0.001),
]
SAME_SIZE = FilterShape(750, 0.0001)
"""As many positions as those of `SMALL`, and more hashes."""


def shown(ids: list[str], shape: Shape, at: int = NOW, sender: str = "peer") -> bytes:
    name = f"s{at}{sender}"
    return wire(name, content=None, bloom_filter=filter_of(shape, ids), lamport=at, sender=sender)


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
