"""``GetStatus``: one moment of the node's health, whatever is waited for on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from store.observe.metrics import Metrics
from store.rpc.admin import AdminService
from store.runtime.health import NodeHealth, Obstacle
from store.serving.context import NodeIdentity, NodeState
from storenode.wire.storenode.v1.admin_pb2 import NodeStatus


async def test_a_status_reports_the_health_of_its_revision() -> None:
    """Check what a watcher needs that waits for the revision after this one."""
    health = NodeHealth(Metrics("test"))
    health.set(Obstacle.STARTING, present=False)

    async def read_state() -> NodeState:
        state = NodeState(0, 0, 0, 0)
        health.set(Obstacle.DATABASE, present=True)  # while the database is read
        return state

    identity = NodeIdentity("a", "b", "1")
    node = SimpleNamespace(identity=identity, state=read_state, exchange=None, health=health.look)
    answer = await AdminService(cast("Any", node)).get_status(cast("Any", None), b"")
    status = NodeStatus.FromString(answer)
    assert (status.ready, status.unready) == (False, Obstacle.DATABASE.value)
    assert status.revision == health.value.revision
    assert [each.name for each in status.problems] == [each.page for each in health.value.problems]
