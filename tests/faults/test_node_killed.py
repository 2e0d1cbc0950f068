"""``kill -9`` of a node while clients publish to it."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from storenode.client.types import PublishResult
from tests.faults.processes import logged
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    publishing,
)
from tests.support.command import Command
from tests.support.node import NodeProcess

ROUNDS = 4
PUBLISHERS = 3
STEPS = ("postgres_started", "serving", "maintenance_taken")
"""What a node logs on its way."""


async def test_what_was_acknowledged_outlives_the_node(node: NodeProcess, dice: Random) -> None:
    ledger = Ledger()
    node.start()
    publishers = [Publisher(node.listen, ledger, Random(dice.random())) for _ in range(PUBLISHERS)]
    follower = Follower(node.listen)
    async with following(follower):
        async with publishing(publishers):
            for _ in range(ROUNDS):
                await ledger.more(dice.randint(200, 3_000))
                node.kill()
                await asyncio.to_thread(node.start)
            await ledger.more(500)
        assert ledger.acknowledged == ledger.sent, "every publisher was answered in the end"
        held = await check_node(node.listen, ledger)
        await follower.has_all(held)
    assert set(follower.hashes) == held
    assert ledger.outcomes[PublishResult.STORED] + ledger.outcomes[PublishResult.DUPLICATE] == len(
        ledger.sent
    )
    Command().ok("db", "check", "--data-dir", str(node.data_dir))


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


async def test_nothing_is_left_behind_that_hinders_the_next_start(
    node: NodeProcess, dice: Random
) -> None:
    """Killed while it starts: whatever it was doing, the next one starts and serves."""
    ledger = Ledger()
    node.start()
    async with publishing([Publisher(node.listen, ledger, dice)]):
        await ledger.more(100)
    for _ in range(ROUNDS):
        node.kill()
        await kill_when(node, dice.choice(["", *STEPS]))
    node.kill()
    await asyncio.to_thread(node.start)
    assert await check_node(node.listen, ledger) == ledger.acknowledged
