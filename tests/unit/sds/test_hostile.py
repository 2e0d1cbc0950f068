"""Hostile messages of other participants: they neither stop a channel nor make it grow."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storenode.sds.codec import (
    Entry,
    MessageError,
    SdsMessage,
    decode_message,
    encode_message,
    encode_older,
)
from storenode.sds.events import Broadcast, Lost, Missing, Packet, PacketRefusal, Refused
from storenode.sds.limits import MAX_LOST_IDS, MAX_WAITING_SYNCS
from tests.unit.sds.worlds import (
    NOW,
    QUICK_REPAIR,
    SMALL,
    channel,
    delivered,
    later,
    make_rng,
    of,
    take,
    wire,
)


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


def test_strangers_and_noise_are_counted() -> None:
    me = channel()
    events = take(me, b"", b"\xff", wire("a", room="elsewhere"), wire("x" * 257))
    assert [event.reason for event in of(Refused, events)] == [
        PacketRefusal.MALFORMED,
        PacketRefusal.MALFORMED,
        PacketRefusal.FOREIGN,
        PacketRefusal.MALFORMED,
    ]
    assert (me.counts.malformed, me.counts.foreign, me.counts.received) == (3, 1, 4)


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
    "bad",
    [b"", b"\x0a\x02\xff\xfe", b"\xff", b"\x0a\x01a\x1a\x81\x02" + b"s" * 257, b"\x00"],
)
def test_a_bad_repair_request_costs_itself_alone(bad: bytes, older: bool) -> None:
    good = SdsMessage("room", "a", "s", 1, (Entry("é" * 32),), b"f", content=b"x")
    asked = [b"\x0a\x01b", bad, b"\x0a\x01c"]
    payload = encode_older(good) if older else encode_message(good)
    payload += b"".join(b"\x6a" + _varint(len(each)) + each for each in asked)
    message = decode_message(payload)
    assert message == replace(good, repair_request=(Entry("b"), Entry("c")))


def _varint(size: int) -> bytes:
    return bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])


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
def test_a_history_may_be_as_long_as_the_message_has_room_for(*, older: bool) -> None:
    me = channel(max_missing=10_000, max_missing_of_sender=10_000)
    names = [f"cause{n}" for n in range(5_000)]
    message = SdsMessage("room", "a", "s", NOW, tuple(map(Entry, names)), content=b"x")
    packet = encode_older(message) if older else encode_message(message)
    (missing,) = of(Missing, take(me, packet))
    assert [entry.message_id for entry in missing.messages] == names
    me.receive(NOW, [Packet(wire(name)) for name in names[:-1]])
    assert "a" not in me.log
    assert delivered(take(me, wire(names[-1]))) == [names[-1], "a"]


def test_repair_requests_past_the_first_256_cost_themselves_alone() -> None:
    asks = tuple(Entry(str(n)) for n in range(257))
    message = SdsMessage("room", "a", "s", 1, repair_request=asks, content=b"x")
    assert decode_message(encode_message(message)) == replace(message, repair_request=asks[:-1])


def test_a_refused_message_is_named_and_its_descendants_wait() -> None:
    me = channel()
    events = take(me, wire("a", sender="s" * 257), wire("b", after=["a"]))
    sentence = "an ID is longer than 256 bytes"
    assert of(Refused, events) == [Refused(PacketRefusal.MALFORMED, "a", sentence)]
    assert "b" in me.incoming.ids
    assert "a" in me.incoming.wants


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


def test_many_circles_end_quickly_and_in_order() -> None:
    me = channel(max_waiting=5_000)
    packets = []
    for number in range(0, 4_000, 2):
        a, b = f"m{number:05}", f"m{number + 1:05}"
        packets += [wire(a, after=[b], lamport=number), wire(b, after=[a], lamport=number + 1)]
    me.receive(NOW, [Packet(packet) for packet in packets])
    assert len(me.incoming) == 4_000
    assert delivered(me.tick(NOW + 5_000, make_rng())) == [f"m{n:05}" for n in range(4_000)]


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
