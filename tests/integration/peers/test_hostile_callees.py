"""A node that calls peers which break the rules: every session ends, and its outcome says how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from reconcile.limits import SessionLimits
from store.domain.ports import PeerAddress, SyncEnding, SyncOutcome, Window
from store.sync.limits import TransferLimits
from store.sync.session import reconciliation
from store.sync.transfer import driver as transferring
from storenode.message.varint import varint
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame, TransferRefusal
from tests.integration.peers.harness import PeerNode, hash_of, item, items, peer_node
from tests.integration.peers.hostile import (
    METADATA,
    SESSION_ID,
    Script,
    Scripts,
    frames,
    honest_reconcile,
    hostile_server,
)
from tests.integration.rpc.harness import within

CLAIM = b"\x01\x00" + varint(2**63 - 1) + b"\x02" + varint(2**40)
FINGERPRINT = b"\x01\x00" + varint(2**63 - 1) + b"\x01"


@pytest.fixture
async def node(new_database: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """A node that holds messages 0 to 49."""
    async with peer_node("a.example", new_database(), limits=SessionLimits(max_rounds=8)) as opened:
        await opened.hold(items(range(50)))
        yield opened


async def called(node: PeerNode, scripts: Scripts) -> SyncOutcome:
    """The outcome of a session with a server that plays scripts; nothing is left of it."""
    async with hostile_server(scripts) as peer:
        outcome = await within(node.caller.synchronize(peer, Window()))
        assert node.idle()
        await asyncio.wait_for(scripts.ended.wait(), 60)
        return outcome


def frame(payload: bytes, session_id: str = SESSION_ID) -> ReconcileFrame:
    """A responder's frame."""
    return ReconcileFrame(ranges_data=payload, session_id=session_id)


async def endless(context: Any) -> None:  # noqa: ANN401
    """Answers every frame with a fingerprint over everything that never matches."""
    number = 0
    while isinstance(await context.read(), bytes):
        number += 1
        payload = FINGERPRINT + number.to_bytes(32, "big")
        await context.write(frame(payload).SerializeToString())


async def silent(context: Any) -> None:  # noqa: ANN401
    """Reads and never says anything."""
    while isinstance(await context.read(), bytes):
        continue


async def leaves(context: Any) -> None:  # noqa: ANN401
    """Ends the call with OK where an answer is due."""
    await context.read()


def ends_with(code: grpc.StatusCode) -> Script:
    """Ends the call with an error."""

    async def script(context: Any) -> None:  # noqa: ANN401
        await context.read()
        context.set_code(code)
        context.set_details("so there\n\x1b[31m" + "!" * 1_000)

    return script


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (frames(b"\xff\xff\xff"), "ReconcileFrame"),
        (frames(frame(b"\x01\x00\x80\x00")), "at byte"),
        (frames(frame(CLAIM)), "at byte"),
        (frames(frame(FINGERPRINT + bytes(32), "")), "does not name the session"),
        (frames(frame(FINGERPRINT + bytes(32), "x" * 32)), "does not name the session"),
        (frames(frame(FINGERPRINT + bytes(31) + b"1"), frame(b"", "f" * 32)), "another name"),
        (frames(frame(b""), frame(b"")), "goes on after the end"),
        (endless, "rounds"),
        (leaves, "its turn to answer"),
        (ends_with(grpc.StatusCode.INTERNAL), "ended the call (INTERNAL): so there"),
    ],
    ids=[
        "garbage",
        "malformed",
        "an enormous claim",
        "no session",
        "an odd session",
        "two sessions",
        "goes on",
        "endless ranges",
        "leaves",
        "fails",
    ],
)
async def test_a_reconciliation_that_breaks_the_rules(
    node: PeerNode, script: Script, words: str
) -> None:
    outcome = await called(node, Scripts(reconcile=script))
    assert outcome.ending is SyncEnding.FAILED
    assert not outcome.in_sync
    assert words in outcome.error
    assert len(outcome.error) < 1_000
    assert outcome.error.isprintable()
    assert outcome.peer_node_id == "hostile.example"
    assert node.observer.sessions[-1][3] == outcome


async def test_a_tie_that_is_lost_is_no_error(node: PeerNode) -> None:
    outcome = await called(node, Scripts(reconcile=ends_with(grpc.StatusCode.ABORTED)))
    assert outcome.ending is SyncEnding.ABORTED
    assert outcome.error == ""
    assert not outcome.in_sync


async def test_a_refusal_is_shown_in_one_line(node: PeerNode) -> None:
    refusal = ReconcileFrame(refusal="not with you\n" + "!" * 100_000)
    outcome = await called(node, Scripts(reconcile=frames(refusal)))
    assert outcome.ending is SyncEnding.REFUSED
    assert "will not reconcile: not with you" in outcome.error
    assert outcome.error.isprintable()
    assert len(outcome.error) < 1_000


async def test_a_peer_that_says_nothing(
    node: PeerNode, new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = TransferLimits(silence_ns=200_000_000)
    async with peer_node("c.example", new_database(), transfer_limits=limits) as impatient:
        await impatient.hold(items(range(50)))
        outcome = await called(impatient, Scripts(reconcile=silent))
        assert "said nothing" in outcome.error
        assert "--peer-silence" in outcome.error
    monkeypatch.setattr(reconciliation, "MAX_RECONCILE_S", 2.0)
    outcome = await called(node, Scripts(reconcile=silent))
    assert "not done within" in outcome.error


@pytest.mark.parametrize(
    "metadata",
    [(), METADATA[:2], (("storenode-node-id", "no good"), *METADATA[1:])],
    ids=["none", "no version", "malformed"],
)
async def test_a_callee_that_does_not_say_who_it_is(
    node: PeerNode, metadata: tuple[tuple[str, str], ...]
) -> None:
    outcome = await called(node, Scripts(reconcile=frames(read_first=False), metadata=metadata))
    assert "does not say which node it is" in outcome.error


async def test_a_callee_with_another_name_than_the_configured_one(node: PeerNode) -> None:
    async with hostile_server(Scripts(reconcile=silent)) as peer:
        named = PeerAddress(peer.host, peer.port, "b.example")
        outcome = await within(node.caller.synchronize(named, Window()))
        assert "hostile.example instead of b.example" in outcome.error


async def moved(node: PeerNode, transfer: Script, **scripts: Any) -> SyncOutcome:  # noqa: ANN401
    """The outcome of a session with a peer that honestly announces messages 10 to 59."""
    claim = honest_reconcile(items(range(10, 60)))
    return await called(node, Scripts(reconcile=claim, transfer=transfer, **scripts))


def transfer_frame(**fields: Any) -> TransferFrame:  # noqa: ANN401
    """A frame of the session."""
    return TransferFrame(session_id=SESSION_ID, **fields)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (frames(b"\xff\xff"), "TransferFrame"),
        (frames(TransferFrame(session_id="f" * 32)), "another session"),
        (frames(TransferFrame(done=True)), "another session"),
        (frames(transfer_frame(messages=items(range(1_000, 7_000)))), "nobody asked for"),
        (frames(transfer_frame(done=True), transfer_frame(messages=items(range(50, 51)))), "done"),
        (leaves, "before everything was answered"),
        (ends_with(grpc.StatusCode.FAILED_PRECONDITION), "so there"),
    ],
    ids=[
        "garbage",
        "another session",
        "no session",
        "a flood",
        "messages after the last",
        "leaves",
        "fails",
    ],
)
async def test_a_transfer_that_breaks_the_rules(node: PeerNode, script: Script, words: str) -> None:
    before = await node.hashes()
    outcome = await moved(node, script)
    assert outcome.ending is SyncEnding.FAILED
    assert not outcome.in_sync
    assert words in outcome.error
    assert (outcome.missing_here, outcome.missing_there) == (10, 10)
    assert await node.hashes() == before


async def test_a_transfer_by_another_node(node: PeerNode) -> None:
    other = (("storenode-node-id", "c.example"), ("storenode-store-id", "c"), METADATA[2])
    outcome = await moved(node, silent, transfer_metadata=other)
    assert "was hostile.example and is c.example" in outcome.error


def by_the_book(*sent: TransferFrame) -> Script:
    """Send frames, acknowledge everything, and wait for the end."""

    async def script(context: Any) -> None:  # noqa: ANN401
        for each in sent:
            await context.write(each.SerializeToString())
        while isinstance(data := await context.read(), bytes):
            got = [hash_of(message) for message in TransferFrame.FromString(data).messages]
            if got:
                await context.write(TransferFrame(stored=got).SerializeToString())

    return script


async def test_what_is_promised_and_not_delivered_is_reported(node: PeerNode) -> None:
    outcome = await moved(node, by_the_book(transfer_frame(done=True)))
    assert outcome.error == ""
    assert outcome.ending is SyncEnding.DONE
    assert not outcome.in_sync
    assert outcome.undelivered == 10
    assert outcome.messages_sent == 10
    assert any("not delivered: 10" in note for note in outcome.notes)


async def test_altered_and_unasked_messages_are_not_stored(node: PeerNode) -> None:
    altered = item(50)
    altered.message.payload += b"!"
    sent = [altered, item(999), *items(range(51, 60))]
    outcome = await moved(node, by_the_book(transfer_frame(messages=sent, done=True)))
    assert not outcome.in_sync
    assert (outcome.undelivered, outcome.unsolicited) == (1, 2)
    assert outcome.messages_received == 9
    held = await node.hashes()
    assert {hash_of(message) for message in items(range(51, 60))} <= held
    assert not held & {hash_of(altered), hash_of(item(999)), hash_of(item(50))}


async def test_a_peer_may_name_itself_with_its_first_answer(node: PeerNode) -> None:
    book = by_the_book(transfer_frame(messages=items(range(50, 60)), done=True))
    outcome = await moved(node, book, late=True)
    assert (outcome.error, outcome.in_sync) == ("", True)
    assert (outcome.messages_received, outcome.messages_sent) == (10, 10)
    assert outcome.peer_node_id == "hostile.example"


async def test_a_peer_that_is_another_than_it_should_be_is_not_believed(node: PeerNode) -> None:
    async with hostile_server(Scripts(reconcile=honest_reconcile([]), late=True)) as peer:
        named = PeerAddress(peer.host, peer.port, "c.example")
        outcome = await within(node.caller.synchronize(named, Window()))
    assert outcome.ending is SyncEnding.FAILED
    assert "is hostile.example instead of c.example" in outcome.error
    assert (outcome.missing_here, outcome.missing_there) == (0, 0)


async def test_a_peer_that_takes_nothing_is_not_in_sync(node: PeerNode) -> None:
    refused = [
        TransferRefusal(message_hash=hash_of(message), reason="not received")
        for message in items(range(10))
    ]
    sent = transfer_frame(messages=items(range(50, 60)), refused=refused, done=True)
    outcome = await moved(node, frames(sent))
    assert outcome.ending is SyncEnding.DONE
    assert not outcome.in_sync
    assert outcome.messages_sent == 0
    assert any("did not get them: 10" in note for note in outcome.notes)


async def deaf(context: Any) -> None:  # noqa: ANN401
    """Names the session, then neither reads nor writes."""
    await context.write(transfer_frame().SerializeToString())
    await asyncio.Event().wait()


@pytest.mark.parametrize("script", [silent, deaf], ids=["silent", "deaf"])
async def test_a_peer_that_falls_silent_in_a_transfer(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    """What is sent piles up nowhere, and the session ends."""
    monkeypatch.setattr(transferring, "TRANSFER_TICK_S", 0.05)
    async with peer_node("a.example", new_database()) as node:
        await node.hold([item(number, size=100_000) for number in range(200)])
        claim = honest_reconcile([item(number, size=100_000) for number in range(100)])

        async def reconcile(context: Any) -> None:  # noqa: ANN401
            await claim(context)
            # Not sooner: a busy machine may take longer than this for an honest frame.
            limits = TransferLimits(silence_ns=500_000_000)
            node.exchange.work = replace(node.exchange.work, transfer_limits=limits)

        outcome = await called(node, Scripts(reconcile=reconcile, transfer=script))
        assert outcome.ending is SyncEnding.FAILED
        assert "said nothing" in outcome.error
        assert outcome.missing_there == 100
        assert outcome.messages_sent == 0
