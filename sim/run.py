"""Runs of all kinds by their seeds; a failure says how to repeat it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from sim.groups.scenario import drawn_group, fixed_group
from sim.relay import RelayWorld, drawn_relay, without_pushes
from sim.rng import Rng
from sim.scenario import draw_with_gossip, drawn
from sim.stage import Stage, Summary
from sim.world import World
from sim.year import YEAR_DAYS, YearWorld

Sink = Callable[[str], None]


class SimulationError(AssertionError):
    """A run failed; says how to repeat it."""


SMALLEST_GROUP: Final = 3

KINDS: Final[Mapping[str, Callable[[Rng, int | None, Sink | None], Stage]]] = {
    "nodes": lambda rng, size, sink: World(drawn(rng, size), rng, sink),
    "gossip": lambda rng, size, sink: World(
        draw_with_gossip(rng, beside=False, nodes=size), rng, sink
    ),
    "gossip-and-sync": lambda rng, size, sink: World(
        draw_with_gossip(rng, beside=True, nodes=size), rng, sink
    ),
    "group": lambda rng, size, sink: World(
        drawn_group(rng, size or SMALLEST_GROUP, with_store=False), rng, sink
    ),
    "group-with-store": lambda rng, size, sink: World(
        drawn_group(rng, size or SMALLEST_GROUP, with_store=True), rng, sink
    ),
    "fixed-group": lambda rng, size, sink: World(
        fixed_group(rng, size or SMALLEST_GROUP), rng, sink
    ),
    "relay": lambda rng, _, sink: RelayWorld(drawn_relay(rng), rng, sink),
    "relay-without-pushes": lambda rng, _, sink: RelayWorld(
        without_pushes(drawn_relay(rng)), rng, sink
    ),
    "year": lambda rng, size, sink: YearWorld(rng, size or YEAR_DAYS, sink),
}
"""The kinds of runs; each takes the number of its nodes, participants or days, if it has any."""


def simulate(kind: str, seed: int, size: int | None = None, *, sink: Sink | None = None) -> Summary:
    """Run one of `KINDS` once; ``sink`` takes the trace.

    Raises:
        SimulationError: A rule is broken.
    """
    world = KINDS[kind](random.Random(seed), size, sink)
    try:
        return world.run()
    except Exception as error:
        tail = "\n".join(world.trace.tail)
        option = f" --size {size}" if size else ""
        raise SimulationError(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{world.scenario}\n"
            f"repeat it with: python -m sim {kind} --seed {seed}{option} --trace"
        ) from error
