"""Participants on a bus in memory; refused messages, answers to requests, and searches."""

from __future__ import annotations

import asyncio
import hmac
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from time import time_ns
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock, Mock

import pytest

from sim.limits import START_NS
from sim.timeline import Timeline
from storenode.cli.chat.terminal import answer_command
from storenode.cli.chat.transcript import Transcript
from storenode.common.errors import ArgumentError, ClientClosedError, StorenodeError
from storenode.message.limits import MAX_QUERY_HASHES
from storenode.sds.aio.channel import Channel, Channels
from storenode.sds.aio.events import EventHub, Events
from storenode.sds.aio.feed import ChannelFeed
from storenode.sds.aio.ledger import ParticipantLedger, revive
from storenode.sds.aio.participant import Participant, _portions
from storenode.sds.aio.repair import Repair, RepairResponder
from storenode.sds.aio.saver import Saver
from storenode.sds.aio.signing import Signing, unframe
from storenode.sds.aio.state import SqliteState, StateTakenError
from storenode.sds.aio.transport import Fetched, Link, Outbound, Rotation, TransportError
from storenode.sds.bloom import filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig, RepairConfig
from storenode.sds.events import (
    Broadcast,
    ChannelEvent,
    Disconnected,
    EphemeralReceived,
    Lost,
    Message,
    NotStored,
    Packet,
    Recall,
    Received,
    Repaired,
    Sent,
    Signed,
)
from storenode.sds.limits import (
    BYTES_AT_ONCE,
    MAX_LEAVING_AT_ONCE,
    MAX_PUBLISH_MESSAGES,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_EVENTS,
    MAX_SIGNATURE_BYTES,
)
from storenode.sds.proofs import canonical, content_id
from tests.support.bus import (
    CONTENT,
    PATIENCE_S,
    PUBSUB,
    ROUTE,
    SHAPE,
    Bus,
    BusLink,
    BusTransport,
    Reversing,
    config_of,
    fetched,
    has,
    joined,
    logs_are_equal,
    now_ms,
    of_peer,
)
from tests.support.participant import conversation
from tests.support.virtual_time import run_virtually
from tests.unit.sds.worlds import NOW, QUICK_REPAIR, channel, config, make_rng, of, take, wire


async def test_a_participant_that_is_away_sends_when_it_is_back() -> None:
    bus = Bus()
    far = bus.transport("far")
    async with joined(bus.transport("a"), "alice") as alice, joined(far, "bob") as bob:
        await bob.wait_for(lambda status: status.synced)
        far.away = True
        await bob.wait_for(lambda status: status.node is None)
        assert str(bob.status) == "offline"
        assert bob.status.trouble == "far is away."
        await alice.send(b"while bob was away")
        await bob.send(b"from afar")
        assert str(bob.status) == "offline, 1 not sent"
        far.away = False
        await logs_are_equal(alice, bob, length=2)
        await bob.wait_for(lambda status: not status.unpublished and not status.trouble)
        assert bus.stored(ROUTE)


@pytest.mark.parametrize("whole", [False, True])
async def test_encrypted_participants_understand_each_other(*, whole: bool) -> None:
    bus, rng = Bus(), Random(3)
    bus.drops = lambda name, _message: name == "b" and rng.random() < 0.5
    cipher = Reversing(whole=whole)
    async with (
        joined(bus.transport("a"), "alice", cipher=cipher) as alice,
        joined(bus.transport("b"), "bob", cipher=cipher) as bob,
    ):
        for number in range(10):
            await alice.send(b"secret %d" % number)
        await logs_are_equal(alice, bob, length=10)
        assert [m.content for m in await bob.log()] == [b"secret %d" % n for n in range(10)]
        if whole:
            assert not bob.calls.keys() & {"by_id", "closure"}
    assert not any(b"secret" in each.payload for each in bus.stored(ROUTE))


async def test_with_another_key_messages_are_there_and_cannot_be_read() -> None:
    bus = Bus()
    async with (
        joined(bus.transport("a"), "alice", cipher=Reversing(whole=False)) as alice,
        joined(bus.transport("b"), "bob", cipher=Reversing(whole=False, mark=b"other:")) as bob,
    ):
        await alice.send(b"secret")
        await logs_are_equal(alice, bob, length=1)
        (message,) = await bob.log()
        assert (message.readable, message.content) == (False, b"sealed:terces")
    async with (
        joined(bus.transport("a"), "alice", cipher=Reversing(whole=False)) as alice,
        joined(bus.transport("b"), "bob", cipher=Reversing(whole=True, mark=b"other:")) as bob,
    ):
        await bob.wait_for(lambda status: status.synced)
        assert await bob.log() == []
        assert bob.counts.malformed >= 1


async def test_messages_begin_with_what_the_state_has(tmp_path: Path) -> None:
    bus = Bus()
    async with joined(bus.transport("a"), "alice", state=tmp_path / "a.db") as alice:
        for number in range(5):
            await alice.send(b"%d" % number)
    async with joined(bus.transport("a"), "alice", state=tmp_path / "a.db") as alice:
        seen = []
        async for message in alice.messages(backlog=2):
            seen.append(message.content)
            if len(seen) == 2:
                await alice.send(b"5")
            if len(seen) == 3:
                break
        assert seen == [b"3", b"4", b"5"]
        page = await alice.log(2)
        assert [m.content for m in await alice.log(2, before=page[0].key)] == [b"2", b"3"]


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"config": config_of("alice")}, "config is of another channel or sender"),
    ({"sender_id": b"bob"}, "sender_id is bytes, not str"),
    ({"channel_id": 5}, "channel_id is int, not str"),
    ({"cipher": "key"}, "cipher is 'key': it needs whole, seal, open"),
    ({"signer": "key"}, "signer is 'key': it needs sign, verify"),
    ({"config": {"channel_id": "room"}}, "give a ChannelConfig"),
    ({"state": 5}, "state is 5: give the path of a file"),
    ({"pubsub_topic": None}, "The pubsub topic None is NoneType, not str"),
    ({"sender_id": "a\ud800"}, "which UTF-8 cannot carry"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG_OPTIONS)
async def test_a_wrong_option_is_refused(options: dict[str, Any], sentence: str) -> None:
    usual = {"places": Bus().transport(), "channel_id": "room", "sender_id": "bob"}
    with pytest.raises(StorenodeError, match=sentence):
        async with Channel.join(**{**usual, **options}):
            pass


WRONG_CALLS: list[tuple[Callable[[Channel], Awaitable[object]], str]] = [
    (lambda channel: channel.send(b""), "a message needs content"),
    (lambda channel: channel.send(b"x", 5), "message_id is int, not str"),  # type: ignore[arg-type]
    (lambda channel: channel.send_all(b"abc"), "The content is int, not bytes"),  # type: ignore[arg-type]
    (lambda channel: channel.log(-1), "limit=-1"),
    (lambda channel: channel.log("5"), "limit is '5': give a number"),  # type: ignore[arg-type]
    (lambda channel: channel.log(before=(2**64, "m")), "is no place in the log"),
    (lambda channel: channel.wait_for(True), "give a function of the status"),  # type: ignore[arg-type]
    (lambda channel: anext(channel.messages(backlog="5")), "backlog is '5'"),  # type: ignore[arg-type]
]


async def test_a_wrong_argument_is_refused_at_once_and_so_is_another_loop() -> None:
    async with joined(Bus().transport("a"), "alice") as alice:
        for call, sentence in WRONG_CALLS:
            with pytest.raises(ArgumentError, match=sentence):
                await call(alice)
        with pytest.raises(ArgumentError, match="belongs to the event loop that joined it"):
            await asyncio.to_thread(asyncio.run, alice.send(b"hello"))
        assert await alice.log() == []


async def test_a_long_wait_is_explained_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("storenode.sds.aio.channel.WARN_AFTER_S", 0.0)
    async with joined(Bus().transport("a"), "alice") as alice:
        waiting = asyncio.create_task(alice.wait_for(lambda _: bool(caplog.messages)))
        while not waiting.done():
            await alice.send(b"a change of the status")
    assert caplog.messages[0].startswith("channel room still waits (")


LARGE: Final = EphemeralReceived("x", "alice", bytes(MAX_QUEUED_BYTES))


@pytest.mark.parametrize("events", [[Sent("x", None)] * MAX_QUEUED_EVENTS, [LARGE]])
async def test_a_reader_that_does_not_read_holds_up_until_it_is_closed(
    events: list[ChannelEvent],
) -> None:
    hub: EventHub[ChannelEvent] = EventHub()
    slow, quick = Events(hub, 0), Events(hub, 0)
    hub.put(1, events)
    waiting = asyncio.create_task(hub.room())
    for _ in events:
        await anext(quick)
    await asyncio.sleep(0)
    assert not waiting.done()
    await anext(slow)
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    hub.put(2, [Sent("y", None)] * 5)
    waiting = asyncio.create_task(hub.room())
    slow.close()
    async with asyncio.timeout(PATIENCE_S):
        await waiting


async def test_bytes_that_wait_for_a_transaction_hold_up_until_it_is_through() -> None:
    saver = Saver(Mock(commits=0, take=lambda: None), Mock(), None, Mock(), Mock())
    saver.add([LARGE])
    waiting = asyncio.create_task(saver.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await saver._save()
    async with asyncio.timeout(PATIENCE_S):
        await waiting


async def test_other_tasks_get_turns_while_the_events_of_a_transaction_are_released() -> None:
    released: list[int] = []
    release = lambda _, some: released.append(len(some))  # noqa: E731
    saver = Saver(Mock(commits=0, take=lambda: None), Mock(), None, release, Mock())
    saver.add([Sent("x", None)] * 150)
    asyncio.get_running_loop().call_soon(released.append, 0)
    await saver._save()
    assert released == [64, 0, 64, 22]


def test_many_bytes_are_taken_in_portions() -> None:
    packets = [Fetched(bytes(BYTES_AT_ONCE // 2), b"", 1)] * 5
    assert [len(some) for some in _portions(packets)] == [2, 2, 1]


async def test_a_reader_gets_what_came_after_its_making_and_ends_with_the_hub() -> None:
    hub: EventHub[ChannelEvent] = EventHub()
    reader = Events(hub, 3)
    hub.put(3, [Sent("before", None)])
    hub.put(4, [Sent("after", None)])
    hub.end()
    assert [event async for event in reader] == [Sent("after", None)]


async def test_a_new_reader_of_a_quiet_channel_receives_that_the_node_went_away() -> None:
    transport = Bus().transport("a")
    async with joined(transport, "alice") as alice, asyncio.timeout(PATIENCE_S):
        await alice.wait_for(lambda status: status.synced)
        await alice.log(1)  # all is saved
        events = alice.events()
        transport.away = True
        assert await anext(events) == Disconnected("a", "a is away.")


async def test_a_node_that_cannot_be_used_leaves_no_connection_to_another_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = AsyncMock()
    monkeypatch.setattr(BusLink, "close", closed)
    with pytest.raises(StorenodeError, match="is not the address of a node"):
        async with Channel.join([Bus().transport(), "nowhere"], "room", "alice"):
            pass
    closed.assert_awaited_once()


async def test_channels_whose_leaving_is_cancelled_are_all_left_at_once() -> None:
    transport = Bus().transport("a")
    before = asyncio.all_tasks()
    opened = asyncio.Event()

    async def use() -> None:
        async with Channels.open(transport) as channels:
            for number in range(2 * MAX_LEAVING_AT_ONCE):
                channel = await channels.join(f"room-{number}", "alice")
                transport.away = True
                await channel.send(b"what nothing takes")
            opened.set()

    using = asyncio.create_task(use())
    async with asyncio.timeout(PATIENCE_S):
        await opened.wait()
        await asyncio.sleep(0)  # the channels are being left: half of them wait for the others
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
    assert asyncio.all_tasks() <= before


async def test_a_state_that_another_takes_while_it_is_closed_ends_one_channel_only(
    tmp_path: Path,
) -> None:
    bus, taken = Bus(), tmp_path / "0.db"
    async with (
        Channels.open(bus.transport("a"), open_states=1) as channels,
        asyncio.timeout(PATIENCE_S),
    ):
        first = await channels.join("room", "alice", state=taken)
        await first.wait_for(lambda status: status.synced)
        second = await channels.join("hall", "alice", state=tmp_path / "1.db")
        await second.send(b"the first state is closed now")
        async with joined(bus.transport("b"), "alice", state=taken) as taker:
            await taker.send(b"mine")
            with pytest.raises(StateTakenError):
                await first.send(b"no longer mine")
            assert [message.content for message in await taker.log()] == [b"mine"]
        await second.send(b"still here")
        assert len(await second.log()) == 2


async def test_a_clock_that_is_set_back_does_not_hold_up_what_is_missing() -> None:
    bus = Bus(drops=_is_cause)
    ahead, ahead_ns = [True], 7_200 * 10**9

    def clock() -> int:
        return time_ns() + ahead[0] * ahead_ns

    config = config_of("bob", repair=None, behind_after_ms=None, lost_after_ms=None)
    async with joined(bus.transport("b"), "bob", config=config, clock=clock) as bob:
        await bob.wait_for(lambda status: status.live)
        async with bob.events() as events:
            bus.add(ROUTE, of_peer("effect", ["cause"]))
            while not isinstance(await anext(events), Repaired):
                pass
        ahead[0] = False
        bus.add(ROUTE, of_peer("cause", []))
        await logs_are_equal(bob, length=2)


async def test_who_lacks_messages_is_known() -> None:
    bus = Bus()
    said = SdsMessage("room", "m", "ann", now_ms() - 60_000, content=b"text")
    shown = SdsMessage("room", "sync", "cy", now_ms(), bloom_filter=filter_of(SHAPE, ["other"]))
    async with joined(bus.transport("b"), "bob") as bob:
        await bob.wait_for(lambda status: status.synced)
        bus.add(ROUTE, fetched(said))
        await logs_are_equal(bob, length=1)
        assert bob.lacking() == {}
        events = bob.events()
        bus.add(ROUTE, fetched(shown))
        async with asyncio.timeout(PATIENCE_S):
            while not (
                isinstance(event := await anext(events), Received) and event.sender_id == "cy"
            ):
                pass
        assert bob.lacking() == {"cy": 1}
        transcript = Transcript("bob", 0)
        transcript.take(event)
        *_, row = answer_command("/names", bob, transcript)
        assert row.endswith(", lacks 1 message that is here")


async def test_what_cannot_be_decoded_is_counted_beside_synced() -> None:
    bus = Bus()
    long = SdsMessage("room", "m", "s" * 257, now_ms(), content=b"text")
    parents = tuple(Entry(f"m{number}") for number in range(300))
    many = SdsMessage("room", "many", "peer", now_ms(), parents, content=b"text")
    async with joined(bus.transport("b"), "bob", config=config_of("bob", repair=None)) as bob:
        await bob.wait_for(lambda status: status.live)
        assert str(bob.status) == "synced"
        bus.add(ROUTE, fetched(long))
        await bob.wait_for(lambda status: status.unreadable == 1)
        assert str(bob.status) == "synced, 1 unreadable"
        bus.add(ROUTE, fetched(many))
        await bob.wait_for(lambda status: status.missing == 300)
        for parent in parents:
            bus.add(ROUTE, of_peer(parent.message_id, []))
        await logs_are_equal(bob, length=301)


async def test_what_was_given_up_for_want_of_room_is_found_by_a_search() -> None:
    names = [f"m{number}" for number in range(40)]
    bus = Bus(drops=lambda _name, message: decode_message(message.payload).message_id in names)
    config = config_of("bob", max_missing=10, max_missing_of_sender=10)
    async with joined(bus.transport("b"), "bob", config=config) as bob:
        await bob.wait_for(lambda status: status.synced)
        for name in names:
            bus.add(ROUTE, of_peer(name, []))
        async with bob.events() as events:
            bus.add(ROUTE, of_peer("last", names))
            while not isinstance(event := await anext(events), Lost):
                pass
        assert event == Lost(tuple(names[:30]), early=True)
        await logs_are_equal(bob, length=41)
        assert bob.status.lost == 0


def _is_cause(_transport: str, message: Fetched) -> bool:
    return decode_message(message.payload).message_id == "cause"


# Signatures of the application

KEYS = {"alice": b"key of alice", "bob": b"key of bob"}
MARK = b"\x00sds-sig"


class Keys:
    """Signs with a secret that all know, which is enough to tell whose it is here."""

    def __init__(self, own: str) -> None:
        self._own = own

    def sign(self, canonical: bytes) -> bytes:
        return hmac.digest(KEYS[self._own], canonical, "sha256")

    def verify(self, canonical: bytes, signature: bytes, sender_id: str) -> bool:
        return hmac.compare_digest(hmac.digest(KEYS[sender_id], canonical, "sha256"), signature)


async def log_of(channel: Channel, count: int) -> list[Message]:
    await has(channel, count)
    return await channel.log()


def seen(messages: list[Message]) -> list[tuple[bytes, Signed]]:
    return [(each.content, each.signed) for each in messages]


@pytest.mark.parametrize("cipher", [None, Reversing(whole=False), Reversing(whole=True)])
async def test_a_signature_is_verified_also_after_a_restart_and_passed_through_without_signer(
    tmp_path: Path, cipher: Reversing | None
) -> None:
    bus, path = Bus(), tmp_path / "bob.db"
    async with (
        joined(bus.transport("a"), "alice", signer=Keys("alice"), cipher=cipher) as alice,
        joined(bus.transport("c"), "carol", cipher=cipher) as carol,
    ):
        async with joined(
            bus.transport("b"), "bob", signer=Keys("bob"), cipher=cipher, state=path
        ) as bob:
            live = bob.messages()
            await alice.send(b"signed")
            first = await asyncio.wait_for(anext(live), PATIENCE_S)
            await live.aclose()
            assert seen([first]) == [(b"signed", Signed.VALID)]
            assert first.proof is Proof.MESSAGE
            await bob.send(b"by bob")
        (own, others) = await log_of(alice, 2)
        assert seen([own, others]) == [(b"signed", Signed.VALID), (b"by bob", Signed.VALID)]
        passed = await log_of(carol, 2)
        assert seen(passed) == [(b"signed", Signed.UNCHECKED), (b"by bob", Signed.UNCHECKED)]
        assert [each.signature for each in passed] == [own.signature, others.signature]
        await carol.send(b"plain")
        assert seen(await log_of(alice, 3))[2] == (b"plain", Signed.NO)
    async with joined(
        bus.transport("b"), "bob", signer=Keys("bob"), cipher=cipher, state=path
    ) as bob:
        assert seen(await log_of(bob, 3))[0] == (b"signed", Signed.VALID)


async def test_a_signature_does_not_hold_for_another_message_sender_or_channel() -> None:
    """Publish forgeries that another sender can make of a signed message."""
    bus, rng, at_ms = Bus(), Random(1), now_ms()
    signing = Signing(Keys("alice"), "room", "alice")
    alice = MessageChannel(config_of("alice"), at_ms, rng)
    sent = alice.send(
        at_ms, b"pay 5", sealed=lambda lamport, history: signing.frame(b"pay 5", lamport, history)
    )[0]
    assert isinstance(sent, Broadcast)
    genuine = decode_message(sent.payload)
    content = genuine.content or b""
    clear, signature = unframe(content)
    more = clear.replace(b"5", b"50") + content.removeprefix(clear)
    forged = [
        replace(genuine, message_id="later", lamport=(genuine.lamport or 0) + 1),
        replace(genuine, message_id="by bob", sender_id="bob"),
        replace(genuine, message_id="other", content=more),
        replace(genuine, message_id="unknown", sender_id="nobody with a key"),
    ]
    copy = replace(genuine, message_id="copy")
    for number, message in enumerate((genuine, copy, *forged)):
        bus.add(ROUTE, Fetched(encode_message(message), b"%d" % number, time_ns()))
    async with joined(bus.transport("b"), "bob", signer=Keys("bob")) as bob:
        log = {each.message_id: each for each in await log_of(bob, 6)}
    assert {log[each.message_id].signed for each in forged} == {Signed.INVALID}
    found = log[genuine.message_id]
    assert (found.content, found.signature, found.signed) == (b"pay 5", signature, Signed.VALID)
    # The same once more: the signature holds, and the ID does not.
    assert (log["copy"].signed, log["copy"].proof) == (Signed.VALID, Proof.NONE)
    assert found.proof is Proof.MESSAGE


def test_the_canonical_bytes_are_those_of_the_id_under_another_name() -> None:
    made = canonical("room", "alice", 7, (), b"text")
    assert made == b"".join(
        len(part).to_bytes(4) + part
        for part in (b"sds.v1.signed", b"room", b"alice", b"7", b"", b"text")
    )
    assert content_id("room", "alice", 7, (), made) != content_id("room", "alice", 7, (), b"text")


def test_any_content_comes_back_as_it_was_given() -> None:
    plain = Signing(None, "0", "alice")
    rng = Random(2)
    signatures = [b"", b"s", bytes(MAX_SIGNATURE_BYTES)]
    contents = [b"x", b"x" + MARK, b"\x00\x01" + MARK, MARK, b"xs\x00\x01" + MARK]
    contents += [rng.randbytes(rng.randrange(1, 40)) + MARK for _ in range(200)]
    for content in contents:
        opened = plain.read(Message("m", "alice", 1, plain.frame(content, 1, ())))
        assert (opened.content, opened.signed) == (content, Signed.NO)
    for content in contents:
        for signature in signatures:
            framed = content + signature + len(signature).to_bytes(2) + MARK
            assert unframe(framed) == (content, signature)


@pytest.mark.parametrize(
    "hostile",
    [
        MARK,
        b"\x00\x00" + MARK,
        b"x\xff\xff" + MARK,
        b"ab\x00\x02" + MARK,
        b"x" * 9_000 + (MAX_SIGNATURE_BYTES + 1).to_bytes(2) + MARK,
    ],
)
def test_what_only_looks_like_a_signature_is_content(hostile: bytes) -> None:
    assert unframe(hostile) == (hostile, b"")


async def test_a_signature_that_is_too_long_is_refused_to_its_sender() -> None:
    keys = Keys("alice")
    signer = SimpleNamespace(sign=lambda _: bytes(MAX_SIGNATURE_BYTES + 1), verify=keys.verify)
    async with joined(Bus().transport("a"), "alice", signer=signer) as alice:
        with pytest.raises(ValueError, match=r"a signature has \d+ bytes: 8192 are the most"):
            await alice.send(b"text")
        assert await alice.log() == []


async def test_a_scan_that_was_cut_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    bus, config = Bus(), ChannelConfig("room", "late", filter=SHAPE)
    said = list(
        conversation(
            "room",
            2 * MAX_QUERY_HASHES + 100,
            pubsub_topic=PUBSUB,
            content_topic=CONTENT,
            newest_ns=1_763_625_600_000_000_000,
            shape=SHAPE,
        )
    )
    for each in said:
        bus.add(ROUTE, Fetched(each.payload, each.hint, each.timestamp_ns))
    breaking = bus.transport()
    breaking.cuts_scans = True
    state = tmp_path / "late.db"
    async with asyncio.timeout(PATIENCE_S):
        async with Channel.join(breaking, "room", "late", state=state, config=config) as late:
            await late.wait_for(lambda status: status.trouble == "The line is cut.")
            breaking.away = True
        seen = len(breaking.scans)
        breaking.away = breaking.cuts_scans = False
        async with Channel.join(breaking, "room", "late", state=state, config=config) as late:
            await late.wait_for(lambda status: status.synced)
            last = await late.log(1_000)
            assert [m.message_id for m in last] == [each.message_id for each in said[-1_000:]]
            assert len(late._participant.core.log) == len(said)
    assert breaking.scans[0] == 0
    assert breaking.scans[seen] >= said[MAX_QUERY_HASHES - 1].timestamp_ns


S = 1_000_000_000
CONFIG = ChannelConfig("room", "alice", resend_ms=3_600_000, resend_possible_ms=3_600_000)


class Strict(BusTransport):
    """A bus that refuses, like a node, what is more than 20 seconds old."""

    now_ns = START_NS
    is_silent = False

    async def refusal(self, message: Outbound) -> str:
        if self.is_silent:
            await asyncio.Event().wait()
        is_old = self.now_ns - message.timestamp_ns > 20 * S
        return "It is too old." if is_old else await super().refusal(message)


async def test_what_was_away_for_too_long_is_published_with_a_new_time(tmp_path: Path) -> None:
    bus = Bus()
    strict = Strict(bus)
    strict.away = True
    async with (
        joined(
            strict, "alice", state=tmp_path / "alice.db", config=CONFIG, clock=lambda: strict.now_ns
        ) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"hello")
        (own,) = await alice.log()
        assert not strict.offered
        strict.now_ns += 60 * S
        strict.away = False
        sent = await anext(each async for each in events if isinstance(each, Sent))
        first, *_, last = strict.offered
        assert (first.timestamp_ns, last.timestamp_ns) == (START_NS, strict.now_ns)
        assert first.payload == last.payload
        assert sent.message_id == said
        assert sent.hint not in (None, own.hint)
        assert (await alice.log())[0].hint == sent.hint, "others are told where it is now"


async def test_refused_messages_are_reported_and_stay_in_the_log() -> None:
    strict = Strict(Bus())
    async with (
        joined(strict, "alice", config=CONFIG, clock=lambda: strict.now_ns) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        events = alice.events()
        said = await alice.send(b"forbidden")
        async for event in events:
            if isinstance(event, NotStored):
                assert event == NotStored(said, "That word is not allowed.")
                break
        assert len(strict.offered) == 1
        assert alice.status.unpublished == 0
        assert [m.message_id for m in await alice.log()] == [said]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_resend_is_stored_unless_its_message_is(is_stored: bool) -> None:
    transport, config = Bus(remembers=is_stored).transport(), replace(CONFIG, resend_ms=200)
    async with joined(transport, "alice", config=config) as alice, asyncio.timeout(PATIENCE_S):
        await alice.send(b"hello")
        while len(transport.offered) < 2:
            await transport.bus.news()
        assert [each.ephemeral for each in transport.offered] == [False, is_stored]


async def test_a_channel_that_was_left_says_so() -> None:
    async with joined(Bus().transport(), "alice", config=CONFIG) as alice:
        events = alice.events()
        await alice.send(b"hello")
    assert [event async for event in events], "what is queued can still be read"
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.send(b"too late")
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.send_ephemeral(b"too late")
    with pytest.raises(ClientClosedError, match="was left"):
        await alice.wait_for(lambda status: status.lost > 0)


async def test_leaving_that_is_cancelled_ends_the_participant_and_frees_its_state(
    tmp_path: Path,
) -> None:
    silent, state = Strict(Bus()), tmp_path / "alice.db"
    silent.is_silent = True
    async with Channels.open(silent) as channels, asyncio.timeout(PATIENCE_S):
        alice = await channels.join("room", "alice", state=state, config=CONFIG)
        await alice.wait_for(lambda status: status.live)
        said = await alice.send(b"hello")
        leaving = asyncio.create_task(channels.leave(alice))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        again = await channels.join("room", "alice", state=state, config=CONFIG)
        assert again.unpublished() == {said}
        silent.away = True
        await again.wait_for(lambda status: status.node is None)


async def test_leaving_while_offline_takes_no_time_when_nothing_is_forgotten(
    tmp_path: Path,
) -> None:
    transport = Bus().transport()
    transport.away = True
    state = tmp_path / "alice.db"
    async with asyncio.timeout(PATIENCE_S):
        async with joined(transport, "alice", state=state, config=CONFIG) as alice:
            said = await alice.send(b"later")
        transport.away = False
        async with joined(transport, "alice", state=state, config=CONFIG) as alice:
            await alice.wait_for(lambda status: status.synced and not status.unpublished)
    (stored,) = transport.bus.stored(ROUTE)
    assert said.encode() in stored.payload


async def test_the_next_store_is_given_what_the_last_one_may_not_have_passed_on() -> None:
    one, two = Bus().transport("one"), Bus().transport("two")
    async with joined([one, two], "alice", config=CONFIG) as alice, asyncio.timeout(PATIENCE_S):
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished)
        (stored,) = one.bus.stored(ROUTE)
        assert said.encode() in stored.payload
        one.away = True
        await alice.send(b"to the second")
        while len(two.bus.stored(ROUTE)) < 2:
            await two.bus.news()
        assert stored in two.bus.stored(ROUTE), "the same bytes, time and hash"


HINT, COPY_HINT = b"h" * 32, b"c" * 32
THEIRS = wire("theirs", sender="ann", content=bytes(5_000))
COPY = wire("theirs", sender="ann", content=bytes(5_000), asks=["something"])
FORGED = wire("theirs", sender="ann", content=b"forged")


@dataclass
class Store:
    """A link that holds messages under hints and IDs; only their absence can be asked for."""

    hints: frozenset[bytes] = frozenset()
    copies: tuple[bytes, ...] = ()
    fails: bool = False

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        if self.fails:
            raise TransportError("It is away.")
        return set(hints) & self.hints

    async def by_id(self, _: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        yield [Fetched(each, b"other", NOW) for each in self.copies]


@pytest.mark.parametrize(
    ("stores", "published", "charged"),
    [
        ([Store(hints=frozenset({HINT}))], False, False),
        ([Store(hints=frozenset({COPY_HINT}))], False, False),
        ([Store(copies=(COPY,))], False, True),
        ([Store(copies=(FORGED, b"noise"))], True, True),
        ([Store()], True, True),
        ([Store(fails=True), Store(hints=frozenset({HINT}))], False, False),
        ([Store(fails=True)], False, False),
    ],
    ids=[
        "held",
        "held as our copy",
        "held as a copy",
        "forged",
        "not held",
        "held by the next",
        "none answers",
    ],
)
async def test_what_a_store_holds_is_not_published_again(
    tmp_path: Path, stores: list[Store], *, published: bool, charged: bool
) -> None:
    state = SqliteState(tmp_path / "me.db", "room", "me")
    ledger = revive(state, config(repair=QUICK_REPAIR), NOW, make_rng())
    ledger.note(ledger.core.receive(NOW, [Packet(THEIRS, HINT)]))
    batch = ledger.take()
    assert batch is not None
    state.commit(batch)
    core = ledger.core
    take(core, wire("ask", sender="carol", content=None, asks=["theirs"]))
    (recall,) = of(Recall, core.tick(NOW + 400, make_rng()))
    found: list[tuple[Broadcast, bytes | None, int | None]] = []
    participant = SimpleNamespace(
        core=core,
        ledger=ledger,
        saver=Saver(ledger, state, None, lambda *_: None, lambda _: None),
        rotation=Rotation([cast("Link", each) for each in stores]),
        publish_answer=lambda *given: found.append(given),
        notify=lambda _: None,
        readable=True,
    )
    answering = RepairResponder(cast("Participant", participant))
    answering.note([Fetched(THEIRS, HINT, 7)])
    answering.copied("theirs", COPY_HINT)
    await answering.answer(recall.message_ids)
    state.close()
    assert [(each.payload, *rest) for each, *rest in found] == [(THEIRS, HINT, 7)] * published
    assert core.answers.spent.total() == len(THEIRS) * charged


@pytest.mark.parametrize("age_s", [10, 60])
@pytest.mark.parametrize("whole", [False, True])
async def test_what_no_store_holds_is_published_as_it_was_while_nodes_take_that(
    age_s: int, *, whole: bool
) -> None:
    """Use a bus that stores nothing and, like a node, refuses messages older than 20 s."""
    strict = Strict(Bus(remembers=False))
    config = replace(
        CONFIG, repair=RepairConfig(50, 200), sync_min_ms=3_600_000, sync_max_ms=3_600_000
    )
    cipher = Reversing(whole=whole)
    async with (
        joined(strict, "alice", config=config, clock=lambda: strict.now_ns, cipher=cipher) as alice,
        asyncio.timeout(PATIENCE_S),
    ):
        await alice.send(b"the first message of a run carries a filter")
        said = await alice.send(b"hello")
        await alice.wait_for(lambda status: not status.unpublished and status.live)
        _, first = strict.offered
        strict.now_ns += age_s * S
        request = encode_message(
            SdsMessage("room", "ask", "bob", NOW, repair_request=(Entry(said),))
        )
        sealed = cipher.seal(request) if whole else request
        strict.bus.add(ROUTE, Fetched(sealed, b"ask", strict.now_ns))
        expected = 3 if age_s == 10 else 4
        while len(strict.offered) < expected:
            await strict.bus.news()
        assert strict.offered[2] == first, "the same bytes and time, so the same hash"
        assert strict.offered[3:] == (
            [] if age_s == 10 else [Outbound(first.payload, strict.now_ns)]
        )


async def test_a_refused_cursor_is_forgotten_and_the_channel_goes_on(tmp_path: Path) -> None:
    transport, state = Bus(remembers=False).transport(), tmp_path / "alice.db"
    for count in (MAX_PUBLISH_MESSAGES + 1, 1):
        async with (
            joined(transport, "alice", state=state, config=CONFIG) as alice,
            asyncio.timeout(PATIENCE_S),
        ):
            await alice.wait_for(lambda status: status.live)
            await alice.send_all([b"%d" % number for number in range(count)])
            await alice.wait_for(lambda status: not status.unpublished)


# Scans for messages that were missed: wanted until one node was read to its end

MESSAGES = tuple(Fetched(b"%d" % number, b"", number * 10) for number in range(1, 9))
PAGE = 2


class ScannedStore:
    """A link that can only be scanned, and whose scans fail after ``fails_after`` pages."""

    def __init__(self, *fails_after: int) -> None:
        self.name = "store"
        self.fails_after = list(fails_after)
        self.scans: list[int] = []

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        self.scans.append(since_ns)
        left = self.fails_after.pop(0) if self.fails_after else len(MESSAGES)
        found = [each for each in MESSAGES if each.timestamp_ns >= since_ns]
        for start in range(0, len(found), PAGE):
            if start >= left * PAGE:
                raise TransportError("The line is cut.")
            yield found[start : start + PAGE]
        if not left:
            raise TransportError("The line is cut.")


class Receiver:
    """A receiver without room for one message until it was relieved so often."""

    def __init__(self, refuses: Fetched | None = None, until: int = 0) -> None:
        self.came: dict[Fetched, None] = {}
        self.relieved = 0
        self._refuses, self._until = refuses, until

    async def take(self, messages: Sequence[Fetched]) -> int | None:
        for each in messages:
            if each == self._refuses and self.relieved < self._until:
                return each.timestamp_ns
            self.came[each] = None
        return None

    async def relieve(self) -> None:
        self.relieved += 1


def searched(stores: Sequence[Any], receiver: Receiver, seconds: int, *since_ns: int) -> None:
    """Request scans, and let virtual time pass."""
    timeline = Timeline(START_NS)

    async def run() -> None:
        core = MessageChannel(ChannelConfig("room", "alice"), 0, random.Random(1))
        participant = SimpleNamespace(
            ledger=ParticipantLedger(core),
            rotation=Rotation(stores),
            links=stores,
            take=receiver.take,
            relieve=receiver.relieve,
        )
        feed = ChannelFeed(cast("Participant", participant))
        task = asyncio.create_task(feed.searches())
        for each in since_ns:
            feed.search(each)
        await asyncio.sleep(seconds)
        task.cancel()

    run_virtually(timeline, run())


@pytest.mark.parametrize(
    ("fails_after", "relieved", "since_ns", "scans"),
    [
        # It continues from the last page that came, and ends with the first scan that is complete.
        ((0, 1, 0, 0, 2), 0, (10,), [10, 10, 20, 20, 20, 50]),
        # Without room it is relieved, and continues from the refused message.
        ((), 3, (0,), [0, 50, 50, 50]),
        # Requests of one moment are one scan of the longest time.
        ((), 0, (50, 10, 30), [10]),
    ],
)
def test_a_search_is_tried_again_until_it_is_complete(
    fails_after: tuple[int, ...], relieved: int, since_ns: tuple[int, ...], scans: list[int]
) -> None:
    store, receiver = ScannedStore(*fails_after), Receiver(MESSAGES[4], until=relieved)
    searched([store], receiver, 60, *since_ns)
    assert (tuple(receiver.came), store.scans) == (MESSAGES, scans)


@pytest.mark.parametrize(("failures", "refusals", "then_ns"), [(100, 0, 10), (0, 1, 50)])
def test_a_search_goes_to_the_next_node(failures: int, refusals: int, then_ns: int) -> None:
    one, two = ScannedStore(*[0] * failures), ScannedStore()
    searched([one, two], receiver := Receiver(MESSAGES[4], until=refusals), 60, 10)
    assert (one.scans, two.scans, tuple(receiver.came)) == ([10], [then_ns], MESSAGES)


def test_a_search_that_cannot_succeed_is_tried_every_few_seconds() -> None:
    store, receiver = ScannedStore(), Receiver(MESSAGES[4], until=10_000)
    searched([store], receiver, 600, 0)
    assert 100 < len(store.scans) < 200


def test_missing_messages_are_asked_for_less_and_less() -> None:
    core = channel()
    take(core, wire("b", after=["a"]))
    asked_s: list[float] = []

    async def nothing(*_: object) -> AsyncGenerator[Sequence[Fetched], None]:
        asked_s.append(asyncio.get_running_loop().time())
        yield []

    async def run() -> None:
        participant = SimpleNamespace(
            core=core,
            rotation=Rotation([cast("Link", SimpleNamespace(by_id=nothing))]),
            feed=SimpleNamespace(quiet=SimpleNamespace(wait=partial(asyncio.sleep, 0))),
            readable=True,
            take=Receiver().take,
            notify=lambda _: None,
            ledger=ParticipantLedger(core),
            now_ms=lambda: NOW,
        )
        repair = Repair(cast("Participant", participant))
        repair.wake()
        task = asyncio.create_task(repair.run())
        await asyncio.sleep(200)
        task.cancel()

    run_virtually(Timeline(START_NS), run())
    pauses = [round(after - before) for before, after in pairwise(asked_s)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
