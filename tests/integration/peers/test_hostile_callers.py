"""A node among callers that break the rules: each is told what is wrong, and nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from reconcile.limits import CodecLimits, SessionLimits
from reconcile.session import Role
from store.domain.ports import SyncEnding, SyncOutcome
from store.sync.limits import TransferLimits
from store.sync.session import reconciliation
from store.sync.session.initiator import RECONCILE, TRANSFER
from store.sync.transfer import driver as transferring
from storenode.message.varint import varint
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame
from tests.integration.peers.harness import PeerNode, hash_of, items, peer_node
from tests.integration.peers.hostile import METADATA, Honest, RawPeer, raw_peer

INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SMALL = SessionLimits(
    payload=CodecLimits(max_payload_bytes=65_536, max_ranges=64, max_elements=100), max_rounds=8
)
END_OF_TIME = varint(2**63 - 1)
IMPATIENT_NS = 3_000_000_000


@pytest.fixture
async def node(new_database: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """A node with small limits that holds messages 0 to 49."""
    async with peer_node("a.example", new_database(), limits=SMALL) as opened:
        await opened.hold(items(range(50)))
        yield opened


@pytest.fixture
async def peer(node: PeerNode) -> AsyncIterator[RawPeer]:
    """A caller with a free hand."""
    async with raw_peer(node) as opened:
        yield opened


@pytest.fixture
async def impatient(new_database: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """The same with little patience, though more than a busy machine takes for an honest frame."""
    limits = TransferLimits(silence_ns=IMPATIENT_NS)
    async with peer_node("a.example", new_database(), transfer_limits=limits) as opened:
        await opened.hold(items(range(50)))
        yield opened


async def failed(node: PeerNode) -> SyncOutcome:
    """The next session that ended, which must have failed and left nothing behind."""
    outcome = await node.observer.ended()
    assert outcome.ending is SyncEnding.FAILED
    assert not outcome.in_sync
    assert outcome.error
    assert node.idle()
    return outcome


@pytest.mark.parametrize("method", [RECONCILE, TRANSFER])
@pytest.mark.parametrize(
    "metadata",
    [(), METADATA[:2], METADATA[1:], (("storenode-node-id", "a b"), *METADATA[1:])],
    ids=["none", "no version", "no node ID", "malformed"],
)
async def test_a_caller_that_does_not_say_who_it_is(
    peer: RawPeer, method: str, metadata: tuple[tuple[str, str], ...]
) -> None:
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
        (ReconcileFrame(ranges_data=b"\x01\x00\x80\x00"), INVALID, "byte"),
        (ReconcileFrame(ranges_data=bytes(70_000)), EXHAUSTED, "payload bytes"),
        (
            ReconcileFrame(ranges_data=b"\x01\x00" + END_OF_TIME + b"\x02" + varint(2**40)),
            INVALID,
            "byte",
        ),
        (
            ReconcileFrame(ranges_data=b"\x01\x00" + b"\x01\x00" * 65),
            EXHAUSTED,
            "ranges",
        ),
    ],
    ids=["no frame", "malformed", "too large", "claims more than there is", "too many ranges"],
)
async def test_a_frame_that_cannot_be_taken(
    node: PeerNode, peer: RawPeer, frame: bytes | ReconcileFrame, code: grpc.StatusCode, words: str
) -> None:
    call = peer.begin(RECONCILE)
    await call.write(frame)
    status, sentence = await call.status()
    assert status is code, sentence
    assert words in sentence
    assert node.idle()
    assert (await peer.reconcile(items(range(50))))[1].rounds == 1, "the node goes on"


async def test_a_session_without_end(node: PeerNode, peer: RawPeer) -> None:
    call, honest = peer.begin(RECONCILE), Honest(Role.INITIATOR, items(range(10, 60)))
    frame = honest.first()
    for _ in range(9):
        await call.write(frame)
        if await call.read_reconcile() is None:
            break
    code, sentence = await call.status()
    assert code is EXHAUSTED
    assert "rounds" in sentence
    assert "rounds" in (await failed(node)).error


async def test_callers_that_leave_are_forgotten_at_once(node: PeerNode, peer: RawPeer) -> None:
    call = peer.begin(RECONCILE)
    await call.write(Honest(Role.INITIATOR, items(range(60))).first())
    assert await call.read_reconcile() is not None
    assert len(node.exchange.sessions) == 1
    call.call.cancel()
    await failed(node)
    call = peer.begin(RECONCILE)
    await call.write(Honest(Role.INITIATOR, items(range(60))).first())
    assert await call.read_reconcile() is not None
    await call.call.done_writing()
    assert (await call.status())[0] is INVALID
    assert "its turn" in (await failed(node)).error


async def test_callers_that_say_nothing_hold_no_session(
    impatient: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw_peer(impatient) as peer:
        silent = peer.begin(RECONCILE)
        await silent.call.initial_metadata()
        assert not len(impatient.exchange.sessions)
        call = peer.begin(RECONCILE)
        await call.write(Honest(Role.INITIATOR, items(range(60))).first())
        code, sentence = await call.status()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "said nothing" in sentence
        assert "--peer-silence" in sentence
        await failed(impatient)
        silent.call.cancel()
        monkeypatch.setattr(reconciliation, "FIRST_FRAME_S", 0.1)
        code, sentence = await peer.begin(RECONCILE).status()
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED, "others wait for its place"
        assert "said nothing" in sentence


async def test_a_caller_that_asks_nothing(node: PeerNode, peer: RawPeer) -> None:
    call = peer.begin(RECONCILE)
    await call.call.done_writing()
    assert (await call.status())[0] is grpc.StatusCode.OK
    call = peer.begin(RECONCILE)
    await call.write(ReconcileFrame())
    await call.call.done_writing()
    assert (await call.status())[0] is grpc.StatusCode.OK
    assert node.idle()


async def transfer_status(
    peer: RawPeer, *sent: bytes | TransferFrame
) -> tuple[grpc.StatusCode, str]:
    """Reconcile as a peer with messages 10 to 59, then send these frames."""
    session_id, _ = await peer.reconcile(items(range(10, 60)))
    call = peer.transfer()
    await call.write(TransferFrame(session_id=session_id))
    for frame in sent:
        try:
            await call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            break
    return await call.status()


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        (b"\xff\xff", INVALID, "TransferFrame"),
        (TransferFrame(session_id="another"), INVALID, "another session"),
        (TransferFrame(messages=items(range(1_000, 7_000))), EXHAUSTED, "nobody asked for"),
    ],
    ids=["garbage", "another session", "a flood"],
)
async def test_a_transfer_that_breaks_the_rules(
    node: PeerNode, peer: RawPeer, frame: bytes | TransferFrame, code: grpc.StatusCode, words: str
) -> None:
    before = await node.hashes()
    status, sentence = await transfer_status(peer, frame)
    assert status is code, sentence
    assert words in sentence
    assert words in (await failed(node)).error
    assert await node.hashes() == before


def acknowledged(frame: TransferFrame) -> TransferFrame:
    """Everything in a frame, as stored."""
    return TransferFrame(stored=[hash_of(message) for message in frame.messages])


async def test_a_call_goes_on_until_its_caller_has_said_that_it_is_done(
    node: PeerNode, peer: RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ended sooner would make the caller's last write seem to have failed."""
    monkeypatch.setattr(transferring, "PEER_CLOSING_S", 60.0)
    session_id, result = await peer.reconcile(items(range(10, 50)))
    assert len(result.to_receive) == 10
    call = peer.transfer()
    await call.write(TransferFrame(session_id=session_id, done=True))
    received = await call.read_transfer()
    while received is not None and not received.messages:
        received = await call.read_transfer()
    assert received is not None
    await call.write(acknowledged(received))
    assert not call.call.done()
    await call.call.done_writing()
    assert (await call.status())[0] is grpc.StatusCode.OK
    assert (await node.observer.ended()).in_sync
