"""Participants on a bus in memory: the same client, without a node."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from time import time_ns
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from storenode.cli.chat.terminal import answer_command
from storenode.cli.chat.transcript import Transcript
from storenode.common.errors import ArgumentError, StorenodeError
from storenode.message.limits import MAX_QUERY_HASHES
from storenode.sds.aio.channel import Channel, Channels
from storenode.sds.aio.events import ChannelEvent, Disconnected, EventHub, Events, Message, Repaired
from storenode.sds.aio.signing import Signing, unframe
from storenode.sds.aio.state import StateTakenError
from storenode.sds.aio.transport import Fetched
from storenode.sds.bloom import filter_of
from storenode.sds.channel import MessageChannel
from storenode.sds.claims import Proof
from storenode.sds.codec import Entry, SdsMessage, decode_message, encode_message
from storenode.sds.config import ChannelConfig
from storenode.sds.events import Broadcast, Lost, Received, Sent, Signed
from storenode.sds.limits import MAX_LEAVING_AT_ONCE, MAX_QUEUED_EVENTS, MAX_SIGNATURE_BYTES
from storenode.sds.proofs import canonical, content_id
from tests.support.bus import (
    CONTENT,
    PATIENCE_S,
    PUBSUB,
    ROUTE,
    SHAPE,
    Bus,
    BusLink,
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


async def test_a_reader_that_does_not_read_holds_up_until_it_is_closed() -> None:
    hub: EventHub[ChannelEvent] = EventHub()
    slow, quick = Events(hub, 0), Events(hub, 0)
    hub.put(1, [Sent("x", None)] * MAX_QUEUED_EVENTS)
    waiting = asyncio.create_task(hub.room())
    for _ in range(MAX_QUEUED_EVENTS):
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
