"""States that a node reports: its health, its peers, and what is read once for all who ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from reconcile.session import Role
from store.domain.ports import PeerAddress, StoreUnavailableError
from store.observe.metrics import Metrics, total
from store.runtime.health import NodeHealth, Obstacle
from store.runtime.peer_states import PeerStates
from store.runtime.status import NodeStatus, SharedRead
from store.sync.session.report import Equality, Hidden, SessionReport, SyncEnding, Window

STARTING, AWAY, DRAINING = (
    each.value for each in (Obstacle.STARTING, Obstacle.DATABASE, Obstacle.DRAINING)
)


def node_health() -> tuple[NodeHealth, Metrics]:
    metrics = Metrics("test")
    metrics.database_up.set(1)
    return NodeHealth(metrics), metrics


async def test_the_first_obstacle_is_the_reason_everywhere() -> None:
    health, metrics = node_health()
    assert (health.ready, health.unready, health.halted) == (False, STARTING, STARTING)
    revisions = [health.revision]
    for obstacle, present, expected in (
        (Obstacle.DATABASE, True, STARTING),
        (Obstacle.STARTING, False, AWAY),
        (Obstacle.DATABASE, False, None),
        (Obstacle.DATABASE, False, None),
        (Obstacle.DRAINING, True, DRAINING),
        (Obstacle.DATABASE, True, DRAINING),
    ):
        health.set(obstacle, present)
        assert (health.unready, health.halted) == (expected, expected)
        assert total(metrics.ready) == health.ready == (expected is None)
        assert total(metrics.health_revision) in (0, health.revision)
        revisions.append(health.revision)
    first = revisions[0]
    assert revisions == [first + each for each in (0, 0, 1, 2, 2, 3, 3)]


async def test_a_node_that_takes_no_writes_is_not_ready_and_serves_queries() -> None:
    health, _ = node_health()
    health.set(Obstacle.STARTING, present=False)
    health.set(Obstacle.WRITES, present=True, sentence="the database is read-only")
    assert (health.unready, health.halted) == ("the database is read-only", None)
    health.set(Obstacle.WRITES, present=False)
    assert health.ready


async def test_a_problem_changes_the_revision_and_its_numbers_do_not() -> None:
    health, metrics = node_health()
    health.set(Obstacle.STARTING, present=False)
    before = health.revision
    for failures in (3, 4):
        metrics.peer_failures.labels("a:1").set(failures)
        health.look()
        (found,) = health.problems
        assert found.sentence == f"the last {failures} sessions with a:1 have failed"
        assert health.revision == before + 1
    metrics.peer_failures.labels("a:1").set(0)
    health.look()
    assert not health.problems
    assert health.revision == before + 2


async def test_a_watcher_gets_the_next_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    health, _ = node_health()
    now = health.revision
    assert await health.await_revision(now - 1) == now
    waiting = asyncio.create_task(health.await_revision(now))
    await asyncio.sleep(0)
    assert not waiting.done()
    health.set(Obstacle.STARTING, present=False)
    assert await waiting == now + 1
    assert await health.await_revision(now + 9) == now + 1
    monkeypatch.setattr("time.time_ns", lambda: 10**6 * (now + 2))
    assert await node_health()[0].await_revision(now + 1) == now + 2, "seen before a restart"


async def test_a_status_reports_the_health_of_its_revision() -> None:
    """Check what a watcher needs that waits for the revision after this one."""
    health, metrics = node_health()
    health.set(Obstacle.STARTING, present=False)

    async def read_summary() -> None:
        health.set(Obstacle.DATABASE, present=True)
        raise StoreUnavailableError("away")

    node = SimpleNamespace(metrics=metrics, health=health, version="1.0", is_open=False)
    node.reader = SimpleNamespace(summary=read_summary)
    status = NodeStatus(cast("Any", node))
    status.condition = SharedRead(cast("Any", read_summary), FOREVER_S)
    found = await status.state()
    assert (found.ready, found.unready) == (False, Obstacle.DATABASE.value)
    assert found.revision == health.revision
    assert [each.name for each in found.problems] == [each.page for each in health.problems]


# Peers

PEER = PeerAddress("127.0.0.1", 7420, "b.example")


def done(ending: SyncEnding, error: str = "", peer: PeerAddress | None = PEER) -> SessionReport:
    """Return the report of a session; ``peer`` None: the peer began it."""
    return SessionReport(
        Role.INITIATOR if peer else Role.RESPONDER,
        0,
        "" if peer else "b.example",
        peer=peer,
        ending=ending,
        error=error,
        in_sync=ending is SyncEnding.DONE,
        round_trips=1,
    )


def test_differences_left_are_counted_by_the_window() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    label = {"peer": str(PEER)}

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {**label, **labels})

    assert value("storenode_peer_failures") == 0
    book.session_ended(done(SyncEnding.FAILED))
    assert value("storenode_peer_failures") == 1
    assert value("storenode_peer_differences", window="whole") is None
    whole = done(SyncEnding.DONE)
    book.session_ended(replace(whole, missing_here=7))
    assert value("storenode_peer_failures") == 0
    assert value("storenode_peer_differences", window="whole") == 0
    book.session_ended(replace(whole, missing_here=7, stored=2, in_sync=False))
    assert value("storenode_peer_differences", window="whole") == 5
    book.session_ended(replace(whole, window=Window(time_start_ns=1)))
    assert value("storenode_peer_differences", window="recent") == 0
    assert value("storenode_peer_differences", window="whole") == 5


def test_failures_and_refusals_are_counted_until_what_ends_them() -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)

    def counted() -> tuple[float | None, ...]:
        names = ("storenode_peer_failures", "storenode_peer_refusals")
        return tuple(metrics.registry.get_sample_value(each, {"peer": str(PEER)}) for each in names)

    shown: SessionReport | None = None
    for report, expected in (
        (done(SyncEnding.UNAVAILABLE, "it broke"), (0, 0)),  # the own database is nobody's fault
        (done(SyncEnding.FAILED, "it broke"), (1, 0)),
        (done(SyncEnding.UNAVAILABLE, "it broke"), (1, 0)),
        (done(SyncEnding.REFUSED, "no"), (2, 1)),
        (done(SyncEnding.REFUSED, "no"), (3, 2)),
        (done(SyncEnding.FAILED, "it called", peer=None), (3, 2)),
        (done(SyncEnding.DONE, "it called", peer=None), (3, 0)),
        (done(SyncEnding.DONE), (0, 0)),
        (done(SyncEnding.FAILED, "it could not be reached"), (1, 0)),
        (done(SyncEnding.ABORTED), (0, 0)),  # a tie that was lost is no report
    ):
        book.session_began(PEER)
        book.session_ended(report)
        (state,) = book.states()
        assert counted() == expected
        assert state.failures == expected[0]
        if report.peer is not None:
            shown = shown if report.ending is SyncEnding.ABORTED else report
            assert (state.last, state.last_error) == (shown, report.error)
            assert not state.in_session


def test_how_stores_were_compared_is_counted_and_forged_sets_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics("1.0")
    book = PeerStates((PEER,), metrics, lambda: 1)
    whole = done(SyncEnding.DONE, peer=None)
    hidden = Hidden(131, first_ns=5, last_ns=9, hashes=(b"\1" * 32, b"\2" * 32))
    reports = [
        replace(whole, equality=Equality.XOR),
        replace(whole, equality=Equality.KEYED),
        replace(whole, equality=Equality.PARTLY_KEYED, hidden=hidden),
        replace(whole, ending=SyncEnding.FAILED, equality=Equality.KEYED, hidden=hidden),
    ]
    for report in reports:
        book.session_ended(report)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, labels)

    for equality in ("xor", "keyed", "partly_keyed"):
        assert value("storenode_sync_comparisons_total", equality=equality) == 1
    assert value("storenode_sync_modes_total", mode="base") == 3
    assert value("storenode_sync_hidden_differences_total") == 262
    forged = [record for record in caplog.records if record.msg == "fingerprint_forged"]
    assert len(forged) == 2
    assert (forged[0].name, forged[0].levelname) == ("store.sync", "ERROR")
    assert vars(forged[0])["fields"] == {
        "peer": "b.example",
        "differences": 131,
        "first_timestamp": 5,
        "last_timestamp": 9,
        "hashes": ["01" * 32, "02" * 32],
    }


def test_messages_are_counted_while_their_transfer_goes_on() -> None:
    metrics, report = Metrics("1.0"), done(SyncEnding.DONE)
    book, labels = PeerStates((PEER,), metrics, lambda: 1), {"direction": "received"}
    for report.stored in (2, 5):
        book.session_progressed(report)
        stored = metrics.transfer_messages.labels(**labels, outcome="stored")
        assert stored._value.get() == report.stored


# Results that are read once

PATIENCE_S = 60.0
FOREVER_S = 1e9


async def test_a_hundred_who_ask_at_once_share_one_read() -> None:
    numbers, go = iter(range(2)), asyncio.Event()

    async def read() -> int:
        await go.wait()
        return next(numbers)

    kept = SharedRead(read, FOREVER_S)
    asking = [asyncio.create_task(kept.get(PATIENCE_S)) for _ in range(100)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(*asking) == [0] * 100
    assert await kept.get(PATIENCE_S) == 0
    assert next(numbers) == 1


async def test_what_is_old_is_read_again_unless_the_database_is_away() -> None:
    numbers, away = iter(range(2)), False

    async def read() -> int:
        if away:
            raise StoreUnavailableError("away")
        return next(numbers)

    kept = SharedRead(read, 0.0)
    assert [await kept.get(PATIENCE_S) for _ in range(2)] == [0, 1]
    away = True
    assert [await kept.get(PATIENCE_S) for _ in range(3)] == [1] * 3


async def test_without_patience_the_last_result_is_given_and_a_read_goes_on_until_stopped() -> None:
    go = asyncio.Event()
    kept, stopped = SharedRead(go.wait, FOREVER_S), SharedRead(go.wait, 0.0)
    assert await kept.get(0.0) is await stopped.get(0.0) is None
    await stopped.stop()
    go.set()
    assert await kept.get(PATIENCE_S)
    assert await stopped.get(PATIENCE_S) is None, "nothing is read any more"
