"""Times and groups of SDS-Repair."""

from hashlib import sha256

from storenode.sds.config import RepairConfig
from storenode.sds.envelope import Entry, decode_message
from storenode.sds.events import Broadcast, Reason, RepairAnswered, RepairRequested
from storenode.sds.repair import answer_delay_ms, may_answer, number_of, request_delay_ms
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, delivered, dice, of, take, wire

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


def test_seeing_an_answer_cancels_ours() -> None:
    me = channel(repair=QUICK_REPAIR)
    packet = wire("theirs", sender="bob")
    take(me, packet)
    take(me, wire("ask", sender="carol", content=None, asks=["theirs"]))
    assert me.answers is not None
    assert list(me.answers.pending) == ["theirs"]
    take(me, packet)
    assert of(RepairAnswered, me.tick(NOW + 1_000, dice())) == []


def test_an_answer_is_the_message_itself() -> None:
    me, you = channel("me", repair=QUICK_REPAIR), channel("you")
    original = wire("theirs", after=["cause"], sender="bob", seen=["cause"])
    take(me, wire("cause"), original)
    take(me, wire("ask", sender="carol", content=None, asks=["theirs", "unknown"]))
    sent = [e for e in of(Broadcast, me.tick(NOW + 400, dice())) if e.reason is Reason.REPAIR]
    assert [decode_message(event.payload) for event in sent] == [decode_message(original).bare()]
    assert delivered(take(you, wire("cause"), sent[0].payload)) == ["cause", "theirs"]
    assert me.counts.repair_requests_ignored == 1


def test_anothers_request_puts_ours_off() -> None:
    me = channel(repair=QUICK_REPAIR)
    take(me, wire("b", after=[Entry("a", b"h", "bob")]))
    assert me.requests is not None
    first = me.requests.next_due_ms()
    assert first is not None
    take(me, wire("ask", content=None, sender="carol", asks=["a"]), now=NOW + 90)
    second = me.requests.next_due_ms()
    assert second == first + 90


def test_requests_ride_on_content_and_name_three_at_most() -> None:
    me = channel(repair=QUICK_REPAIR)
    take(me, wire("b", after=[f"a{n}" for n in range(5)]))
    events = me.send(NOW + 400, b"text", "mine")
    (asked,) = of(RepairRequested, events)
    assert (len(asked.message_ids), asked.carrier) == (3, "mine")
    (sent,) = of(Broadcast, events)
    request = decode_message(sent.payload).repair_request
    assert tuple(entry.message_id for entry in request) == asked.message_ids
    (rest,) = of(RepairRequested, me.tick(NOW + 1_400, dice()))
    assert len(rest.message_ids) == 3
    assert {f"a{n}" for n in range(5)} == {*asked.message_ids, *rest.message_ids}


def test_a_message_that_is_no_longer_kept_is_not_answered() -> None:
    me = channel(repair=RepairConfig(100, 400, kept_messages=3))
    take(me, *(wire(f"m{n}") for n in range(5)))
    take(me, wire("ask", content=None, asks=[f"m{n}" for n in range(5)]))
    answers = of(RepairAnswered, me.tick(NOW + 400, dice()))
    assert sorted(event.message_id for event in answers) == ["m2", "m3", "m4"]
    me = channel(repair=RepairConfig(100, 400, kept_bytes=1_000))
    take(me, *(wire(f"m{n}", content=bytes(300)) for n in range(5)))
    assert me.answers is not None
    assert list(me.answers.kept) == ["m4"]


def test_a_pending_answer_goes_with_its_message() -> None:
    me = channel(repair=RepairConfig(100, 400, kept_messages=2))
    take(me, wire("old", sender="bob"))
    take(me, wire("ask", content=None, sender="carol", asks=["old"]))
    assert me.answers is not None
    assert list(me.answers.pending) == ["old"]
    take(me, wire("m1"), wire("m2"))
    assert of(RepairAnswered, me.tick(NOW + 400, dice())) == []
