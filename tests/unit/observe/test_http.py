"""Probes, while the event loop of the node does something else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from store.observe.http import MetricsListener
from store.observe.limits import LIVE_SILENCE_S, READY_SILENCE_S
from tests.integration.run.helpers import get


@dataclass
class Node:
    """What a listener is told of its node."""

    unready: str | None = None
    now_s: float = 0.0
    address: str = ""

    async def render(self) -> bytes:
        """Return what the node's loop alone can render."""
        return b"rendered"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """A node with a listener."""
    node = Node()
    listener = MetricsListener(
        node.render, None, lambda: node.unready, (), clock=lambda: node.now_s
    )
    node.address = f"127.0.0.1:{await listener.open('127.0.0.1', 0)}"
    yield node
    await listener.close()


async def test_probes_are_answered_while_the_loop_of_the_node_is_blocked(node: Node) -> None:
    # These block the loop that this test runs in.
    assert get(node.address, "/healthz") == (200, "alive\n")
    assert get(node.address, "/readyz") == (200, "ready\n")
    node.unready = "the node is shutting down"
    assert get(node.address, "/readyz") == (503, "not ready: the node is shutting down\n")


async def test_a_node_whose_loop_does_not_run_is_not_ready_and_later_not_alive(node: Node) -> None:
    node.now_s = READY_SILENCE_S + 1
    assert get(node.address, "/readyz") == (503, "not ready: nothing has run for 11 s\n")
    assert get(node.address, "/healthz") == (200, "alive\n")
    node.now_s = LIVE_SILENCE_S + 1
    assert get(node.address, "/healthz") == (503, "not alive: nothing has run for 61 s\n")
