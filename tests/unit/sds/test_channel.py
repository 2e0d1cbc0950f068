"""The rules of sending, receiving and the sweeps, and faults of other implementations."""

from __future__ import annotations

import pytest

from storenode.sds.channel import ChannelFullError
from storenode.sds.codec import Entry, MessageKind, decode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import (
    Acknowledged,
    Broadcast,
    BroadcastReason,
    ClockCapped,
    EphemeralReceived,
    GaveUp,
    Lost,
    Message,
    Missing,
    PossiblyAcknowledged,
    Received,
    Sent,
)
from storenode.sds.limits import MAX_CLOCK
from tests.unit.sds.worlds import (
    CHANNEL,
    NOW,
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


def test_own_filters_and_echoes_acknowledge_nothing() -> None:
    me = channel(possible_acks=1)
    first = payloads(me.send(NOW, b"text", "a"))
    second = payloads(me.send(NOW, b"text", "b"))
    sync = payloads(me.send_sync(NOW))
    assert take(me, *first, *second, *sync) == []
    assert me.counts.echoes == 3
    assert len(me.outgoing) == 2


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


def test_a_circle_is_delivered_in_log_order_and_said() -> None:
    me = channel()
    take(me, wire("b", after=["a"], lamport=NOW + 2), wire("a", after=["b", "a"], lamport=NOW + 1))
    take(me, wire("c", after=["b"], lamport=NOW + 3))
    events = me.tick(NOW + 5_000, make_rng())
    found = [(event.message_id, event.unmet) for event in of(Message, events)]
    assert found == [("a", ("b",)), ("b", ()), ("c", ())]
    assert me.counts.circles == 1
    me.check()


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
    me = channel(max_outgoing=2)
    me.send(NOW, b"text", "a")
    take(me, wire("b", after=["missing"]))
    for message_id in ("a", "b", "", "x" * 257):
        with pytest.raises(ValueError, match=r"ID|message_id"):
            me.send(NOW, b"text", message_id)
    for content in (b"", b"x" * 200_000):
        with pytest.raises(ValueError, match="message"):
            me.send(NOW, content)
    with pytest.raises(ValueError, match="content"):
        me.send_ephemeral(b"")
    assert log_ids(me) == ["a"]
    me.send(NOW, b"text")
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
