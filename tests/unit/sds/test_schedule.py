"""Histories without filters, the schedule of messages and filters, and what peers lack."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest

from bench.lines import measure
from storenode.sds.bloom import FilterShape, filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.codec import SdsMessage, decode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    Packet,
    PossiblyAcknowledged,
    RepairAnswered,
)
from storenode.sds.gaps import GAP_GRACE_MS, MAX_OFFERS, MAX_TELLINGS
from storenode.sds.limits import MAX_HEADS
from storenode.sds.schedule import SyncTimer
from tests.unit.sds.worlds import (
    CHANNEL,
    NOW,
    SMALL,
    channel,
    config,
    delivered,
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
    for _ in range(MAX_TELLINGS + 2):
        message = decode_message(payloads(me.send_sync(LATER))[0])
        named.append([entry.message_id for entry in message.history])
    assert named == [["gap", "newer"]] * MAX_TELLINGS + [["newer"]] * 2


def test_who_lacks_what_is_known_while_its_filters_show_that() -> None:
    me = channel(gap_entries=4)
    take(me, wire("gap", lamport=NOW), wire("newer", after=["gap"], lamport=NOW + 1))
    for second, seen, lacks in ((60, [], 2), (61, ["newer"], 1), (62, ["newer", "gap"], 0)):
        now = NOW + second * 1_000
        sync = wire(f"s{second}", seen=seen, sender="b", content=None, lamport=now)
        take(me, sync, now=now)
        assert me.gaps.behind() == ({"b": lacks} if lacks else {})


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


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_a_rare_line_costs_less_than_600_bytes_among_ten(lost: float) -> None:
    assert measure(300, 10, 300, lost)["bytes_per_line"] < 600


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
    for later, named in ((1_000, ["m0", "m1"]), (10 * MINUTE, None)):
        message = decode_message(payloads(me.send(NOW + later, b"text"))[0])
        last = [entry.message_id for entry in message.history]
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
