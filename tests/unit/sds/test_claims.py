"""Tests of several messages claim one ID: the proven one is in the log, whichever came first."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import permutations

import pytest

from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.events import Forged, Message, PacketRefusal, Refused, Withdrawn
from storenode.sds.log import MessageLog
from storenode.sds.proofs import content_id
from tests.unit.sds.worlds import (
    CHANNEL,
    NOW,
    QUICK_REPAIR,
    answers,
    channel,
    log_ids,
    make_rng,
    of,
    payloads,
    take,
    wire,
)


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


def test_a_copy_takes_no_place_in_the_log() -> None:
    message_id = sha256(b"yes").hexdigest()
    me = channel()
    events = take(me, wire(message_id, content=b"yes", after=["cause"]), wire("cause"))
    events += take(me, wire(message_id, sender="mallory", content=b"yes"))
    events += me.tick(NOW + 1, make_rng())
    assert [each.sender_id for each in of(Message, events)] == ["peer", "peer"]


def test_what_an_id_is_the_hash_of_proves_nothing_as_content() -> None:
    true = genuine()
    parts = [b"sds.v1", CHANNEL.encode(), b"peer", str(NOW).encode(), b"", b"pay alice"]
    hashed = b"".join(len(part).to_bytes(4) + part for part in parts)
    assert sha256(hashed).hexdigest() == id_of(true)
    me = channel()
    events = take(me, forged(true, hashed), true)
    assert contents(me, events) == {id_of(true): b"pay alice"}
    assert of(Message, events)[0].proof is Proof.NONE


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
