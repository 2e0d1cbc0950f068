"""Sessions with peers that break the rules: each ends with a sentence, and nothing stays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
import pytest_asyncio

from reconcile.limits import CodecLimits, SessionLimits
from store.domain.ports import PeerAddress
from store.rpc.identity import PeerRules
from store.rpc.peer_calls import PeerCallError, PeerConnector
from store.serving.context import NodeIdentity
from store.sync.session import exchange
from store.sync.session.exchange import RECONCILE, TRANSFER
from store.sync.session.report import SessionReport, SyncEnding
from store.sync.transfer import transfer as transferring
from storenode.client.messages import hash_of
from storenode.message.varint import varint
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame
from tests.integration.peers.harness import PeerNode, items, peer_node
from tests.integration.peers.hostile import (
    METADATA,
    SESSION_ID,
    RawPeer,
    Script,
    Scripts,
    frames,
    honest_reconcile,
    hostile_server,
    raw_peer,
)
from tests.integration.rpc.harness import within

pytestmark = pytest.mark.asyncio(loop_scope="module")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SMALL = SessionLimits(
    payload=CodecLimits(max_payload_bytes=65_536, max_ranges=64, max_elements=100), max_rounds=8
)
END_OF_TIME = varint(2**63 - 1)
MALFORMED = b"\x01\x00\x80\x00"
CLAIM = b"\x01\x00" + END_OF_TIME + b"\x02" + varint(2**40)
FINGERPRINT = b"\x01\x00" + END_OF_TIME + b"\x01"
FLOOD = items(range(1_000, 7_000))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(new_store: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """Serve a node with small limits that holds messages 0 to 49, and is to hold no others."""
    async with peer_node("a.example", new_store(), limits=SMALL) as opened:
        await opened.hold(items(range(50)))
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def peer(node: PeerNode) -> AsyncIterator[RawPeer]:
    """Connect a caller with a free hand."""
    node.observer.clear()
    async with raw_peer(node) as opened:
        yield opened


# Callers


async def failed(node: PeerNode) -> SessionReport:
    """Return the next session that ended, which must have failed and left nothing behind."""
    outcome = await node.observer.ended()
    assert outcome.ending is SyncEnding.FAILED
    assert not outcome.in_sync
    assert outcome.error
    assert node.idle()
    return outcome


@pytest.mark.parametrize("method", [RECONCILE, TRANSFER])
async def test_a_caller_that_does_not_name_itself(peer: RawPeer, method: str) -> None:
    malformed = (("storenode-node-id", "a b"), *METADATA[1:])
    for metadata in ((), METADATA[:2], METADATA[1:], malformed):
        code, sentence = await peer.begin(method, metadata).status()
        assert code is INVALID
        assert "storenode-" in sentence


async def test_a_client_with_a_token_is_no_peer(peer: RawPeer) -> None:
    metadata = (*METADATA, ("authorization", "Bearer x"))
    code, _ = await peer.begin(RECONCILE, metadata).status()
    assert code is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        (b"\xff\xff\xff", INVALID, "ReconcileFrame"),
        (ReconcileFrame(ranges_data=MALFORMED), INVALID, "byte"),
        (ReconcileFrame(ranges_data=bytes(70_000)), EXHAUSTED, "payload bytes"),
        (ReconcileFrame(ranges_data=CLAIM), INVALID, "byte"),
        (ReconcileFrame(ranges_data=b"\x01\x00" + b"\x01\x00" * 65), EXHAUSTED, "ranges"),
    ],
    ids=["no frame", "malformed", "too large", "claims more than there is", "too many ranges"],
)
async def test_a_first_frame_that_cannot_be_taken(
    node: PeerNode, peer: RawPeer, frame: bytes | ReconcileFrame, code: grpc.StatusCode, words: str
) -> None:
    call = peer.begin(RECONCILE)
    await call.write(frame)
    status, sentence = await call.status()
    assert status is code, sentence
    assert words in sentence
    assert node.idle()
    assert (await peer.reconcile(items(range(50))))[1].rounds == 1, "the node goes on"


async def test_callers_that_send_nothing_take_no_session(
    node: PeerNode, peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_FRAME_S", 0.1)
    call = peer.begin(RECONCILE)
    await call.call.initial_metadata()
    assert not len(node.exchange.sessions)
    code, sentence = await call.status()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED, "others wait for its place"
    assert "said nothing" in sentence
    assert "--peer-silence" in sentence


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        (b"\xff\xff", INVALID, "TransferFrame"),
        (TransferFrame(messages=FLOOD), EXHAUSTED, "nobody asked for"),
    ],
    ids=["garbage", "a flood"],
)
async def test_a_transfer_of_a_caller_that_breaks_the_rules(
    node: PeerNode, peer: RawPeer, frame: bytes | TransferFrame, code: grpc.StatusCode, words: str
) -> None:
    before = await node.hashes()
    session_id, _ = await peer.reconcile(items(range(10, 60)))
    call = peer.transfer()
    await call.write(TransferFrame(session_id=session_id))
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may have ended already
        await call.write(frame)
    status, sentence = await call.status()
    assert status is code, sentence
    assert words in sentence
    assert words in (await failed(node)).error
    assert await node.hashes() == before


async def test_a_call_goes_on_until_its_caller_has_half_closed(
    node: PeerNode, peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that no last write of a caller seems to have failed."""
    monkeypatch.setattr(transferring, "PEER_CLOSING_S", 60.0)
    session_id, result = await peer.reconcile(items(range(10, 50)))
    assert len(result.to_receive) == 10
    call = peer.transfer()
    await call.write(TransferFrame(session_id=session_id, done=True))
    received = await call.read_transfer()
    while received is not None and not received.messages:
        received = await call.read_transfer()
    assert received is not None
    await call.write(TransferFrame(stored=[hash_of(message) for message in received.messages]))
    assert not call.call.done()
    await call.call.done_writing()
    assert (await call.status())[0] is grpc.StatusCode.OK
    assert (await node.observer.ended()).in_sync


# Callees


async def called(node: PeerNode, scripts: Scripts, name: str = "") -> SessionReport:
    """Return the outcome of a session with a server that plays scripts; nothing is left of it."""
    async with hostile_server(scripts) as peer:
        address = PeerAddress(peer.host, peer.port, name)
        outcome = await node.call(address)
        assert node.idle()
        if not name:
            await asyncio.wait_for(scripts.ended.wait(), 60)
        return outcome


def frame(payload: bytes, session_id: str = SESSION_ID) -> ReconcileFrame:
    """Return a responder's frame."""
    return ReconcileFrame(ranges_data=payload, session_id=session_id)


async def endless(context: Any) -> None:  # noqa: ANN401 - grpc.aio's, as below
    """Send a fingerprint over everything that never matches to every frame."""
    number = 0
    while isinstance(await context.read(), bytes):
        number += 1
        payload = FINGERPRINT + number.to_bytes(32, "big")
        await context.write(frame(payload).SerializeToString())


async def silent(context: Any) -> None:  # noqa: ANN401
    """Read and never answer."""
    while isinstance(await context.read(), bytes):
        continue


async def leaves(context: Any) -> None:  # noqa: ANN401
    """End the call with OK where an answer is due."""
    await context.read()


def ends_with(code: grpc.StatusCode) -> Script:
    """Return a script that ends the call with an error."""

    async def script(context: Any) -> None:  # noqa: ANN401
        await context.read()
        context.set_code(code)
        context.set_details("so there\n\x1b[31m" + "!" * 1_000)

    return script


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (frames(b"\xff\xff\xff"), "ReconcileFrame"),
        (frames(frame(MALFORMED)), "at byte"),
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
async def test_a_reconciliation_of_a_callee_that_breaks_the_rules(
    node: PeerNode, script: Script, words: str
) -> None:
    outcome = await called(node, Scripts(reconcile=script))
    assert outcome.ending is SyncEnding.FAILED
    assert not outcome.in_sync
    assert words in outcome.error
    assert len(outcome.error) < 1_000
    assert outcome.error.isprintable()
    assert outcome.node_id == "hostile.example"
    assert node.observer.sessions[-1] is outcome


async def test_a_session_that_gives_way_is_no_error_and_a_refusal_is_one_line(
    node: PeerNode,
) -> None:
    outcome = await called(node, Scripts(reconcile=ends_with(grpc.StatusCode.ABORTED)))
    assert (outcome.ending, outcome.error, outcome.in_sync) == (SyncEnding.ABORTED, "", False)
    refusal = ReconcileFrame(refusal="not with you\n" + "!" * 100_000)
    outcome = await called(node, Scripts(reconcile=frames(refusal)))
    assert outcome.ending is SyncEnding.REFUSED
    assert "will not reconcile: not with you" in outcome.error
    assert outcome.error.isprintable()
    assert len(outcome.error) < 1_000


async def test_a_callee_that_does_not_name_itself_or_is_another(node: PeerNode) -> None:
    malformed = (("storenode-node-id", "no good"), *METADATA[1:])
    for metadata in ((), METADATA[:2], malformed):
        scripts = Scripts(reconcile=frames(read_first=False), metadata=metadata)
        assert "does not say which node it is" in (await called(node, scripts)).error
    outcome = await called(node, Scripts(reconcile=silent), "b.example")
    assert "hostile.example instead of b.example" in outcome.error
    late = Scripts(reconcile=honest_reconcile([]), late=True)
    outcome = await called(node, late, "c.example")
    assert outcome.ending is SyncEnding.FAILED
    assert "is hostile.example instead of c.example" in outcome.error
    assert (outcome.missing_here, outcome.missing_there) == (0, 0)


async def test_a_callee_that_never_names_itself_is_given_up() -> None:
    connector = PeerConnector(NodeIdentity("a.example", "store-a", "1.0"))
    async with (
        hostile_server(Scripts(reconcile=silent, late=True)) as peer,
        connector.call(peer, RECONCILE, patience_s=0.1) as call,
    ):
        with pytest.raises(PeerCallError, match="did not answer within"):
            await within(call.identify())
    await connector.close()


async def moved(node: PeerNode, transfer: Script, **scripts: Any) -> SessionReport:  # noqa: ANN401
    """Return the outcome of a session with a peer that honestly announces messages 10 to 59."""
    claim = honest_reconcile(items(range(10, 60)))
    return await called(node, Scripts(reconcile=claim, transfer=transfer, **scripts))


async def test_a_transfer_by_another_node(node: PeerNode) -> None:
    other = (("storenode-node-id", "c.example"), ("storenode-store-id", "c"), METADATA[2])
    outcome = await moved(node, silent, transfer_metadata=other)
    assert "was hostile.example and is c.example" in outcome.error


# Memory and places of calls, which are given back at once

SILENT = 12
"""Calls that are begun, and send nothing."""


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """Collect transfers, while nothing looks for garbage."""
    made: list[weakref.ref[Any]] = []

    class Watched(transferring.Transfer):
        def __init__(self, *args: Any, **more: Any) -> None:  # noqa: ANN401 - as it is made
            super().__init__(*args, **more)
            made.append(weakref.ref(self))

    monkeypatch.setattr(exchange, "Transfer", Watched)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


async def test_a_transfer_that_fails_lets_go_of_its_frames(
    node: PeerNode, transfers: list[weakref.ref[Any]]
) -> None:
    flood = TransferFrame(session_id=SESSION_ID, messages=items(range(1_000, 7_000)))
    scripts = Scripts(honest_reconcile(items(range(10, 60))), frames(flood))
    async with hostile_server(scripts) as address:
        outcome = await node.call(address)
    assert outcome.ending is SyncEnding.FAILED
    assert [transfer() for transfer in transfers] == [None]


@pytest.mark.parametrize("trusted", [True, False])
async def test_silent_callers_keep_no_other_out(
    new_database: Callable[[], str], trusted: bool
) -> None:
    allowed = frozenset({"hostile.example"}) if trusted else frozenset[str]()
    rules = PeerRules(allowed=allowed)
    opened = peer_node("a.example", new_database(), peers=rules)
    async with opened as node, raw_peer(node) as caller:
        await node.hold(items(range(50)))
        silent = [caller.begin(RECONCILE) for _ in range(SILENT)]
        for call in silent:
            await within(call.call.initial_metadata())
        assert (await within(caller.reconcile(items(range(50)))))[1].rounds == 1
        for call in silent:
            call.call.cancel()
