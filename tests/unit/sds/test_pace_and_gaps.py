"""Tests of when a participant speaks, and what it says that others miss."""

from typing import Any, Final

import pytest

from bench.lines import measure
from storenode.sds.bloom import FilterShape, filter_of
from storenode.sds.codec import Entry, decode_message
from storenode.sds.config import RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    PossiblyAcknowledged,
    Reason,
    RepairAnswered,
)
from storenode.sds.gaps import GAP_GRACE_MS, MAX_OFFERS, MAX_TELLINGS
from storenode.sds.schedule import SyncTimer
from tests.unit.sds.worlds import (
    NOW,
    SMALL,
    channel,
    config,
    log_ids,
    make_rng,
    of,
    payloads,
    take,
    wire,
)

LATER = NOW + 60_000
NAMING: Final[dict[str, Any]] = {"name_heads": True, "filter_every": 200}


def test_each_received_message_draws_a_new_silence_and_keeps_the_limits() -> None:
    pace, rng = SyncTimer(NOW, config(sync_at_least_ms=10**9)), make_rng()
    pace.due_ms(rng)
    limits = pace.limits
    silences = set()
    for turn in range(5):
        pace.received(NOW + turn, news=True)
        silences.add(pace.due_ms(rng) - NOW - turn)
        assert pace.limits == limits
    assert len(silences) == 5
    assert all(15_000 <= silence <= 35_000 for silence in silences)
    pace.spoke(NOW, None, news=True)
    pace.due_ms(rng)
    assert pace.limits != limits


def test_a_participant_need_not_repeat_what_another_one_has_named() -> None:
    pace, rng = SyncTimer(NOW, config(sync_at_least_ms=100_000)), make_rng()
    for turn in range(20):
        pace.received(NOW + turn * 10_000, news=False)
    assert pace.due_ms(rng) >= NOW + 190_000 + 50_000


def test_who_sent_the_last_message_leaves_the_first_sync_message_to_others() -> None:
    one, other = channel("one"), channel("other")
    (sent,) = payloads(one.send(NOW, b"text"))
    take(other, sent)
    assert other.pace.due_ms(make_rng()) <= NOW + 35_000 < one.pace.due_ms(make_rng())


def test_a_participant_is_not_silent_for_ever() -> None:
    pace, rng = SyncTimer(NOW, config(sync_at_least_ms=100_000)), make_rng()
    for turn in range(20):
        pace.received(NOW + turn * 10_000, news=True)
    assert pace.due_ms(rng) >= NOW + 50_000
    assert pace.due_ms(rng) <= NOW + 100_000


def test_the_best_filter_decides_how_sure_an_acknowledgement_is() -> None:
    me = channel(possible_acks=9)
    me.send(NOW, b"text", "a")
    (first,) = of(PossiblyAcknowledged, take(me, wire("x", seen=["a"])))
    fuller = ["a", *map(str, range(500))]
    (second,) = of(PossiblyAcknowledged, take(me, wire("y", seen=fuller)))
    assert second.filters == 2
    assert second.error_probability == first.error_probability


def test_an_own_message_that_was_forgotten_is_no_witness() -> None:
    me = channel(possible_acks=1)
    me.send(NOW, b"text", "a")
    events = take(me, wire("forgotten", sender="me", after=["a"], seen=["a"]))
    assert of(Acknowledged, events) == []
    assert "a" in me.outgoing


def test_what_a_peer_lacks_is_named_a_few_times() -> None:
    me = channel(gap_entries=4, history_entries=1)
    take(me, wire("gap", lamport=NOW), wire("newer", after=["gap"], lamport=NOW + 1))
    take(me, wire("sync", seen=["newer"], sender="b", content=None, lamport=LATER), now=LATER)
    named = []
    for _ in range(MAX_TELLINGS + 2):
        message = decode_message(payloads(me.send_sync(LATER))[0])
        named.append([entry.message_id for entry in message.history])
    assert named == [["gap", "newer"]] * MAX_TELLINGS + [["newer"]] * 2


def test_a_sender_that_names_its_own_message_acknowledges_nothing() -> None:
    me = channel()
    first, second = Entry("first", None, "peer"), Entry("second", None, "peer")
    take(me, wire("first"), wire("second", after=[first]))
    assert list(me.pace.owed) == ["first", "second"]
    take(me, wire("third", after=[first, second], sender="b"))
    assert list(me.pace.owed) == ["third"]


def test_anothers_naming_is_enough() -> None:
    me = channel(gap_entries=4)
    take(me, wire("gap", lamport=NOW))
    take(me, wire("sync", seen=[], sender="b", content=None, lamport=LATER), now=LATER)
    assert list(me.gaps.pending) == ["gap"]
    take(me, wire("c", after=["gap"], sender="c", lamport=LATER), now=LATER)
    assert me.gaps.pending == {}


def test_what_a_peer_goes_on_lacking_is_sent_again_a_few_times() -> None:
    repair = RepairConfig(100, 400)
    me = channel(gap_entries=4, repair=repair)
    take(me, wire("gap", lamport=NOW), wire("newer", after=["gap"], lamport=NOW + 1))
    answered = []
    for second in range(60, 120):
        now = NOW + second * 1_000
        seen = [] if second == 60 else ["newer"] if second < 100 else ["newer", "gap"]
        sync = wire(f"s{second}", seen=seen, sender="b", content=None, lamport=now)
        take(me, sync, now=now)
        events = me.tick(now + 500, make_rng())
        answered += [(second, event.message_id) for event in of(RepairAnswered, events)]
        lacks = {60: 2, 100: 0}.get(second, 1 if second < 100 else 0)
        assert me.gaps.behind() == ({"b": lacks} if lacks else {})
    assert [key for _, key in answered] == ["gap"] * MAX_OFFERS
    assert answered[0][0] > 60


def test_what_may_be_on_its_way_and_the_senders_own_are_no_gaps() -> None:
    me = channel(gap_entries=4, gap_every_ms=1)
    take(me, wire("old", sender="b", lamport=NOW), wire("new", lamport=LATER))
    now = LATER + GAP_GRACE_MS
    empty = bytes(SMALL.size_bytes)
    take(me, wire("s", bloom_filter=empty, sender="b", content=None, lamport=now), now=now)
    assert me.gaps.pending == {}
    sync = wire("s", bloom_filter=empty, sender="b", content=None, lamport=now + 1)
    take(me, sync, now=now + 1)
    assert list(me.gaps.pending) == ["new"]


def test_a_gap_shows_although_the_clock_of_its_message_is_ahead() -> None:
    ahead = LATER + 7_200_000
    me = channel(gap_entries=4, history_entries=1)
    take(me, wire("mine", lamport=NOW), wire("ahead", lamport=ahead))
    sync = wire("sync", seen=["mine"], sender="b", content=None, lamport=LATER)
    take(me, sync, now=LATER)
    message = decode_message(payloads(me.send_sync(LATER))[0])
    assert [entry.message_id for entry in message.history] == ["mine", "ahead"]


@pytest.mark.parametrize(("capacity", "is_found"), [(1_000, True), (400, True), (300, False)])
def test_a_gap_shows_however_many_messages_follow_it_while_filters_cover_it(
    capacity: int, is_found: bool
) -> None:
    shape = FilterShape(capacity, 1e-6)
    me = channel(gap_entries=4, gap_window=16, gap_every_ms=1, filter=shape)
    ids = [f"m{number:03}" for number in range(300)]
    take(me, *[wire(key, lamport=NOW + number) for number, key in enumerate(ids)])
    seen = filter_of(shape, ids[:77] + ids[78:])
    for turn in range(25):
        now = LATER + turn
        sync = wire(f"s{turn}", bloom_filter=seen, sender="b", content=None, lamport=now)
        take(me, sync, now=now)
    assert list(me.gaps.pending) == (["m077"] if is_found else [])


def test_only_sync_messages_that_say_something_new_are_to_be_stored() -> None:
    one, other, third = (channel(name, **NAMING) for name in ("one", "other", "third"))
    line = payloads(one.send(NOW, b"text"))
    take(other, *line)
    take(third, *line)
    (first,) = of(Broadcast, other.tick(NOW + 40_000, make_rng()))
    take(third, first.payload, now=NOW + 40_000)
    (again,) = of(Broadcast, third.tick(NOW + 700_000, make_rng()))
    assert first.reason is again.reason is Reason.SYNC
    assert (first.passes, again.passes) == (False, True)
    take(third, *payloads(one.send(NOW + 700_001, b"more")), now=NOW + 700_001)
    (next_one,) = of(Broadcast, third.tick(NOW + 740_000, make_rng()))
    assert not next_one.passes


def test_what_a_sync_message_named_and_was_fetched_needs_no_other_sync_message() -> None:
    one, other, third = (channel(name, **NAMING) for name in ("one", "other", "third"))
    line = payloads(one.send(NOW, b"text"))
    take(other, *line)
    take(third, *payloads(other.tick(NOW + 40_000, make_rng())), now=NOW + 40_000)
    take(third, *line, now=NOW + 40_100)
    assert log_ids(third) == log_ids(one)
    assert third.pace.due_ms(make_rng()) > NOW + 200_000


def test_what_is_sent_again_is_answered_as_soon_as_what_is_new() -> None:
    one, other = channel("one", **NAMING), channel("other", **NAMING)
    take(other, *payloads(one.send(NOW, b"text")))
    assert other.tick(NOW + 40_000, make_rng())
    (copy,) = of(Broadcast, one.tick(NOW + 41_000, make_rng()))
    assert copy.reason is Reason.RESEND
    take(other, copy.payload, now=NOW + 41_000)
    assert other.pace.due_ms(make_rng()) <= NOW + 41_000 + 35_000
    (answer,) = of(Broadcast, other.tick(NOW + 80_000, make_rng()))
    assert not answer.passes
    assert of(Acknowledged, take(one, answer.payload, now=NOW + 80_000))


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_a_rare_line_costs_less_than_600_bytes_among_ten(lost: float) -> None:
    assert measure(300, 10, 300, lost)["bytes_per_line"] < 600
