"""The health of a node: one value, whose revision grows when it changes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from store.observe.metrics import Metrics, total
from store.rpc.admin import get_status
from store.runtime.health import NodeHealth, Obstacle
from store.serving.context import NodeIdentity, NodeState
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus

STARTING, AWAY, DRAINING = (
    each.value for each in (Obstacle.STARTING, Obstacle.DATABASE, Obstacle.DRAINING)
)


def node_health() -> tuple[NodeHealth, Metrics]:
    metrics = Metrics("test")
    metrics.database_up.set(1)
    return NodeHealth(metrics), metrics


async def test_the_first_obstacle_is_the_reason_everywhere() -> None:
    health, metrics = node_health()
    assert (health.value.ready, health.value.unready, health.value.halted) == (
        False,
        STARTING,
        STARTING,
    )
    revisions = [health.value.revision]
    for obstacle, present, expected in (
        (Obstacle.DATABASE, True, STARTING),
        (Obstacle.STARTING, False, AWAY),
        (Obstacle.DATABASE, False, None),
        (Obstacle.DATABASE, False, None),
        (Obstacle.DRAINING, True, DRAINING),
        (Obstacle.DATABASE, True, DRAINING),
    ):
        health.set(obstacle, present)
        is_ready = expected is None
        assert (health.value.ready, health.value.unready, health.value.halted) == (
            is_ready,
            expected,
            expected,
        )
        assert total(metrics.ready) == is_ready
        assert total(metrics.health_revision) in (0, health.value.revision)
        revisions.append(health.value.revision)
    first = revisions[0]
    assert revisions == [first + each for each in (0, 0, 1, 2, 2, 3, 3)]


async def test_a_node_that_takes_no_writes_is_not_ready_and_serves_queries() -> None:
    health, _ = node_health()
    health.set(Obstacle.STARTING, present=False)
    health.set(Obstacle.WRITES, present=True, sentence="the database is read-only")
    assert (health.value.unready, health.value.halted) == ("the database is read-only", None)
    health.set(Obstacle.WRITES, present=False)
    assert health.value.ready


async def test_a_problem_changes_the_revision_and_its_numbers_do_not() -> None:
    health, metrics = node_health()
    health.set(Obstacle.STARTING, present=False)
    before = health.value.revision
    for failures in (3, 4):
        metrics.peer_failures.labels("a:1").set(failures)
        (found,) = health.look().problems
        assert found.sentence == f"the last {failures} sessions with a:1 have failed"
        assert health.value.revision == before + 1
    metrics.peer_failures.labels("a:1").set(0)
    assert not health.look().problems
    assert health.value.revision == before + 2


async def test_a_watcher_gets_the_next_revision_or_the_present_one() -> None:
    health, _ = node_health()
    now = health.value.revision
    assert await health.await_revision(now - 1) == now
    waiting = asyncio.create_task(health.await_revision(now))
    await asyncio.sleep(0)
    assert not waiting.done()
    health.set(Obstacle.STARTING, present=False)
    assert await waiting == now + 1


async def test_gauges_are_renewed_before_problems_are_evaluated() -> None:
    metrics = Metrics("test")
    metrics.database_up.set(1)
    health = NodeHealth(metrics, lambda: metrics.token_file_broken.set(1))
    assert [each.page for each in health.look().problems] == ["token-file-broken"]


async def test_a_status_reports_the_health_of_its_revision() -> None:
    """Check what a watcher needs that waits for the revision after this one."""
    health = NodeHealth(Metrics("test"))
    health.set(Obstacle.STARTING, present=False)

    async def read_state() -> NodeState:
        state = NodeState(0, 0, 0, 0)
        health.set(Obstacle.DATABASE, present=True)  # while the database is read
        return state

    identity = NodeIdentity("a", "b", "1")
    node = SimpleNamespace(identity=identity, state=read_state, exchange=None, look=health.look)
    answer = await get_status(cast("Any", node), cast("Any", None), b"")
    status = NodeStatus.FromString(answer)
    assert (status.ready, status.unready) == (False, Obstacle.DATABASE.value)
    assert status.revision == health.value.revision
    assert [each.name for each in status.problems] == [each.page for each in health.value.problems]
