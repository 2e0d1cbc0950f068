"""Sessions between two nodes that differ: reports, and statements about the other store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import psycopg
import pytest

from reconcile.session import Role
from sim.messages import CANDIDATES, forged_halves
from store.domain.ports import CursorOutOfRangeError, PeerError
from store.sync.limits import LARGE_PAYLOAD_BYTES
from store.sync.session.report import Equality, SyncEnding, Window
from storenode.client import AsyncClient
from storenode.client.messages import hash_of
from storenode.client.types import AnswerCoverage
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import CoverageStep, StoreCoverage
from tests.integration.peers.harness import NOW_NS, PeerNode, item, items, peer_node
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
    assert [each.role for each in first.observer.sessions] == [Role.INITIATOR]
    assert (mirror.role, mirror.node_id, mirror.store_id) == (
        Role.RESPONDER,
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


async def test_forged_sets_in_old_hours_are_found(first: PeerNode, second: PeerNode) -> None:
    """Check that the summaries of the database find what fingerprints hide."""
    candidates = [
        item(number, timestamp=NOW_NS - 3_000 * MINUTE_NS - number * 6 * MINUTE_NS)
        for number in range(CANDIDATES)
    ]
    halves = forged_halves([hash_of(each) for each in candidates])
    for node, half in zip((first, second), halves, strict=True):
        await node.hold([*items(range(1_000, 1_200)), *(candidates[place] for place in half)])
    outcome = await first.synchronize(second)
    assert (outcome.in_sync, outcome.equality) == (True, Equality.KEYED)
    mirror = await second.observer.ended()
    for report in (outcome, mirror):
        assert report.hidden is not None
        assert report.hidden.count == report.differences == sum(map(len, halves))
        assert any("hidden from the fingerprints of WAKU-SYNC" in note for note in report.notes)
    assert await first.hashes() == await second.hashes()
    outcome = await first.synchronize(second)
    assert (outcome.in_sync, outcome.equality, outcome.hidden) == (True, Equality.KEYED, None)
    assert outcome.round_trips == 1


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
    assert (below.in_sync, below.round_trips, below.equality) == (True, 0, Equality.UNKNOWN)
    assert "the whole window, and no peer was asked" in below.notes[0]


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
        with pytest.raises(PeerError, match="this node itself"):
            await anext(third.caller.scan(third.address, 1, 2, b""))
        assert third.idle()


async def test_a_peer_that_is_not_ready_or_not_there(first: PeerNode, second: PeerNode) -> None:
    second.rules.halt("the database is away")
    outcome = await first.synchronize(second)
    assert outcome.ending is SyncEnding.FAILED
    assert "the database is away" in outcome.error
    with pytest.raises(PeerError, match="the database is away"):
        await anext(first.caller.scan(second.address, 1, 2, b""))
    second.rules.halt(None)
    with pytest.raises(CursorOutOfRangeError, match="cursor"):
        await anext(first.caller.scan(second.address, 1, 2, b"no cursor"))
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
    store = first.context.writer.store
    stopping: list[asyncio.Task[None]] = []

    async def store_while_it_stops(*args: object) -> object:
        if not stopping:
            stopping.append(asyncio.create_task(second.listener.stop(30)))
        return await store(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(first.context.writer, "store", store_while_it_stops)
    outcome = await first.synchronize(second)
    assert outcome.in_sync, outcome
    assert len(await first.hashes()) == 600
    await asyncio.wait_for(stopping[0], 60)
    assert (await first.synchronize(second)).ending is SyncEnding.FAILED


async def test_large_payloads_are_worked_on_one_at_a_time(
    first: PeerNode, second: PeerNode
) -> None:
    # While one is, another waits, and sessions with small ones continue.
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


HOUR_NS: Final = 3_600_000_000_000
HOUR: Final = (time.time_ns() // HOUR_NS - 5) * HOUR_NS
END: Final = HOUR + 2 * HOUR_NS

Reported = tuple[int, int, AnswerCoverage.State.ValueType]


async def coverage(node: PeerNode) -> list[CoverageStep]:
    async with AsyncClient(node.listener.address) as client:
        return [step async for step in client.coverage(start=HOUR, end=HOUR + 2 * HOUR_NS)]


async def states(node: PeerNode) -> list[list[tuple[str, StoreCoverage.State.ValueType]]]:
    return [[(each.store_id, each.state) for each in step.stores] for step in await coverage(node)]


async def test_a_session_confirms_hours_and_a_late_message_withdraws_its_own(
    first: PeerNode, second: PeerNode
) -> None:
    await first.hold([item(1, timestamp=HOUR + 1), item(2, timestamp=HOUR + HOUR_NS)])
    await second.hold([item(3, timestamp=HOUR + 2)])
    assert await states(first) == [[], []]
    began_ns = time.time_ns()
    assert (await first.synchronize(second)).in_sync

    equal = [(second.context.identity.store_id, StoreCoverage.EQUAL)]
    assert await states(first) == [equal, equal]
    steps = await coverage(first)
    assert [step.messages for step in steps] == [2, 1]
    assert [step.time_start for step in steps] == [HOUR, HOUR + HOUR_NS]
    assert all(began_ns <= step.stores[0].compared_at <= time.time_ns() for step in steps)
    # Who was asked does not know when the other's view was opened, and says nothing.
    assert await states(second) == [[], []]

    await first.hold([item(4, timestamp=HOUR + 3)])
    unconfirmed = [(second.context.identity.store_id, StoreCoverage.UNCONFIRMED)]
    assert await states(first) == [unconfirmed, equal]
    (withdrawn,) = (await coverage(first))[0].stores
    assert (withdrawn.compared_at, withdrawn.last_equal) == (0, steps[0].stores[0].compared_at)
    assert (await first.synchronize(second)).in_sync
    assert await states(first) == [equal, equal]


async def test_a_difference_that_stays_is_reported(first: PeerNode, second: PeerNode) -> None:
    await second.hold([item(3, timestamp=HOUR + 2)])
    first.rules.policy = Policy(max_drift_ns=None, horizon_ns=0, max_message_bytes=4)
    outcome = await first.synchronize(second)
    assert outcome.refused_by_policy == 1
    (differs,), (equal,) = ([*step.stores] for step in await coverage(first))
    assert (differs.state, differs.missing_here, differs.missing_there) == (
        StoreCoverage.DIFFERS,
        1,
        0,
    )
    assert equal.state == StoreCoverage.EQUAL


async def test_answers_say_how_complete_they_are(first: PeerNode, second: PeerNode) -> None:
    old, new = item(1, timestamp=HOUR + 1), item(2, timestamp=HOUR + HOUR_NS)
    await first.hold([old, new])
    await second.hold([item(3, timestamp=HOUR + 2)])
    async with AsyncClient(first.listener.address) as client:
        page = await client.query(coverage=True, start=HOUR, end=END)
        assert page.coverage is not None
        assert page.coverage.state == AnswerCoverage.UNCONFIRMED
        assert (await client.query(start=HOUR, end=END)).coverage is None
        assert (await first.synchronize(second)).in_sync

        page = await client.query(coverage=True, start=HOUR, end=END)
        complete = page.coverage
        assert complete is not None
        assert complete.state == AnswerCoverage.COMPLETE
        assert [*complete.store_ids] == [second.context.identity.store_id]
        assert (complete.time_start, complete.time_end) == (HOUR, END)
        scan = client.scan("/other", coverage=True, start=HOUR, end=END)
        assert [message async for message in scan] == []
        assert scan.coverage == complete
        result = await client.get_sds("channel", ["nobody"], coverage=True)
        assert result.missing == [("nobody", None)]
        assert result.coverage is not None
        walked = await client.causal_history("channel", ["nobody"], coverage=True)
        assert walked.coverage is not None
        assert walked.coverage.state == AnswerCoverage.PARTIAL
        assert walked.coverage.complete_until > END

        await first.hold([item(4, timestamp=HOUR + 3)])
        assert await pages_reported(client, limit=1, start=HOUR, end=END) == [
            (HOUR + HOUR_NS, END, AnswerCoverage.COMPLETE),
            (HOUR + 3, HOUR + HOUR_NS + 1, AnswerCoverage.PARTIAL),
            (HOUR + 2, HOUR + 4, AnswerCoverage.UNCONFIRMED),
            (HOUR, HOUR + 3, AnswerCoverage.UNCONFIRMED),
        ]
        scan = client.scan(coverage=True, start=HOUR, end=END)
        assert len([message async for message in scan]) == 4
        assert scan.coverage is not None
        assert scan.coverage.complete_from == HOUR + HOUR_NS
        assert "rest of this time" in scan.coverage.reason


async def pages_reported(
    client: AsyncClient, *, start: int, end: int, limit: int
) -> list[Reported]:
    """Return the time that each page of a query is about, and its state."""
    reported: list[Reported] = []
    cursor = None
    while not reported or cursor is not None:
        page = await client.query(start=start, end=end, limit=limit, cursor=cursor, coverage=True)
        assert page.coverage is not None
        reported.append((page.coverage.time_start, page.coverage.time_end, page.coverage.state))
        cursor = page.cursor
    return reported


async def test_an_answer_is_not_complete_if_its_commits_are_lost_meanwhile(
    first: PeerNode, second: PeerNode
) -> None:
    await first.hold([item(1, timestamp=HOUR + 1)])
    assert (await first.synchronize(second)).in_sync
    coverage = first.context.coverage
    assert coverage is not None
    known = await coverage.known(HOUR, END)
    async with await psycopg.AsyncConnection.connect(first.url) as connection:
        cursor = await connection.execute("select position, token from storenode.commits")
        ((position, token),) = await cursor.fetchall()
        place = position, token % 2**64
        assert await coverage.lost_since([place]) == (False, 0)
        # As in a standby that was promoted, whose next commits have the numbers of those lost.
        await connection.execute("update storenode.commits set token = token + 1")
        await connection.execute("update storenode.store set horizon_ns = %s", (HOUR + 5,))
    lost, horizon_ns = await coverage.lost_since([place])
    assert (lost, horizon_ns) == (True, HOUR + 5)
    assert known.answer((HOUR, END), 0, lost=False).state == AnswerCoverage.COMPLETE
    assert known.answer((HOUR, END), 0, lost=lost).state == AnswerCoverage.UNCONFIRMED
    assert known.answer((HOUR, END), horizon_ns, lost=False).complete_from == horizon_ns
