"""The memory of calls of peers, which is freed at once."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest

from reconcile.session import Role
from store.rpc.identity import PeerRules
from store.sync.session import exchange
from store.sync.session.exchange import RECONCILE
from store.sync.session.report import SyncEnding, Window
from store.sync.transfer import transfer as transferring
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame
from tests.integration.peers.harness import PeerNode, items, peer_node
from tests.integration.peers.hostile import (
    METADATA,
    SESSION_ID,
    Honest,
    Scripts,
    frames,
    honest_reconcile,
    hostile_server,
    raw_peer,
)
from tests.integration.rpc.harness import within

SLOTS = 2


@pytest.fixture
async def node(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PeerNode]:
    """Serve a node that holds messages 0 to 49 and reads few first frames at a time."""
    monkeypatch.setattr(exchange, "MAX_OPENING_CALLS", SLOTS)
    monkeypatch.setattr(exchange, "MAX_OPENING_CALLS_OF_PEER", SLOTS + 1)
    # Their names are believed: those of strangers have other places.
    rules = PeerRules(allowed=frozenset({"hostile.example", "c.example"}))
    async with peer_node("a.example", new_database(), peers=rules) as opened:
        await opened.hold(items(range(50)))
        yield opened


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
        outcome = await within(node.caller.synchronize(address, Window()))
    assert outcome.ending is SyncEnding.FAILED
    assert [transfer() for transfer in transfers] == [None]


async def test_callers_that_say_nothing_give_their_place_back(node: PeerNode) -> None:
    async with raw_peer(node) as caller:
        for _ in range(3):
            silent = [caller.begin(RECONCILE) for _ in range(SLOTS)]
            for call in silent:
                await within(call.call.initial_metadata())
            honest = asyncio.create_task(caller.reconcile(items(range(50))))
            for call in silent:
                call.call.cancel()
            assert (await within(honest))[1].rounds == 1


async def test_one_silent_peer_does_not_keep_the_others_out(
    node: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_OPENING_CALLS_OF_PEER", 1)
    async with raw_peer(node) as caller:
        silent = caller.begin(RECONCILE)
        await within(silent.call.initial_metadata())
        code, sentence = await caller.begin(RECONCILE).status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "first frame" in sentence
        other = (("storenode-node-id", "c.example"), *METADATA[1:])
        call = caller.begin(RECONCILE, other)
        await call.write(Honest(Role.INITIATOR, items(range(60))).first())
        assert await call.read_reconcile() is not None
        silent.call.cancel()
        call.call.cancel()
        assert (await node.observer.ended()).node_id == "c.example"
        assert (await caller.reconcile(items(range(50))))[1].rounds == 1
