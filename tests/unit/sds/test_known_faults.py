"""Tests of what other implementations do wrong, one test each: ours behaves."""

import pytest

from storenode.sds.codec import Entry, decode_message
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    ClockCapped,
    EphemeralReceived,
    GaveUp,
    Lost,
    PossiblyAcknowledged,
    Reason,
    RepairAnswered,
    RepairRequested,
    Sent,
)
from storenode.sds.limits import MAX_CLOCK
from tests.unit.sds.worlds import (
    NOW,
    QUICK_REPAIR,
    SMALL,
    channel,
    delivered,
    log_ids,
    make_rng,
    of,
    payloads,
    take,
    wire,
)


def test_the_same_text_sent_twice_and_by_two_is_three_messages() -> None:
    mine, yours, reader = channel("mine"), channel("yours"), channel("reader")
    sent = [
        payloads(mine.send(NOW, b"yes"))[0],
        payloads(mine.send(NOW, b"yes"))[0],
        payloads(yours.send(NOW, b"yes"))[0],
    ]
    assert len(delivered(take(reader, *sent))) == 3
    assert len(log_ids(reader)) == 3


@pytest.mark.parametrize("kind", [b"text", None])
def test_one_filter_seen_twice_is_one_witness(kind: bytes | None) -> None:
    me = channel()
    me.send(NOW, b"mine", "mine")
    packet = wire("theirs", content=kind, seen=["mine"])
    first = of(PossiblyAcknowledged, take(me, packet))
    assert [event.filters for event in first] == [1]
    again = take(me, packet, packet)
    assert of(Acknowledged, again) == []
    assert "mine" in me.outgoing
    other = take(me, wire("other", seen=["mine", "theirs"]))
    assert [event.message_id for event in of(Acknowledged, other)] == ["mine"]


def test_giving_up_a_cause_unblocks_what_waits_for_it() -> None:
    me = channel(lost_after_ms=1_000)
    take(me, wire("second", after=["first"], lamport=NOW + 1))
    take(me, wire("third", after=["second"], lamport=NOW + 2))
    assert delivered(me.tick(NOW + 1_000, make_rng())) == []
    events = me.tick(NOW + 1_001, make_rng())
    assert [event.message_ids for event in of(Lost, events)] == [("first",)]
    assert delivered(events) == ["second", "third"]
    me.check()
    late = take(me, wire("first", lamport=NOW), now=NOW + 2_000)
    assert delivered(late) == ["first"]
    assert log_ids(me) == ["first", "second", "third"]
    assert me.lost == {}


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


def test_order_is_by_number_and_by_code_point() -> None:
    me = channel()
    clocks = [9, 10, 100, 2**53, 2**53 + 1, 2**63, MAX_CLOCK]
    names = ["b", "B", "a", "Ä", "z", "-", "\U0001f642", "\uffff"]
    for clock in reversed(clocks):
        for name in names:
            take(me, wire(f"{name}{clock}", lamport=clock))
    expected = [f"{name}{clock}" for clock in clocks for name in sorted(names)]
    assert log_ids(me) == expected
    by_bytes = sorted(names, key=str.encode)
    assert by_bytes == sorted(names)


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


def test_a_repair_request_is_repeated_until_the_message_comes() -> None:
    me = channel(repair=QUICK_REPAIR, lost_after_ms=None, sync_min_ms=10**6, sync_max_ms=10**6)
    take(me, wire("second", after=[Entry("first", None, "peer")]))
    asked = 0
    for now in range(NOW, NOW + 4_000, 50):
        asked += len(of(RepairRequested, me.tick(now, make_rng())))
        me.check()
    assert asked >= 3
    take(me, wire("first", lamport=NOW - 1))
    for now in range(NOW + 4_000, NOW + 6_000, 50):
        assert of(RepairRequested, me.tick(now, make_rng())) == []


def test_a_resend_gives_later_histories_the_hint_that_works() -> None:
    me = channel()
    me.send(NOW, b"mine", "mine")
    assert me.published("mine", b"never stored") == [Sent("mine", b"never stored")]
    events = me.tick(NOW + 30_000, make_rng())
    assert [event.reason for event in of(Broadcast, events)][:1] == [Reason.RESEND]
    me.published("mine", b"stored")
    second = decode_message(payloads(me.send(NOW + 30_001, b"next"))[0])
    assert second.history == (Entry("mine", b"stored", "me"),)


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
    resent = [event for event in of(Broadcast, seen) if event.reason is Reason.RESEND]
    assert len(resent) == 2
    assert of(GaveUp, seen) == [GaveUp("mine", 3)]
    assert of(Acknowledged, seen) == []
    assert of(Sent, seen) == []
    assert len(me.outgoing) == 0


def test_an_answer_is_sent_once_and_not_again_at_once() -> None:
    me = channel(repair=QUICK_REPAIR)
    me.send(NOW, b"mine", "mine")
    take(me, wire("ask", content=None, asks=["mine"]))
    take(me, wire("ask2", content=None, asks=["mine"]))
    assert of(RepairAnswered, me.tick(NOW, make_rng())) == [RepairAnswered("mine")]
    take(me, wire("ask3", content=None, asks=["mine"]))
    assert of(RepairAnswered, me.tick(NOW + 99, make_rng())) == []
    take(me, wire("ask4", content=None, asks=["mine"]), now=NOW + 100)
    assert of(RepairAnswered, me.tick(NOW + 100, make_rng())) == [RepairAnswered("mine")]
