"""Drills: what a node reports of a fault while it lasts, and that it stops when it is over."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import grpc

from storenode.client.messages import new_message, new_request
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.faults.processes import metrics, until
from tests.faults.test_standby_away import missing_standby
from tests.integration.run.helpers import get
from tests.support.acknowledged import PUBSUB, TOPICS
from tests.support.cluster import ClusterServer
from tests.support.command import Command
from tests.support.drills import table
from tests.support.node import NodeProcess

MANUAL = Path(__file__).parents[2] / "docs/reference/alerts.md"


def test_the_table_of_the_manual_is_that_of_the_drills() -> None:
    """Compare them; ``python -m tests.support.drills`` prints it anew."""
    assert "\n".join(table()) in MANUAL.read_text("utf-8")


def publish(node: NodeProcess, timeout_s: float) -> grpc.StatusCode:
    """Publish with a deadline, as a client in another language does."""
    request = new_request([new_message(b"x", TOPICS[0], PUBSUB, time.time_ns())])
    with grpc.insecure_channel(node.listen) as channel:
        try:
            StoreStub(channel).Publish(request, timeout=timeout_s)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_a_stop_of_publishing_is_reported_with_its_cause_until_it_ends(
    server: ClusterServer, node: NodeProcess
) -> None:
    cause = (
        "commits wait for synchronous replication: synchronous_standby_names is 'nobody', and 0"
        " standbys are connected"
    )

    def check() -> list[str]:
        return Command.of(node)("status", "--check").lines

    def is_reported() -> bool:
        return any(
            line.startswith("CRITICAL nothing-commits: nothing has been committed for")
            and cause in line
            for line in check()
        )

    node.database_url = server.url
    node.start()
    with missing_standby(server):
        code = await asyncio.to_thread(publish, node, 3.0)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: metrics(node)["storenode_publishes_abandoned_total",] == 1)
        await until(is_reported)
        status, reason = get(node.metrics, "/readyz")
        assert (status, cause in reason) == (503, True)
        assert any(
            name == "storenode_commit_age_seconds" and labels == [cause] and age > 10
            for (name, *labels), age in metrics(node).items()
        )
    await until(lambda: get(node.metrics, "/readyz")[0] == 200)
    await until(lambda: not any("nothing-commits" in line for line in check()))
    ended = json.loads(get(node.metrics, "/status.json")[1])["ended"]
    assert "nothing-commits" in [each["name"] for each in ended]
    assert await asyncio.to_thread(publish, node, 60.0) is grpc.StatusCode.OK
