"""Sending and receiving in a channel, hostile participants, and the log and filters of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import permutations
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.message.varint import delimited
from storenode.sds.bloom import FilterShape, RollingFilter, filter_of, holds
from storenode.sds.channel import ChannelFullError, MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import (
    Entry,
    MessageError,
    MessageKind,
    SdsMessage,
    decode_message,
    encode_message,
    encode_older,
)
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    ClockCapped,
    EphemeralReceived,
    Forged,
    GaveUp,
    Lost,
    Message,
    Missing,
    Packet,
    PacketRefusal,
    PossiblyAcknowledged,
    Received,
    Refused,
    Sent,
    Withdrawn,
)
from storenode.sds.limits import MAX_CAUSES, MAX_CLOCK, MAX_LOST_IDS, MAX_WAITING_SYNCS
from storenode.sds.log import LogEntry, MessageLog
from storenode.sds.proofs import content_id
from tests.unit.sds.worlds import (
    CHANNEL,
    NOW,
    QUICK_REPAIR,
    SMALL,
    answers,
    channel,
    delivered,
    later,
    log_ids,
    make_rng,
    of,
    payloads,
    take,
    wire,
)


def test_a_message_carries_clock_history_and_the_filter_without_itself() -> None:
    me = channel(history_entries=2)
    sent = [decode_message(payloads(me.send(NOW, b"%d" % n, f"m{n}"))[0]) for n in range(4)]
    assert [message.lamport for message in sent] == [NOW + 1, NOW + 2, NOW + 3, NOW + 4]
    assert sent[3].history == (Entry("m1", None, "me"), Entry("m2", None, "me"))
    assert len({message.bloom_filter for message in sent}) == 4
    assert not any(sent[0].bloom_filter or b"x")
    assert (me.clock.value, len(me.outgoing), len(me.filter)) == (NOW + 4, 4, 4)
    later = decode_message(payloads(me.send(NOW + 99, b"later"))[0])
    assert later.lamport == NOW + 99


def test_a_sync_message_is_kept_nowhere() -> None:
    me, you = channel("me"), channel("you")
    assert of(Broadcast, me.send_sync(NOW)) == []
    first = payloads(me.send(NOW, b"text", "m"))
    sync = payloads(me.send_sync(NOW))
    message = decode_message(sync[0])
    assert (message.kind, message.content, message.history) == (
        MessageKind.SYNC,
        None,
        (Entry("m", None, "me"),),
    )
    assert message.bloom_filter
    assert message.lamport == NOW + 3
    assert (len(me.outgoing), log_ids(me), len(me.filter)) == (1, ["m"], 1)
    events = take(you, *sync)
    assert [event.kind for event in of(Received, events)] == [MessageKind.SYNC]
    assert [entry.message_id for entry in you.missing()] == ["m"]
    assert delivered(take(you, *first)) == ["m"]
    assert (len(you.incoming), log_ids(you), len(you.filter)) == (0, ["m"], 1)
    assert you.clock.value == NOW + 2


def test_a_history_acknowledges_and_a_filter_possibly() -> None:
    me = channel(possible_acks=3)
    for name in ("a", "b", "c"):
        me.send(NOW, b"text", name)
    events = take(me, wire("x", after=["b"], seen=["b", "c"]))
    assert of(Acknowledged, events) == [Acknowledged("b", 0.0, "peer")]
    (possible,) = of(PossiblyAcknowledged, events)
    assert (possible.message_id, possible.filters) == ("c", 1)
    assert 0 < possible.error_probability < 1e-10
    take(me, wire("y", seen=["c"]))
    (sure,) = of(Acknowledged, take(me, wire("z", seen=["c"])))
    assert sure.message_id == "c"
    assert 0 < sure.error_probability <= possible.error_probability
    assert list(me.outgoing.by_id) == ["a"]


def test_full_filters_alone_never_acknowledge() -> None:
    me = channel(possible_acks=2, max_ack_error=0.01)
    me.send(NOW, b"text", "a")
    full = b"\xff" * SMALL.size_bytes
    for number in range(5):
        events = take(me, wire(f"x{number}", bloom_filter=full))
        assert of(Acknowledged, events) == []
        assert [e.error_probability for e in of(PossiblyAcknowledged, events)] == [1.0]


def test_resend_periods_differ_and_the_unacknowledged_go_first() -> None:
    me = channel(resend_ms=1_000, resend_possible_ms=5_000, max_sends=100)
    me.send(NOW, b"text", "possible")
    me.send(NOW, b"text", "nobody")
    take(me, wire("x", seen=["possible"]))
    times: dict[str, list[int]] = {"possible": [], "nobody": []}
    for now in range(0, 16_000, 100):
        sent = [
            e
            for e in of(Broadcast, me.tick(NOW + now, make_rng()))
            if e.reason is BroadcastReason.RESEND
        ]
        for event in sent:
            times[event.message_id].append(now)
        if len(sent) == 2:
            assert [event.message_id for event in sent] == ["nobody", "possible"]
    assert times == {
        "possible": [5_000, 10_000, 15_000],
        "nobody": list(range(1_000, 16_000, 1_000)),
    }


def test_a_resend_is_the_same_message_with_a_fresh_filter() -> None:
    me, you = channel("me"), channel("you")
    first = decode_message(payloads(me.send(NOW, b"text", "a"))[0])
    (resend, *_) = of(Broadcast, me.tick(NOW + 30_000, make_rng()))
    assert resend.passes, "a store keeps one copy"
    again = decode_message(resend.payload)
    assert again.bare() == first.bare()
    assert take(you, *payloads(me.send(NOW + 30_000, b"more")))
    assert again.bloom_filter != first.bloom_filter


def test_missing_messages_are_reported_again_until_they_are_lost() -> None:
    me = channel(missing_every_ms=1_000, lost_after_ms=3_500)
    take(me, wire("b", after=["a"]))
    reported, lost = [], []
    for now in range(NOW, NOW + 6_000, 500):
        events = me.tick(now, make_rng())
        reported += [now - NOW for _ in of(Missing, events)]
        lost += [now - NOW for _ in of(Lost, events)]
    assert (reported, lost) == ([1_000, 2_000, 3_000], [4_000])


def test_the_older_revision_is_sent_when_configured() -> None:
    old, new = channel("old", older_revision=True), channel("new")
    packets = [payloads(old.send(NOW, b"text", name))[0] for name in ("dep1", "15950b22")]
    packets.append(payloads(old.send(NOW, b"text", "third"))[0])
    assert decode_message(packets[2]).history == (Entry("dep1"), Entry("15950b22"))
    assert delivered(take(new, *packets)) == ["dep1", "15950b22", "third"]


def test_ticks_before_the_next_due_time_do_nothing() -> None:
    me, rng = channel(), make_rng(1)
    me.send(NOW, b"text", "a")
    take(me, wire("b", after=["c"]))
    now = NOW
    for _ in range(20):
        due = me.next_due_ms(rng)
        assert due > now
        assert me.tick(due - 1, rng) == []
        assert me.tick(due, rng) != []
        now = due


def test_what_cannot_be_sent_is_refused_and_changes_nothing() -> None:
    me = channel(max_outgoing=2, filter_every=10, repair=QUICK_REPAIR)
    me.send(NOW, b"text", "a")
    take(me, wire("b", after=["missing"]))
    me.showing.due = True
    for message_id in ("a", "b", "", "x" * 257):
        with pytest.raises(ValueError, match=r"ID|message_id"):
            me.send(NOW, b"text", message_id)
    for content in (b"", b"x" * 200_000):
        with pytest.raises(ValueError, match="message"):
            me.send(NOW + 1_000, content)
    with pytest.raises(ValueError, match="content"):
        me.send_ephemeral(b"")
    assert log_ids(me) == ["a"]
    sent = decode_message(payloads(me.send(NOW + 1_000, b"text"))[0])
    assert sent.bloom_filter
    assert [entry.message_id for entry in sent.repair_request] == ["missing"]
    with pytest.raises(ChannelFullError, match="2 messages are unacknowledged"):
        me.send(NOW, b"text")
    me.check()


@pytest.mark.parametrize(
    "given",
    [
        {"channel_id": ""},
        {"sender_id": "x" * 257},
        {"history_entries": 0},
        {"history_entries": 255},
        {"gap_entries": -1},
        {"gap_window": 257},
        {"resend_ms": 0},
        {"resend_possible_ms": 1},
        {"sync_min_ms": 50_000},
        {"sync_owed_ms": 0},
        {"possible_acks": 0},
        {"max_sends": 0},
        {"max_missing": 0},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(given: dict[str, object]) -> None:
    names: dict[str, object] = {"channel_id": CHANNEL, "sender_id": "me"} | given
    with pytest.raises(ValueError, match=r"\w"):
        ChannelConfig(**names)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [(5, 5, 1), (-1, 5, 1), (1, 5, 0)])
def test_a_repair_that_cannot_work_is_refused(given: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="repair"):
        RepairConfig(*given)


def test_what_is_missing_is_looked_for_after_a_rest_before_it_is_lost() -> None:
    me = channel(missing_every_ms=1_000, lost_after_ms=60_000)
    take(me, wire("b", after=["a"]))
    me.tick(NOW + 1_000, make_rng())
    later = NOW + 3_600_000
    events = me.tick(later, make_rng())
    assert of(Missing, events)
    lost = []
    for now in range(later, later + 40_000, 1_000):
        lost += [now - later for _ in of(Lost, me.tick(now, make_rng()))]
    assert lost == [31_000]


@pytest.mark.parametrize("kind", [b"text", None])
def test_one_filter_seen_twice_is_one_witness(kind: bytes | None) -> None:
    me = channel()
    me.send(NOW, b"mine", "mine")
    packet = wire("theirs", content=kind, seen=["mine"])
    first = of(PossiblyAcknowledged, take(me, packet))
    assert [event.filters for event in first] == [1]
    again = take(me, packet, packet)
    assert of(Acknowledged, again) == []
    assert "mine" in me.outgoing.by_id
    other = take(me, wire("other", seen=["mine", "theirs"]))
    assert [event.message_id for event in of(Acknowledged, other)] == ["mine"]


@pytest.mark.parametrize("size", [0, 1, SMALL.size_bytes - 1, SMALL.size_bytes + 8])
def test_a_filter_of_another_size_says_nothing_and_loses_nothing(size: int) -> None:
    me = channel()
    me.send(NOW, b"mine", "mine")
    events = take(me, wire("theirs", bloom_filter=b"\xff" * size))
    assert delivered(events) == ["theirs"]
    assert of(PossiblyAcknowledged, events) == []
    assert of(Acknowledged, events) == []
    assert me.counts.filters_unreadable == (1 if size else 0)


def test_ephemeral_messages_are_handed_out_and_leave_no_trace() -> None:
    me, you = channel("me"), channel("you")
    sent = payloads(me.send_ephemeral(b"typing"))
    events = take(you, *sent)
    assert [(event.sender_id, event.content) for event in of(EphemeralReceived, events)] == [
        ("me", b"typing")
    ]
    assert (len(you.log), len(you.filter), len(me.outgoing), len(me.log)) == (0, 0, 0, 0)
    message = decode_message(sent[0])
    assert (message.lamport, message.history, message.bloom_filter) == (None, (), None)


def test_the_largest_clock_leaves_room_for_ours() -> None:
    me = channel(max_clock_ahead_ms=5_000)
    events = take(me, wire("hostile", lamport=MAX_CLOCK))
    assert [event.lamport for event in of(ClockCapped, events)] == [MAX_CLOCK]
    assert me.counts.clocks_capped == 1
    assert me.clock.value == NOW + 5_000
    mine = decode_message(payloads(me.send(NOW, b"mine", "mine"))[0])
    assert mine.lamport == NOW + 5_001
    assert mine.history == ()
    assert log_ids(me) == ["mine", "hostile"]


def test_all_hints_for_a_missing_message_are_reported_and_its_id() -> None:
    me = channel()
    take(me, wire("second", after=[Entry("first", b"old", "peer")]))
    take(me, wire("third", after=[Entry("first", b"new", None)]))
    (missing,) = me.missing()
    assert (missing.message_id, missing.hints, missing.sender_id) == (
        "first",
        (b"old", b"new"),
        "peer",
    )


def test_giving_up_is_not_acknowledgement() -> None:
    me = channel(max_sends=3)
    me.send(NOW, b"mine", "mine")
    seen = [event for now in range(0, 200_000, 1_000) for event in me.tick(NOW + now, make_rng())]
    resent = [event for event in of(Broadcast, seen) if event.reason is BroadcastReason.RESEND]
    assert len(resent) == 2
    assert of(GaveUp, seen) == [GaveUp("mine", 3)]
    assert of(Acknowledged, seen) == []
    assert of(Sent, seen) == []
    assert len(me.outgoing) == 0


# Several messages claim one ID: the proven one is in the log, whichever came first


def genuine(text: bytes = b"pay alice", *, after: Sequence[str] = (), lamport: int = NOW) -> bytes:
    history = tuple(Entry(name) for name in after)
    message_id = content_id(CHANNEL, "peer", lamport, history, text)
    return encode_message(SdsMessage(CHANNEL, message_id, "peer", lamport, history, content=text))


def forged(of_payload: bytes, text: bytes = b"pay mallory", **changed: object) -> bytes:
    return encode_message(replace(decode_message(of_payload), content=text, **changed))  # type: ignore[arg-type]


def id_of(payload: bytes) -> str:
    return decode_message(payload).message_id


def contents(me: MessageChannel, events: Sequence[object]) -> dict[str, bytes]:
    """Return the log as an application has it that follows the events."""
    shown: dict[str, bytes] = {}
    for event in events:
        if isinstance(event, Withdrawn):
            del shown[event.message_id]
        elif isinstance(event, Message):
            assert event.message_id not in shown
            shown[event.message_id] = event.content
    assert shown.keys() == set(log_ids(me))
    return shown


def test_no_participant_is_given_a_forged_message_after_the_genuine_one_passed_by() -> None:
    cause = genuine(b"cause", lamport=NOW - 5)
    true = genuine(after=[id_of(cause)])
    false = forged(true, history=())
    me = channel(repair=QUICK_REPAIR, max_waiting=1)
    take(me, wire("waits", after=["x"]), false, wire("asks", asks=[id_of(true)]))
    assert [each.reason for each in of(Refused, take(me, true))] == [PacketRefusal.BUFFER_FULL]
    assert not answers(me, NOW + 1_000, false)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_the_proven_message_wins_in_any_order(order: tuple[int, ...]) -> None:
    true = genuine()
    claims = [true, forged(true), forged(true, b"pay eve", lamport=NOW + 9), true]
    me = channel()
    events = take(me, *[claims[at] for at in order])
    assert contents(me, events) == {id_of(true): b"pay alice"}
    assert of(Message, events)[-1].proof is Proof.MESSAGE
    assert me.counts.forged == 2
    assert len(of(Forged, events)) + len(of(Withdrawn, events)) == 2
    assert take(me, *claims) == []


def test_a_copy_with_invented_causes_does_not_hold_the_content_up() -> None:
    message_id = sha256(b"yes").hexdigest()
    invented = wire(message_id, sender="mallory", content=b"yes", after=["invented"])
    true = wire(message_id, content=b"yes", after=["cause"])
    me = channel(repair=QUICK_REPAIR)
    events = take(me, wire("reply", after=[message_id]), invented, true)
    assert [each.message_id for each in me.missing()] == ["invented"]
    events += take(me, invented, wire("cause"), true, invented)
    reported = [(each.message_id, each.sender_id, each.unmet) for each in of(Message, events)]
    assert reported == [("cause", "peer", ()), (message_id, "peer", ()), ("reply", "peer", ())]
    assert not me.missing()
    assert not me.incoming.wants
    me.check()


def test_between_two_that_prove_nothing_the_first_stays_and_both_are_known() -> None:
    me = channel()
    events = take(
        me, wire("a", content=b"first"), wire("a", content=b"second"), wire("a", content=b"first")
    )
    assert contents(me, events) == {"a": b"first"}
    assert [(each.content, each.certain) for each in of(Forged, events)] == [(b"second", False)]


def test_what_we_sent_ourselves_is_never_replaced() -> None:
    me = channel()
    first = payloads(me.send(NOW, b"mine", "chosen"))[0]
    second = payloads(me.send(NOW + 1, b"also mine"))[0]
    events = take(me, first, forged(first), second, forged(second))
    assert [each.certain for each in of(Forged, events)] == [True, True]
    assert me.counts.echoes == 2
    assert len(log_ids(me)) == 2


def test_a_forged_one_that_waits_makes_room_together_with_what_it_asked_for() -> None:
    true = genuine()
    me = channel(repair=QUICK_REPAIR)
    events = take(me, forged(true, history=(Entry("invented"),)))
    assert me.missing()
    events += take(me, true)
    assert not me.missing()
    assert not of(Withdrawn, events)
    assert contents(me, events) == {id_of(true): b"pay alice"}
    assert me.counts.forged == 1


def test_one_that_left_memory_is_replaced_too() -> None:
    trues = [genuine(b"m%d" % number, lamport=NOW + 10 * number) for number in range(300)]
    me = channel()
    me.log = MessageLog(me.log.salt, kept=10)
    take(me, forged(trues[0]), *trues[1:200], forged(trues[200]), *trues[201:])
    assert len(me.log.older) > 200
    events = take(me, trues[0], trues[200])
    assert len(of(Withdrawn, events)) == 2
    assert len(me.log) == len(trues)
    assert all(id_of(each) in me.log for each in trues)
    assert not take(me, *trues)


# Hostile messages neither stop a channel nor make it grow


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.data())
def test_any_bytes_are_taken_or_refused(noise: bytes, data: st.DataObject) -> None:
    packet = bytearray(wire("a", after=[Entry("b", b"h", "s")], seen=["b"], asks=["c"]))
    place = data.draw(st.integers(0, len(packet) - 1))
    packet[place : place + 3] = noise[:3]
    me = channel(repair=QUICK_REPAIR)
    take(me, noise, bytes(packet))
    me.tick(NOW + 1, make_rng())
    me.check()


def test_what_is_refused_is_counted_and_named_and_its_descendants_wait() -> None:
    me = channel()
    packets = b"", b"\xff", wire("a", room="elsewhere"), wire("x", sender="s" * 257)
    events = take(me, *packets, wire("y", after=["x"]))
    assert [(each.reason, each.message_id) for each in of(Refused, events)] == [
        (PacketRefusal.MALFORMED, None),
        (PacketRefusal.MALFORMED, None),
        (PacketRefusal.FOREIGN, "a"),
        (PacketRefusal.MALFORMED, "x"),
    ]
    assert of(Refused, events)[-1].sentence == "an ID is longer than 256 bytes"
    assert (me.counts.malformed, me.counts.foreign, me.counts.received) == (3, 1, 5)
    assert ("y" in me.incoming.ids, "x" in me.incoming.wants) == (True, True)


@pytest.mark.parametrize(
    "message",
    [
        SdsMessage("room", "", "s", 1, content=b"x"),
        SdsMessage("", "a", "s", 1, content=b"x"),
        SdsMessage("room", "a", "s" * 257, 1, content=b"x"),
        SdsMessage("room", "a", "s"),
        SdsMessage("room", "a", "s", 1, (Entry("é" * 129),)),
        SdsMessage("room", "a", "s", 1, (Entry("b", None, "s" * 257),)),
        SdsMessage("room", "a", "s", 1, content=bytes(150 * 1024)),
    ],
)
def test_messages_past_a_limit_are_refused(message: SdsMessage) -> None:
    with pytest.raises(MessageError):
        decode_message(encode_message(message))


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "bad", [b"", b"\x0a\x02\xff\xfe", b"\xff", b"\x0a\x01a\x1a\x81\x02" + b"s" * 257, b"\x00"]
)
def test_a_bad_repair_request_costs_itself_alone(bad: bytes, older: bool) -> None:
    good = SdsMessage("room", "a", "s", 1, (Entry("é" * 32),), b"f", content=b"x")
    asked = [b"\x0a\x01b", bad, b"\x0a\x01c"]
    payload = encode_older(good) if older else encode_message(good)
    payload += b"".join(delimited(b"\x6a", each) for each in asked)
    message = decode_message(payload)
    assert message == replace(good, repair_request=(Entry("b"), Entry("c")))


def test_a_hint_that_is_too_long_is_ignored_and_its_cause_is_waited_for() -> None:
    me = channel()
    sent = wire("a", after=[Entry("cause", bytes(257)), Entry("other", bytes(256))])
    (missing,) = of(Missing, take(me, sent))
    assert [(each.message_id, each.hints) for each in missing.messages] == [
        ("cause", ()),
        ("other", (bytes(256),)),
    ]
    assert me.counts.malformed == 0


@pytest.mark.parametrize("older", [False, True])
def test_a_history_may_be_as_long_as_all_that_can_be_waited_for(*, older: bool) -> None:
    me = channel(max_missing=10_000, max_missing_of_sender=10_000)
    names = [f"cause{n}" for n in range(5_000)]
    message = SdsMessage("room", "a", "s", NOW, tuple(map(Entry, names)), content=b"x")
    packet = encode_older(message) if older else encode_message(message)
    (missing,) = of(Missing, take(me, packet))
    assert [entry.message_id for entry in missing.messages] == names
    me.receive(NOW, [Packet(wire(name)) for name in names[:-1]])
    assert "a" not in me.log
    assert delivered(take(me, wire(names[-1]))) == [names[-1], "a"]
    longer = SdsMessage("room", "b", "s", NOW, (Entry("a"),) * (MAX_CAUSES + 1), content=b"x")
    packet = encode_older(longer) if older else encode_message(longer)
    assert [each.reason for each in of(Refused, take(me, packet))] == [PacketRefusal.MALFORMED]


def test_repair_requests_past_the_first_256_cost_themselves_alone() -> None:
    asks = tuple(Entry(str(n)) for n in range(257))
    message = SdsMessage("room", "a", "s", 1, repair_request=asks, content=b"x")
    assert decode_message(encode_message(message)) == replace(message, repair_request=asks[:-1])


def test_a_full_incoming_buffer_refuses_and_takes_later() -> None:
    me = channel(max_waiting=10)
    packets = [wire(f"m{n}", after=[f"cause{n}"]) for n in range(11)]
    events = take(me, *packets)
    assert of(Refused, events) == [Refused(PacketRefusal.BUFFER_FULL, "m10")]
    assert (len(me.incoming), me.counts.buffer_full, len(me.filter)) == (10, 1, 10)
    assert delivered(take(me, wire("cause0"))) == ["cause0", "m0"]
    take(me, packets[10])
    assert len(me.incoming) == 10
    assert delivered(take(me, wire("cause10"))) == ["cause10", "m10"]


@pytest.mark.parametrize("bound", [{"max_waiting_bytes": 5_000}, {"max_missing": 20}])
def test_bytes_and_wishes_are_bounded(bound: dict[str, object]) -> None:
    me = channel("me", **bound)
    for number in range(50):
        take(me, wire(f"m{number}", after=[f"c{number}-{n}" for n in range(4)]))
    assert 0 < len(me.incoming) <= 5
    assert len(me.incoming.wants) <= 20


def test_long_ids_count_among_the_bytes_of_what_waits() -> None:
    me, size = channel(max_waiting_bytes=100_000), 0
    causes = [Entry(f"{n:0>256}", bytes(256), f"{n:x>256}") for n in range(20)]
    while not of(Refused, take(me, packet := wire(f"m{len(me.incoming)}", after=causes))):
        size += len(packet)
    assert 0 < size < 100_000
    me.check()


def test_sync_messages_take_half_of_the_wishes_at_most() -> None:
    me = channel(max_missing=100, repair=QUICK_REPAIR)
    for number in range(100):
        take(me, wire(f"s{number}", after=[f"c{number}"], content=None))
    assert len(me.incoming.wants) == 50
    take(me, wire("content", after=["cause"]))
    assert "content" in me.incoming.ids


def test_the_oldest_sync_message_makes_room_and_its_wishes_go() -> None:
    me = channel(repair=QUICK_REPAIR)
    for number in range(MAX_WAITING_SYNCS + 50):
        me.receive(NOW, [Packet(wire(f"s{number}", after=[f"c{number}"], content=None))])
    me.check()
    assert len(me.incoming) == len(me.incoming.wants) == MAX_WAITING_SYNCS
    assert me.incoming.request_due_ms() < inf


def test_what_is_lost_is_forgotten_in_the_end() -> None:
    me = channel(lost_after_ms=10, max_missing=10**6, max_waiting_bytes=10**9)
    for turn in range(MAX_LOST_IDS // 256 + 3):
        now = NOW + turn * 100
        causes = [f"c{turn}-{n}" for n in range(256)]
        me.receive(now, [Packet(wire(f"m{turn}", after=causes))])
        me.tick(now + 50, make_rng())
    assert len(me.lost) == MAX_LOST_IDS
    assert len(me.incoming) == 0


def test_circles_end_quickly_in_log_order_and_name_what_they_came_without() -> None:
    me = channel(max_waiting=5_000)
    packets, expected = [], list[tuple[str, tuple[str, ...]]]()
    for number in range(0, 4_000, 2):
        a, b = f"m{number:05}", f"m{number + 1:05}"
        packets += [wire(a, after=[b, a], lamport=number), wire(b, after=[a], lamport=number + 1)]
        expected += [(a, (b,)), (b, ())]
    me.receive(NOW, [Packet(packet) for packet in packets])
    take(me, wire("descendant", after=["m00001"], lamport=NOW))
    expected.insert(2, ("descendant", ()))
    assert len(me.incoming) == 4_001
    found = of(Message, me.tick(NOW + 5_000, make_rng()))
    assert [(each.message_id, each.unmet) for each in found] == expected
    assert me.counts.circles == 2_000


def test_an_empty_filter_adds_no_more_entries_than_configured() -> None:
    me = channel(gap_entries=4, history_entries=2)
    for number in range(300):
        take(me, wire(f"m{number}", lamport=NOW + number, sender="other"))
    take(me, wire("new", seen=[], content=None, lamport=NOW + 60_000), now=NOW + 60_000)
    assert len(me.gaps.pending) == 128
    (sent,) = of(Broadcast, me.send(NOW + 60_000, b"text"))
    assert len(decode_message(sent.payload).history) == 6


def test_long_ids_of_others_do_not_make_our_messages_too_large() -> None:
    me = channel(history_entries=256)
    for number in range(256):
        long = Entry(f"{number:0256}", bytes(256), "s" * 256)
        packet = wire(long.message_id, sender="s" * 256, lamport=NOW + number)
        me.receive(NOW, [Packet(packet, bytes(256))])
    (sent,) = of(Broadcast, me.send(NOW + 999, bytes(100 * 1024)))
    history = decode_message(sent.payload).history
    assert [int(entry.message_id) for entry in history] == list(range(256 - len(history), 256))
    assert 50 < len(history) < 60
    usual = channel(history_entries=256, max_outgoing=300)
    for _ in range(257):
        (sent,) = of(Broadcast, usual.send(NOW, b"text"))
    assert len(decode_message(sent.payload).history) == 256


def test_long_ids_of_others_do_not_make_our_requests_too_large() -> None:
    me = channel(repair=RepairConfig(100, 400, requests_per_message=256))
    causes = [Entry(f"{number:0256}", bytes(256), "s" * 256) for number in range(256)]
    for start in range(0, 256, 64):
        take(me, wire(f"{start}", after=causes[start : start + 64]))
    (asked,) = of(Broadcast, later(me, 1))
    assert 10 < len(decode_message(asked.payload).repair_request) < 30


def test_a_filter_that_is_left_out_acknowledges_nothing_and_is_still_due() -> None:
    me = channel(filter_every=10, name_heads=True)
    take(me, *[wire(f"m{number}", lamport=NOW + number) for number in range(40)])
    me.showing.due = True
    large = decode_message(payloads(me.send(NOW + 100, bytes(150 * 1024 - SMALL.size_bytes)))[0])
    assert not large.bloom_filter
    named = {entry.message_id for entry in large.history}
    assert me.pace.owed.keys() == {f"m{number}" for number in range(40)} - named
    assert decode_message(payloads(me.send(NOW + 200, b"text"))[0]).bloom_filter


def test_a_large_message_is_sent_again_without_a_filter_if_need_be() -> None:
    me = channel(filter_every=10, max_sends=5)
    room = 150 * 1024 - SMALL.size_bytes
    me.send(NOW, bytes(room), "large")
    (again,) = of(Broadcast, me.tick(NOW + 30_000, make_rng()))[:1]
    message = decode_message(again.payload)
    assert (message.message_id, message.bloom_filter) == ("large", None)


def test_hints_that_are_too_long_are_not_kept() -> None:
    me = channel()
    me.receive(NOW, [Packet(wire("a"), bytes(257))])
    assert [entry.hint for entry in me.log.entries()] == [None]
    me.send(NOW, b"text", "mine")
    with pytest.raises(ValueError, match="hint"):
        me.published("mine", bytes(257))


def test_unavailable_parents_are_given_up_past_a_bound_for_the_sender_and_in_all() -> None:
    me = channel(max_missing=30, max_missing_of_sender=20, repair=QUICK_REPAIR)
    take(me, wire("honest", sender="alice", after=["cause"]))
    names = [f"c{number}" for number in range(50)]
    events = take(me, wire("flood", sender="mallory", after=names))
    assert of(Lost, events) == [Lost(tuple(names[:30]), early=True)]
    assert len(me.incoming.wants) == 21
    for number in range(25):
        causes = [f"d{number}-{n}" for n in range(9)]
        take(me, wire(f"f{number}", sender=f"m{number}", after=causes))
        assert len(me.incoming.wants) <= 30
    assert "cause" in me.incoming.wants
    assert delivered(take(me, wire("cause"))) == ["cause", "honest"]


def test_asking_in_vain_becomes_rarer() -> None:
    me = channel(repair=QUICK_REPAIR, sync_min_ms=10**9, sync_max_ms=10**9, lost_after_ms=None)
    take(me, wire("a", after=[f"c{number}" for number in range(256)]))
    asked = [of(Broadcast, later(me, second)) for second in range(1, 601)]
    assert sum(map(bool, asked[:32])) >= 30
    assert sum(map(bool, asked[-300:])) <= 6
    take(me, wire("c0"), now=NOW + 600_000)
    assert sum(bool(of(Broadcast, later(me, second))) for second in range(601, 621)) == 20


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_match_a_sorted_list(seed: int) -> None:
    rng, log = make_rng(seed), MessageLog(bytes(16), kept=40)
    came: list[tuple[int, str]] = []
    here: list[tuple[int, str]] = []
    for number in range(1_500):
        lamport = number * 3 + rng.randrange(8) if rng.random() < 0.7 else rng.randrange(4_500)
        key = lamport, f"{rng.randrange(10**9)}"
        assert log.insert(LogEntry(*key, "s", b"hint")) == sum(each > key for each in here)
        came.append(key)
        here = sorted(came[-len(list(log.entries())) :])
        if number % 10 == 9:
            gone = rng.choice(here)
            came.remove(gone)
            here.remove(gone)
            log.remove(gone)
            assert gone[1] not in log
        assert [entry.key for entry in log.entries()] == here
        key, count = rng.choice(came), rng.randrange(1, 12)
        before = [each for each in here if each < key][-count:]
        assert [entry.key for entry in log.preceding(key, count)] == before
    log.check()
    assert len(log) == len(came) > len(here) >= 40
    assert all(message_id in log for _, message_id in came)
    assert "other" not in log
    log.remove(came[0])
    assert came[0][1] not in log


def test_entries_far_ahead_do_not_keep_others_out_of_memory() -> None:
    log = MessageLog(bytes(16), kept=40)
    for number in range(1_000):
        log.insert(LogEntry(2**63 + number, f"far{number}", "s"))
    for number in range(50):
        log.insert(LogEntry(number, f"near{number}", "s"))
        assert log.preceding((number + 1, ""), 1)[0].message_id == f"near{number}"
    log.check()


shapes = st.builds(FilterShape, st.integers(1, 60), st.sampled_from([0.5, 0.1, 0.01, 1e-6]))


def bit(encoded: bytes, position: int) -> int:
    """Return bit of the words as the layout describes them, one step at a time."""
    word = int.from_bytes(encoded[position // 64 * 8 : position // 64 * 8 + 8], "big")
    return word >> (position % 64) & 1


@given(shapes, st.lists(st.text(max_size=12), unique=True, max_size=150), st.text(max_size=12))
def test_a_rolling_filter_holds_the_newest(
    shape: FilterShape, inserted: list[str], other: str
) -> None:
    rolling = RollingFilter(shape)
    kept: list[str] = []
    for item in inserted:
        if len(kept) == shape.capacity:
            kept = kept[len(kept) - shape.capacity // 2 :]
        kept.append(item)
        rolling.add(item)
        assert len(rolling) == len(kept)
    positions = {position for item in kept for position in shape.positions(item)}
    encoded = rolling.encode()
    assert [bit(encoded, n) for n in range(shape.bits)] == [
        n in positions for n in range(shape.bits)
    ]
    assert encoded == filter_of(shape, kept)
    assert (other in rolling) == (set(shape.positions(other)) <= positions)
    assert holds(encoded, shape.probe(other)) == (other in rolling)


def test_the_error_probability_follows_from_fill_and_hashes() -> None:
    shape = FilterShape(1_000, 0.001)
    full = filter_of(shape, [str(n) for n in range(1_000)])
    assert shape.false_positive_rate(bytes(shape.size_bytes)) == 0
    assert 0.0003 < shape.false_positive_rate(full) < 0.0015
    wrong = sum(holds(full, shape.probe(f"other{n}")) for n in range(20_000)) / 20_000
    assert wrong == pytest.approx(shape.false_positive_rate(full), rel=0.8)
    assert shape.false_positive_rate(b"\xff" * shape.size_bytes) == 1


@pytest.mark.parametrize(
    ("capacity", "rate"), [(0, 0.1), (-1, 0.1), (10**6 + 1, 0.1), (1, 0), (1, 1.0), (1, -0.1)]
)
def test_a_shape_that_cannot_be_is_refused(capacity: int, rate: float) -> None:
    with pytest.raises(ValueError, match=r"filter|rate"):
        FilterShape(capacity, rate)
