"""Probes, while the event loop of the node does something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from store.observe.http import (
    LIVE_SILENCE_S,
    MAX_METRICS_REQUESTS,
    READY_SILENCE_S,
    MetricsListener,
)
from tests.integration.run.helpers import get


@dataclass
class Node:
    """The state of a node that a metrics listener reads."""

    unready: str | None = None
    free: asyncio.Event = field(default_factory=asyncio.Event)
    now_s: float = 0.0
    address: str = ""

    async def render(self) -> bytes:
        """Return what the node's loop alone can render."""
        await self.free.wait()
        return b"rendered"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Start a metrics listener for a node."""
    node = Node()
    listener = MetricsListener(
        node.render, None, lambda: node.unready, (), clock=lambda: node.now_s
    )
    node.address = f"127.0.0.1:{await listener.open('127.0.0.1', 0)}"
    yield node
    await listener.close()


async def test_probes_are_answered_while_the_loop_of_the_node_is_blocked(node: Node) -> None:
    # These block the loop that this test runs in.
    assert get(node.address, "/readyz") == (200, "ready\n")
    node.unready = "the node is shutting down"
    assert get(node.address, "/readyz") == (503, "not ready: the node is shutting down\n")


async def test_a_node_whose_loop_does_not_run_is_not_ready_and_later_not_alive(node: Node) -> None:
    assert get(node.address, "/healthz") == (200, "alive\n")
    node.now_s = READY_SILENCE_S + 1
    assert get(node.address, "/readyz") == (503, "not ready: nothing has run for 11 s\n")
    assert get(node.address, "/healthz") == (200, "alive\n")
    node.now_s = LIVE_SILENCE_S + 1
    assert get(node.address, "/healthz") == (503, "not alive: nothing has run for 61 s\n")


async def test_more_requests_for_metrics_than_are_rendered_at_one_time_are_refused(
    node: Node,
) -> None:
    async def metrics() -> bytes:
        reader, writer = await asyncio.open_connection(*node.address.split(":"))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    asking = {asyncio.create_task(metrics()) for _ in range(MAX_METRICS_REQUESTS + 1)}
    refused, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result()[:13] for each in refused] == [b"HTTP/1.1 503 "]
    node.free.set()
    assert {(await each)[:13] for each in waiting} == {b"HTTP/1.1 200 "}
