"""Schedules of a channel: sync messages and filters, gaps that filters show, and repairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.bloom import FilterShape, RollingFilter, filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import Entry, SdsMessage, decode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Behind,
    Broadcast,
    BroadcastReason,
    CaughtUp,
    Event,
    Missing,
    Packet,
    PossiblyAcknowledged,
    Recall,
    RepairAnswered,
    RepairRequested,
)
from storenode.sds.gaps import GAP_GRACE_MS, MAX_NAMINGS, MAX_OFFERS, MAX_SEARCHES
from storenode.sds.limits import (
    ANSWER_EPOCH_MS,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_BYTES_PER_REQUESTER,
    MAX_BEHIND_PEERS,
    MAX_COMPARED_PEERS,
    MAX_EXPLAINED_IDS,
    MAX_HEADS,
    MAX_PENDING_ANSWERS,
    MAX_RECALLED_AT_ONCE,
)
from storenode.sds.log import MessageLog
from storenode.sds.repair import answer_delay_ms, may_answer, number_of, request_delay_ms
from storenode.sds.schedule import SyncTimer
from tests.unit.sds.worlds import (
    CHANNEL,
    NOW,
    QUICK_REPAIR,
    SMALL,
    answers,
    channel,
    config,
    delivered,
    grows_when_written,
    later,
    log_ids,
    make_rng,
    of,
    payloads,
    take,
    wire,
)

LATER = NOW + 60_000
NAMING: Final[dict[str, Any]] = {"name_heads": True, "filter_every": 200}


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


def test_what_a_peer_lacks_is_named_a_few_times() -> None:
    me = channel(gap_entries=4, history_entries=1)
    take(me, wire("gap", lamport=NOW), wire("newer", after=["gap"], lamport=NOW + 1))
    take(me, wire("sync", seen=["newer"], sender="b", content=None, lamport=LATER), now=LATER)
    named = []
    for _ in range(MAX_NAMINGS + 2):
        message = decode_message(payloads(me.send_sync(LATER))[0])
        named.append([entry.message_id for entry in message.history])
    assert named == [["gap", "newer"]] * MAX_NAMINGS + [["newer"]] * 2


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
    assert first.reason is again.reason is BroadcastReason.SYNC
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
    assert copy.reason is BroadcastReason.RESEND
    take(other, copy.payload, now=NOW + 41_000)
    assert other.pace.due_ms(make_rng()) <= NOW + 41_000 + 35_000
    (answer,) = of(Broadcast, other.tick(NOW + 80_000, make_rng()))
    assert not answer.passes
    assert of(Acknowledged, take(one, answer.payload, now=NOW + 80_000))


def test_a_rare_line_costs_less_than_600_bytes_among_ten() -> None:
    """Check that repairs and filters are rare too, where a tenth of the broadcasts is lost."""
    rng, lines, stored, sizes = make_rng(1), 300, dict[str, Packet](), list[int]()
    people = [MessageChannel(ChannelConfig(CHANNEL, f"p{n}"), NOW, rng) for n in range(10)]
    under_way: list[tuple[int, int, Packet]] = []

    def carry(who: int, now: int, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Missing):
                found = [stored[each.message_id] for each in event.messages]
                under_way.extend((now + 100, who, packet) for packet in found)
            elif isinstance(event, Broadcast):
                packet = Packet(event.payload)
                if not event.passes:
                    packet = Packet(event.payload, sha256(event.payload).digest())
                    stored[event.message_id] = packet
                    people[who].published(event.message_id, packet.hint)
                    sizes.append(len(event.payload))
                reached = [n for n in range(len(people)) if n != who and rng.random() >= 0.1]
                under_way.extend((now + 100, other, packet) for other in reached)

    def run(now: int, until: int) -> None:
        while True:
            due = [each.next_due_ms(rng) for each in people]
            now = max(now, min([*due, *(at for at, *_ in under_way[:1])]))
            if now >= until:
                return
            while under_way and under_way[0][0] <= now:
                _, who, packet = under_way.pop(0)
                carry(who, now, people[who].receive(now, [packet]))
            for who, at in enumerate(due):
                if at <= now:
                    carry(who, now, people[who].tick(now + 1, rng))

    said = NOW
    for number in range(lines):
        before, said = said, NOW + int((number + rng.random()) * 300_000)
        run(before, said)
        who = rng.randrange(len(people))
        carry(who, said, people[who].send(said, b"%010d" % number))
    run(said, said + 3_600_000)
    assert all(len(each.log) == lines for each in people)
    assert sum(sizes) / lines < 600


MINUTE = 60_000


def telling(sender: str = "me", **given: object) -> MessageChannel:
    """Return a channel as an application gets it, without repair by others."""
    config = ChannelConfig(CHANNEL, sender, **({"repair": None} | given))  # type: ignore[arg-type]
    return MessageChannel(config, NOW, make_rng())


def sent(channel: MessageChannel, now: int = NOW) -> SdsMessage:
    return decode_message(payloads(channel.send(now, b"ten bytes."))[0])


def names(message: SdsMessage) -> list[str]:
    return [entry.message_id for entry in message.history]


def quiet(channel: MessageChannel, until: int, start: int = NOW) -> list[tuple[int, SdsMessage]]:
    """Return the sync messages of a channel where nothing else happens, with their times."""
    rng, found, now = random.Random(1), [], start
    while (now := max(channel.next_due_ms(rng), now + 1)) <= until:
        syncs = [
            x for x in of(Broadcast, channel.tick(now, rng)) if x.reason is BroadcastReason.SYNC
        ]
        found += [(now, decode_message(event.payload)) for event in syncs]
    return found


def test_a_line_of_chat_is_short_and_the_two_hundredth_carries_the_filter() -> None:
    me, peer = telling(), telling("peer")
    sizes, shown = [], []
    for number in range(200):
        (packet,) = payloads(peer.send(NOW + 2 * number, b"ten bytes."))
        take(me, packet, now=NOW + 2 * number)
        (packet,) = payloads(me.send(NOW + 2 * number + 1, b"ten bytes."))
        take(peer, packet, now=NOW + 2 * number + 1)
        sizes.append(len(packet))
        shown.append(decode_message(packet).bloom_filter is not None)
    assert [number for number, each in enumerate(shown) if each] == [199]
    assert sum(sizes) / len(sizes) < 600
    assert len(me.outgoing) == 1


def test_what_nothing_names_is_named_however_much_followed_it() -> None:
    alice, carol = telling("alice", gap_entries=0), telling("carol", gap_entries=0)
    for member in (alice, carol):
        take(member, wire("b0", sender="bob", lamport=NOW + 2))
    take(alice, wire("lost", sender="dave", lamport=NOW))
    for number in range(1, 10):
        after = [f"b{number - 1}"]
        for member in (alice, carol):
            take(member, wire(f"b{number}", after=after, sender="bob", lamport=NOW + 2 + number))
    (packet,) = payloads(alice.send_sync(NOW + 20))
    assert decode_message(packet).bloom_filter is None
    take(carol, packet)
    assert [each.message_id for each in carol.missing()] == ["lost"]
    message = sent(alice, NOW + 30)
    assert {"lost", "b9"} <= set(names(message))
    assert list(alice.heads) == [message.message_id]


def test_what_was_named_before_it_came_is_no_head() -> None:
    me = telling(lost_after_ms=1_000)
    take(me, wire("names it", after=["late"], lamport=NOW + 1))
    me.tick(NOW + 1_500, make_rng())
    assert delivered(take(me, wire("late"), now=NOW + 2_000)) == ["late"]
    assert list(me.heads) == ["names it"]


def test_all_that_no_participant_acknowledged_is_named_once() -> None:
    me = telling(history_entries=1)
    for number in range(5):
        after = [f"m{number - 1}"] if number else []
        take(me, wire(f"m{number}", after=after, lamport=NOW + number))
    assert names(sent(me, NOW + 10)) == [f"m{number}" for number in range(5)]
    assert len(names(sent(me, NOW + 11))) == 1


def test_who_is_sent_a_message_again_acknowledges_it_again() -> None:
    me, peer = telling(), telling("peer")
    (packet,) = payloads(peer.send(NOW, b"text", "m"))
    me.receive(NOW, [Packet(packet, b"hint")])
    sent(me)
    me.receive(NOW, [Packet(packet, b"hint")])
    assert not me.pace.owed
    (again,) = payloads(peer.tick(NOW + 30_000, make_rng()))
    me.receive(NOW + 30_000, [Packet(again)])
    me.receive(NOW + 60_000, [Packet(again)])
    assert me.pace.owed == {"m": NOW + 30_000}
    events = take(peer, *payloads(me.send_sync(NOW + 30_000)), now=NOW + 30_000)
    assert of(Acknowledged, events) == [Acknowledged("m", 0.0, "me")]


def test_sync_messages_become_rarer_and_content_makes_them_frequent_again() -> None:
    me = telling()
    take(me, wire("m"))
    times = [now for now, _ in quiet(me, NOW + 120 * MINUTE)]
    gaps = [(b - a) / MINUTE for a, b in zip([NOW, *times], times, strict=False)]
    assert 1 / 4 <= gaps[0] <= 35 / 60
    assert all(4 <= gap <= 10 for gap in gaps[1:])
    start = NOW + 120 * MINUTE
    take(me, wire("more", lamport=start), now=start)
    (first, *_) = [now for now, _ in quiet(me, start + 5 * MINUTE, start)]
    assert first <= start + 40_000


def test_a_line_in_a_slow_channel_names_the_heads_alone() -> None:
    me = telling()
    for number in range(2):
        take(me, wire(f"m{number}", after=[f"m{n}" for n in range(number)], lamport=NOW + number))
    for after_ms, named in ((1_000, ["m0", "m1"]), (10 * MINUTE, None)):
        last = names(sent(me, NOW + after_ms))
        assert last == named if named else len(last) == 1


def test_a_sync_message_that_lacks_a_head_is_answered_soon() -> None:
    me = telling()
    mine = sent(me).message_id
    quiet(me, NOW + 60 * MINUTE)
    start = NOW + 60 * MINUTE
    take(me, wire("s", content=None, sender="b", after=[mine], lamport=start), now=start)
    assert not me.pace.due_ms(make_rng()) <= start + 40_000
    take(me, wire("s2", content=None, sender="b", lamport=start), now=start)
    assert me.pace.due_ms(make_rng()) <= start + 40_000


def test_a_filter_is_shown_when_no_participant_has_shown_one_for_long() -> None:
    me = telling(filter_every_ms=60 * MINUTE, filter=SMALL)
    sent(me)
    shown = [now for now, each in quiet(me, NOW + 200 * MINUTE) if each.bloom_filter]
    assert len(shown) == 3
    assert all(b - a >= 60 * MINUTE for a, b in pairwise([NOW, *shown]))
    start = NOW + 200 * MINUTE
    sync = wire("s", content=None, sender="b", seen=[], lamport=start)
    take(me, sync, now=start)
    shown = [now for now, each in quiet(me, start + 100 * MINUTE, start) if each.bloom_filter]
    assert len(shown) == 1
    assert shown[0] >= start + 60 * MINUTE


def _gives_up(me: MessageChannel) -> None:
    take(me, wire("m", after=["never"]))
    me.abandon(NOW, ["never"])


def _has_many_heads(me: MessageChannel) -> None:
    for number in range(MAX_HEADS + 1):
        take(me, wire(f"m{number}", lamport=NOW + number))


@pytest.mark.parametrize("happens", [_gives_up, _has_many_heads])
def test_the_filter_goes_along_when_histories_do_not_suffice(
    happens: Callable[[MessageChannel], None],
) -> None:
    me = telling()
    assert sent(me).bloom_filter is None
    happens(me)
    assert sent(me).bloom_filter is not None
    assert sent(me).bloom_filter is None


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


# Gaps that filters of peers show

TINY = FilterShape(40, 1e-6)


def shown(ids: list[str], shape: FilterShape = SMALL, at: int = NOW, sender: str = "peer") -> bytes:
    name = f"s{at}{sender}"
    return wire(name, content=None, bloom_filter=filter_of(shape, ids), lamport=at, sender=sender)


def test_filters_are_not_compared_where_that_is_off() -> None:
    me = channel(behind_after_ms=None)
    take(me, wire("a"), shown(["a", "hidden"]))
    assert of(Behind, later(me, 10, 20)) == []


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
    assert of(Behind, [*events, *later(me, 1, 10, 19)]) == [], "it may be on its way"
    behind = of(Behind, later(me, 20))
    if lacking := holes - theirs:
        assert [each.searches for each in behind] == [1]
        assert 1 <= behind[0].at_least == me.lacks.at_least() <= len(lacking)
    else:
        assert behind == []
    take(me, *[wire(each, lamport=NOW + 1) for each in holes], now=NOW + 25_000)
    assert len(of(CaughtUp, later(me, 37, 50))) == len(behind)
    assert (me.lacks.at_least(), me.lacks.peers) == (0, {})


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


# Times and groups of SDS-Repair

CONFIG = RepairConfig()


def test_delays_follow_from_hashes() -> None:
    def number(text: str) -> int:
        return int(sha256(text.encode()).hexdigest()[:16], 16)

    assert number_of("alice") == number("alice")
    expected = number("alicem") % 90_000 + 30_000
    assert request_delay_ms(CONFIG, "alice", "m") == expected
    distance = number("alice") ^ number("bob")
    assert answer_delay_ms(CONFIG, "alice", "bob", "m") == distance * number("m") % 120_000
    assert answer_delay_ms(CONFIG, "bob", "bob", "m") == 0


def test_one_group_of_several_answers_and_the_sender_always() -> None:
    config = RepairConfig(groups=4)
    chosen = [name for name in map(str, range(400)) if may_answer(config, name, "bob", "m")]
    assert 60 < len(chosen) < 140
    assert may_answer(config, "bob", "bob", "m")
    assert all(may_answer(CONFIG, str(n), "bob", "m") for n in range(20))


def test_an_answer_is_the_message_itself() -> None:
    me, you = channel("me", repair=QUICK_REPAIR), channel("you")
    original = wire("theirs", after=["cause"], sender="bob", seen=["cause"])
    take(me, wire("cause"), original)
    take(me, wire("ask", sender="carol", content=None, asks=["theirs", "unknown"]))
    (sent,) = of(Broadcast, answers(me, NOW + 400, original))
    assert sent.reason is BroadcastReason.REPAIR
    assert decode_message(sent.payload) == decode_message(original).bare()
    assert delivered(take(you, wire("cause"), sent.payload)) == ["cause", "theirs"]
    assert me.counts.repair_requests_ignored == 1
    assert me.recalled([decode_message(wire("unknown"))]) == [], "it is not in the log"
    assert me.recalled([decode_message(wire("theirs", content=b"forged"))]) == []
    take(me, wire("again", content=None, sender="carol", asks=["theirs"]), now=NOW + 450)
    assert of(Recall, me.tick(NOW + 499, make_rng())) == [], "it was answered a moment ago"


def test_a_request_that_comes_while_its_answer_is_read_is_answered_with_it() -> None:
    me, old = channel("me", repair=QUICK_REPAIR), wire("old", sender="bob")
    take(me, old, wire("ask", content=None, sender="carol", asks=["old"]))
    assert of(Recall, me.tick(NOW + 400, make_rng()))
    take(me, wire("again", content=None, sender="carol", asks=["old"]), now=NOW + 600)
    assert of(RepairAnswered, me.recalled([decode_message(old)]))
    assert of(Recall, me.tick(NOW + 5_000, make_rng())) == []


def test_anothers_request_puts_ours_off() -> None:
    me = channel(repair=QUICK_REPAIR)
    take(me, wire("b", after=[Entry("a", b"h", "bob")]))
    first = me.incoming.request_due_ms()
    take(me, wire("ask", content=None, sender="carol", asks=["a"]), now=NOW + 90)
    assert me.incoming.request_due_ms() == first + 90


def test_the_older_revision_asks_for_nothing() -> None:
    me = channel(older_revision=True, repair=QUICK_REPAIR, sync_min_ms=10**9, sync_max_ms=10**9)
    take(me, wire("a", after=["missing"]))
    assert not of(Broadcast, later(me, *range(1, 60)))
    assert not of(RepairRequested, me.send(NOW + 60_000, b"text"))


def test_requests_ride_on_content_and_name_three_at_most() -> None:
    me = channel(repair=QUICK_REPAIR)
    take(me, wire("b", after=[f"a{n}" for n in range(5)]))
    events = me.send(NOW + 400, b"text", "mine")
    (asked,) = of(RepairRequested, events)
    assert (len(asked.message_ids), asked.carrier) == (3, "mine")
    (sent,) = of(Broadcast, events)
    request = decode_message(sent.payload).repair_request
    assert tuple(entry.message_id for entry in request) == asked.message_ids
    (rest,) = of(RepairRequested, me.tick(NOW + 1_400, make_rng()))
    assert len(rest.message_ids) == 3
    assert {f"a{n}" for n in range(5)} == {*asked.message_ids, *rest.message_ids}


def test_a_recall_waits_as_an_answer_does_and_is_cancelled_by_anothers() -> None:
    me = channel(repair=QUICK_REPAIR)
    old = wire("old", sender="bob")
    take(me, old, wire("new"))
    asked = wire("ask", content=None, sender="carol", asks=[Entry("old", None, "bob")])
    take(me, asked)
    due = NOW + answer_delay_ms(RepairConfig(100, 400), "me", "bob", "old")
    assert me.answers.next_due_ms() == due
    assert of(Recall, me.tick(due - 1, make_rng())) == []
    take(me, old)
    assert of(Recall, me.tick(NOW + 400, make_rng())) == []


def test_only_the_group_of_the_true_sender_answers() -> None:
    config = RepairConfig(100, 400, groups=64, kept_messages=0)
    me = channel(repair=config)
    me.log = MessageLog(me.log.salt, kept=10)
    names = [f"m{number:03}" for number in range(600)]
    stored = [wire(name, sender="bob") for name in names]
    take(me, *stored)
    asked = [Entry(name) for name in names]
    for at in range(0, 600, 32):
        take(me, wire(f"ask{at}", content=None, sender="carol", asks=asked[at : at + 32]))
    found = [event for at in range(20) for event in answers(me, NOW + 1_000 * at + 400, *stored)]
    answered = [event.message_id for event in of(RepairAnswered, found)]
    assert sorted(answered) == [name for name in names if may_answer(config, "me", "bob", name)]
    assert 0 < len(answered) < 40


def test_who_asks_for_everything_has_32_messages_a_second_read() -> None:
    me = channel(repair=QUICK_REPAIR)
    me.log = MessageLog(me.log.salt, kept=10)
    names = [f"m{number}" for number in range(1_500)]
    take(me, *(wire(name, lamport=NOW + at, sender="me") for at, name in enumerate(names)))
    asks = [names[at : at + 32] for at in range(0, 1_500, 32)]
    take(me, *(wire(f"a{at}", content=None, asks=some) for at, some in enumerate(asks)))
    assert len(me.answers.pending) == MAX_PENDING_ANSWERS
    assert me.counts.repair_requests_ignored == 1_500 - MAX_PENDING_ANSWERS
    recalled = [of(Recall, me.tick(NOW + 1_000 + ms, make_rng())) for ms in range(0, 3_000, 100)]
    ids = [message_id for events in recalled for each in events for message_id in each.message_ids]
    assert len(ids) == len(set(ids)) == 3 * MAX_RECALLED_AT_ONCE
    assert set(ids) <= set(names)


def test_an_answer_that_has_become_too_large_is_left_out() -> None:
    # Entries of the older revision take less room than those that we send.
    me = channel(repair=QUICK_REPAIR)
    causes = [f"c{number}" for number in range(200)]
    full = grows_when_written(causes)
    take(me, *map(wire, causes), full)
    take(me, wire("ask", content=None, sender="carol", asks=["full", "c0"]))
    found = of(RepairAnswered, answers(me, NOW + 400, full, wire("c0")))
    assert [event.message_id for event in found] == ["c0"]


def test_what_is_sent_again_is_bounded_for_each_who_asks_and_in_all() -> None:
    me = channel(repair=QUICK_REPAIR)
    names = [f"m{number}" for number in range(64)]
    stored = [wire(name, content=bytes(100_000)) for name in names]
    take(me, *stored)

    def answered(who: str, now_ms: int) -> int:
        for start in (0, 32):
            asked = names[start : start + 32]
            take(me, wire("ask", sender=who, content=None, asks=asked), now=now_ms)
        later = (answers(me, now_ms + 400 + step, *stored) for step in (0, 1_000))
        return sum(len(each.payload) for events in later for each in of(Broadcast, events))

    start_ms = (NOW // ANSWER_EPOCH_MS + 1) * ANSWER_EPOCH_MS
    most, of_one = MAX_ANSWER_BYTES, MAX_ANSWER_BYTES_PER_REQUESTER
    found = [answered(f"p{number}", start_ms + 3_000 * number) for number in range(6)]
    assert all(of_one - 101_000 < each <= of_one for each in found[:3])
    assert most - 101_000 < sum(found) <= most
    assert answered("p0", start_ms + ANSWER_EPOCH_MS) > of_one - 101_000
    assert me.counts.repair_requests_ignored > 0
