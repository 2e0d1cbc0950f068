"""Sessions between two nodes that differ, and their reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from store.sync.limits import LARGE_PAYLOAD_BYTES
from store.sync.session.report import SyncEnding, SyncRole, Window
from tests.integration.peers.harness import (
    NOW_NS,
    PeerNode,
    hash_of,
    item,
    items,
    peer_node,
)
from tests.integration.rpc.harness import within

MINUTE_NS = 60_000_000_000


async def test_two_nodes_become_equal_in_one_session(first: PeerNode, second: PeerNode) -> None:
    await first.hold(items(range(100), range(200, 240)))
    await second.hold(items(range(90), range(300, 325)))
    outcome = await first.synchronize(second)
    assert outcome.error == ""
    assert outcome.in_sync
    assert outcome.ending is SyncEnding.DONE
    assert (outcome.missing_here, outcome.missing_there) == (25, 50)
    assert outcome.differences == 75
    assert (outcome.messages_received, outcome.messages_sent) == (25, 50)
    assert (outcome.own_count, outcome.peer_count) == (140, 115)
    assert outcome.node_id == "b.example"
    assert outcome.notes == ()
    assert await first.hashes() == await second.hashes()
    assert len(await first.hashes()) == 165
    mirror = await second.observer.ended()
    assert mirror.in_sync
    assert (mirror.missing_here, mirror.missing_there) == (50, 25)
    assert (mirror.messages_received, mirror.messages_sent) == (50, 25)
    assert mirror.round_trips == outcome.round_trips
    assert (mirror.bytes_sent, mirror.bytes_received) == (
        outcome.bytes_received,
        outcome.bytes_sent,
    )
    assert [each.role for each in first.observer.sessions] == [SyncRole.INITIATOR]
    assert (mirror.role, mirror.node_id, mirror.store_id) == (
        SyncRole.RESPONDER,
        "a.example",
        "store-of-a.example",
    )
    moved = outcome.take_progress()
    assert (moved["sent", "stored"], moved["received", "stored"]) == (50, 25)
    assert moved["sent", "bytes"] == outcome.bytes_sent > 0
    assert second.count("storenode_messages_stored_total", source="transfer") == 50
    assert first.idle()
    assert second.idle()
    outcome = await first.synchronize(second)
    assert outcome.in_sync
    assert (outcome.round_trips, outcome.differences) == (1, 0)
    assert (await second.observer.ended()).in_sync
    assert first.caller.connected(second.address)
    assert first.caller.node_id(second.address) == "b.example"


async def test_a_session_compares_the_clocks_of_its_nodes(
    first: PeerNode, new_database: Callable[[], str]
) -> None:
    async with peer_node("slow", new_database(), ahead_ns=-7_200 * 10**9) as slow:
        await first.synchronize(slow)
        ((name, ahead_s),) = first.context.clocks.offsets_s().items()
        assert (name, round(ahead_s, -3)) == ("slow", -7_000)
        # The clock that the caller sent, by a comparison that goes by the machine's.
        ((name, ahead_s),) = slow.context.clocks.offsets_s().items()
        assert (name, round(ahead_s, -3)) == (first.name, 0)


async def test_nothing_below_a_horizon_is_compared(first: PeerNode, second: PeerNode) -> None:
    horizon_ns = NOW_NS - 30 * MINUTE_NS
    old, new = item(1, timestamp=horizon_ns - 1), item(2, timestamp=horizon_ns + MINUTE_NS)
    await second.hold([old, new])
    first.rules.policy = replace(first.rules.policy, horizon_ns=horizon_ns)
    outcome = await first.synchronize(second)
    assert outcome.in_sync
    assert await first.hashes() == {hash_of(new)}
    assert any("the horizon of this node" in note for note in outcome.notes)
    mirror = await second.synchronize(first)
    assert mirror.in_sync
    assert await first.hashes() == {hash_of(new)}
    below = await first.synchronize(second, Window(0, horizon_ns))
    assert below.in_sync
    assert below.round_trips == 0


async def test_other_shards_are_refused_visibly_on_both_sides(
    new_database: Callable[[], str], second: PeerNode
) -> None:
    await second.hold(items(range(3)))
    async with peer_node("c.example", new_database(), shards=(4,)) as third:
        outcome = await third.synchronize(second)
        assert outcome.ending is SyncEnding.REFUSED
        assert not outcome.in_sync
        assert "shards" in outcome.error
        mirror = await second.observer.ended()
        assert mirror.ending is SyncEnding.REFUSED
        assert "shards" in mirror.error
        assert mirror.node_id == "c.example"
        assert third.idle()
        assert second.idle()


async def test_nodes_of_one_store_and_the_node_itself_are_not_reconciled_with(
    new_database: Callable[[], str],
) -> None:
    url = new_database()
    async with (
        peer_node("c.example", url, store_id="one") as third,
        peer_node("d.example", url, store_id="one") as fourth,
    ):
        outcome = await third.synchronize(fourth)
        assert outcome.ending is SyncEnding.FAILED
        assert "a node of this store" in outcome.error
        outcome = await third.synchronize(third)
        assert "this node itself" in outcome.error
        assert third.idle()


async def test_a_peer_that_is_not_ready_or_not_there(first: PeerNode, second: PeerNode) -> None:
    second.rules.unready = "the database is away"
    outcome = await first.synchronize(second)
    assert outcome.ending is SyncEnding.FAILED
    assert "the database is away" in outcome.error
    await second.listener.stop(0)
    outcome = await first.synchronize(second)
    assert "could not be reached" in outcome.error
    assert str(second.address) in outcome.error
    assert not first.caller.connected(second.address)
    assert first.idle()


async def test_a_node_that_drains_lets_a_transfer_end(
    first: PeerNode, second: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await second.hold([item(number, size=20_000) for number in range(600)])
    store = first.services.writer.store
    stopping: list[asyncio.Task[None]] = []

    async def store_while_it_stops(*args: object) -> object:
        if not stopping:
            stopping.append(asyncio.create_task(second.listener.stop(30)))
        return await store(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(first.services.writer, "store", store_while_it_stops)
    outcome = await first.synchronize(second)
    assert outcome.in_sync, outcome
    assert len(await first.hashes()) == 600
    await asyncio.wait_for(stopping[0], 60)
    assert (await first.synchronize(second)).ending is SyncEnding.FAILED


async def test_large_payloads_are_worked_on_one_at_a_time(
    first: PeerNode, second: PeerNode
) -> None:
    # While one is, another waits, and sessions with small ones go on.
    await second.hold(items(range(30)))
    async with first.exchange.turn(LARGE_PAYLOAD_BYTES):
        other = asyncio.create_task(in_turn(first))
        assert (await first.synchronize(second)).in_sync
        assert not other.done()
    await within(other)


async def in_turn(node: PeerNode) -> None:
    """Take a turn of a large payload."""
    async with node.exchange.turn(LARGE_PAYLOAD_BYTES):
        pass
