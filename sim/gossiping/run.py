"""One run of gossip from its seed, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable

from sim.dice import Dice
from sim.gossiping.scenario import drawn_gossip
from sim.gossiping.world import GossipSummary, GossipWorld
from sim.run import repeatable


def simulate_gossip(
    seed: int,
    dice: Dice,
    *,
    beside: bool = False,
    nodes: int | None = None,
    sink: Callable[[str], None] | None = None,
) -> GossipSummary:
    """Run once. ``dice`` is a generator seeded with ``seed``; ``sink`` takes the trace.

    ``beside``: nodes reconcile as well.

    Raises:
        SimulationFailure: something that must hold does not.
    """
    scenario = drawn_gossip(dice, beside=beside, nodes=nodes)
    world = GossipWorld(scenario, dice, sink)
    again = f"python -m sim --gossip {'beside' if beside else 'alone'} --seed {seed}"
    again += f" --nodes {nodes}" if nodes else ""
    with repeatable(seed, world.trace, scenario, again):
        return world.run()
