"""Runs of all kinds by their seeds; a failure says how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from sim.groups.scenario import drawn_group, fixed_group
from sim.relay import RelayWorld, drawn_relay, without_pushes
from sim.rng import Random
from sim.scenario import Scenario, draw_with_gossip, drawn
from sim.stage import Stage, Summary
from sim.world import World
from sim.year import YEAR_DAYS, YearWorld

Sink = Callable[[str], None]


class SimulationError(AssertionError):
    """A run failed; says how to repeat it."""


_SCENARIOS: Final[Mapping[str, Callable[[Random, int | None], Scenario]]] = {
    "nodes": drawn,
    "conflicts": lambda rng, size: replace(drawn(rng, size), forged=False, twins=True),
    "gossip": partial(draw_with_gossip, beside=False),
    "gossip-and-sync": partial(draw_with_gossip, beside=True),
    "group": partial(drawn_group, with_store=False),
    "group-with-store": partial(drawn_group, with_store=True),
    "restored-group": partial(drawn_group, with_store=True, restored=0.5),
    "fixed-group": fixed_group,
}

KINDS: Final = (*_SCENARIOS, "relay", "relay-without-pushes", "year")
"""The kinds of runs; each but relay takes the number of its nodes, participants or days."""


def _stage(kind: str, rng: Random, size: int | None, sink: Sink | None) -> Stage:
    if kind == "year":
        return YearWorld(rng, size or YEAR_DAYS, sink)
    if kind in _SCENARIOS:
        return World(_SCENARIOS[kind](rng, size), rng, sink)
    scenario = drawn_relay(rng)
    return RelayWorld(scenario if kind == "relay" else without_pushes(scenario), rng, sink)


def simulate(kind: str, seed: int, size: int | None = None, *, sink: Sink | None = None) -> Summary:
    """Run one of `KINDS` once; ``sink`` takes the trace.

    Raises:
        SimulationError: A rule is broken.
    """
    world = _stage(kind, Random(seed), size, sink)
    try:
        return world.run()
    except Exception as error:
        tail = "\n".join(world.trace.tail)
        option = f" --size {size}" if size else ""
        raise SimulationError(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{world.scenario}\n"
            f"repeat it with: python -m sim {kind} --seed {seed}{option} --trace"
        ) from error
