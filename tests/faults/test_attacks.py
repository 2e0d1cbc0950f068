"""Short runs of all attacks: the node lives, and an honest client gets what it is owed.

Attackers vanish in the middle of their calls; nothing is kept for them.
What an attack costs in memory is bounded; how long an honest call takes is a figure of the
benchmark, and no test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from chaos.attacks import honest
from chaos.attacks.__main__ import OPTIONS, attack_node, run_node
from chaos.attacks.catalog import ATTACKS
from chaos.node import NodeProcess
from tests.faults.processes import metrics_at, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST = ("unfinished_requests", "silent_calls", "compressed_requests")
"""Attacks that fill a node's memory most: what it keeps of it would hide what the others take."""

MOST_MIB = {"unfinished_requests": 350, "silent_calls": 150, "compressed_requests": 50}
"""Growth above the 150 MiB of a node at rest."""

MOST_OTHERS_MIB = 400
"""A container of 1 GiB has room for both."""

LEAST_CALLS = {"rapid_resets": 20}
"""Calls of the honest client during an attack."""

PAUSE_S = 0.5
"""Pause between calls of the honest client, where they are not counted."""

SAW = {
    "idle_connections": "of 100 connections that could be made the node has closed 90",
    "compressed_requests": "8 of 8 ended UNIMPLEMENTED",
    "gossip_places": "an honest peer had a stream after",
    "reconcile_places": "an honest peer transferred after",
}
"""Parts of the final sentences of some attacks."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(new_store: Callable[[], str]) -> AsyncIterator[NodeProcess]:
    """Run a node for all attacks, with the options of each."""
    needed = {attack.options for attack in ATTACKS.values()}
    options = (*OPTIONS, *(part for each in needed for part in each))
    options += ("--database-url", new_store())
    async with run_node(options) as node:
        yield node


@pytest.mark.parametrize("name", [*FIRST, *(each for each in ATTACKS if each not in FIRST)])
async def test_a_node_serves_on_under_attack(name: str, shared: NodeProcess) -> None:
    pause_s = honest.PAUSE_S if name in LEAST_CALLS else PAUSE_S
    outcome = await attack_node(shared, name, ATTACKS[name].short, seed=1, pause_s=pause_s)
    assert outcome.alive
    assert outcome.failures == {}
    assert outcome.violations == []
    assert outcome.calls > LEAST_CALLS.get(name, 0)
    assert outcome.growth_mib < MOST_MIB.get(name, MOST_OTHERS_MIB), outcome.saw
    assert "failed with code" not in outcome.saw
    assert SAW.get(name, "") in outcome.saw
    await until(lambda: is_nothing_kept(shared))


def is_nothing_kept(node: NodeProcess) -> bool:
    """Return True if no stream, batch or connection of the database is in use."""
    seen = metrics_at(node.ready["metrics"])
    used = [seen["storenode_pool_connections", pool, "used"] for pool in ("write", "bulk")]
    streams = seen["storenode_followers",], seen["storenode_publishes_in_flight",]
    return not any((*streams, *used))
