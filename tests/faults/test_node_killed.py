"""``kill -9`` of a node while it starts."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from tests.faults.processes import logged
from tests.support.ledger import Ledger, Publisher, check_node, publishing
from tests.support.node import NodeProcess

ROUNDS = 4
STEPS = ("postgres_started", "serving", "maintenance_taken")
"""Events of a start."""


async def kill_when(node: NodeProcess, step: str) -> None:
    """Start a node and kill it when its log names a step; at once when that is empty."""
    already = node.log_path.stat().st_size
    node.launch()
    if step:
        try:
            await logged(node, step, already)
        except TimeoutError:
            pytest.fail(f"the node has not come to {step}; its log:\n{node.log()[already:]}")
    node.kill()


async def test_a_node_killed_while_it_starts_can_start_again(
    node: NodeProcess, rng: Random
) -> None:
    ledger = Ledger()
    node.start()
    async with publishing([Publisher(node.listen, ledger, rng)]):
        await ledger.more(100)
    for _ in range(ROUNDS):
        node.kill()
        await kill_when(node, rng.choice(["", *STEPS]))
    node.kill()
    await asyncio.to_thread(node.start)
    assert await check_node(node.listen, ledger) == ledger.acknowledged
