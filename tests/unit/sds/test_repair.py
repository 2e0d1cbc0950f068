"""Times and groups of SDS-Repair."""

from hashlib import sha256

from storenode.sds.codec import Entry, decode_message
from storenode.sds.config import RepairConfig
from storenode.sds.events import Broadcast, BroadcastReason, Recall, RepairAnswered, RepairRequested
from storenode.sds.limits import (
    ANSWER_EPOCH_MS,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_BYTES_PER_REQUESTER,
    MAX_PENDING_ANSWERS,
    MAX_RECALLED_AT_ONCE,
)
from storenode.sds.log import MessageLog
from storenode.sds.repair import answer_delay_ms, may_answer, number_of, request_delay_ms
from tests.unit.sds.worlds import (
    NOW,
    QUICK_REPAIR,
    answers,
    channel,
    delivered,
    grows_when_written,
    make_rng,
    of,
    take,
    wire,
)

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


def test_anothers_request_puts_ours_off() -> None:
    me = channel(repair=QUICK_REPAIR)
    take(me, wire("b", after=[Entry("a", b"h", "bob")]))
    first = me.incoming.request_due_ms()
    take(me, wire("ask", content=None, sender="carol", asks=["a"]), now=NOW + 90)
    assert me.incoming.request_due_ms() == first + 90


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
