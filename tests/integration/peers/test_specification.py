"""A node and a peer that is written from the specification alone, over gRPC, in both roles."""

from __future__ import annotations

from random import Random
from typing import Any

import grpc
import pytest

from reconcile.ids import END, LOWEST
from store.domain.ports import SyncEnding, Window
from store.sync.session.initiator import RECONCILE
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.harness import PeerNode, items
from tests.integration.peers.hostile import (
    SESSION_ID,
    Scripts,
    hostile_server,
    ids_of,
    raw_peer,
)
from tests.integration.rpc.harness import within
from tests.support.spec_peer import SpecPeer


def shares(seed: int) -> tuple[list[WakuMessageAndTopic], list[WakuMessageAndTopic]]:
    """What the node and the peer hold of 600 messages."""
    rng = Random(seed)
    both = items(range(600))
    return (
        [each for each in both if rng.random() < 0.9],
        [each for each in both if rng.random() < 0.8],
    )


def spec_peer(messages: list[WakuMessageAndTopic]) -> SpecPeer:
    """A peer that holds these."""
    return SpecPeer(ids_of(messages).pairs(), shards=())


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_answers_it(first: PeerNode, seed: int) -> None:
    ours, theirs = shares(seed)
    await first.hold(ours)
    peer = spec_peer(theirs)
    async with raw_peer(first) as raw:
        call = raw.begin(RECONCILE)
        payload = peer.first(LOWEST, (END[0], LOWEST[1]))
        while payload:
            await call.write(ReconcileFrame(ranges_data=payload))
            answer = await call.read_reconcile()
            assert answer is not None, await call.status()
            if not answer.ranges_data:
                break
            payload = peer.answer(answer.ranges_data)
        if not payload:
            await call.write(ReconcileFrame())
        await call.call.done_writing()
        assert (await call.status())[0] is grpc.StatusCode.OK
    held, lacked = set(ids_of(theirs).pairs()), set(ids_of(ours).pairs())
    [session] = first.exchange.sessions
    assert set(session.to_receive.pairs()) == held - lacked
    assert set(session.to_send.pairs()) == lacked - held
    assert peer.to_send == held - lacked
    assert peer.to_receive == lacked - held


@pytest.mark.parametrize("seed", range(4))
async def test_a_node_calls_it(first: PeerNode, seed: int) -> None:
    ours, theirs = shares(seed)
    await first.hold(ours)
    peer = spec_peer(theirs)

    async def reconcile(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        while isinstance(data := await context.read(), bytes):
            payload = ReconcileFrame.FromString(data).ranges_data
            if not payload:
                return
            answer = ReconcileFrame(ranges_data=peer.answer(payload), session_id=SESSION_ID)
            await context.write(answer.SerializeToString())

    async def transfer(context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        context.set_code(grpc.StatusCode.UNAVAILABLE)

    scripts = Scripts(reconcile=reconcile, transfer=transfer)
    async with hostile_server(scripts) as address:
        outcome = await within(first.caller.synchronize(address, Window()))
    held, lacked = set(ids_of(theirs).pairs()), set(ids_of(ours).pairs())
    assert outcome.ending is SyncEnding.FAILED, "it does not transfer"
    assert outcome.missing_here == len(held - lacked)
    assert outcome.missing_there == len(lacked - held)
    assert peer.to_send == held - lacked
    assert peer.to_receive == lacked - held
