"""The simulator finds faults: neither a core nor a driver with one gets through."""

import random

import pytest

from sim.run import simulate
from sim.world import World
from tests.sim.node_mutants import NODE_MUTANTS

SEEDS = 120
"""A fault must show in one of so many runs; most show in the first."""

EVENTS = 30_000
"""Many times those of the first runs without a fault; what goes round in circles has no end."""


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", NODE_MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "max_events", EVENTS)
    mutant = NODE_MUTANTS[name]
    mutant.find(
        monkeypatch,
        SEEDS,
        lambda seed: simulate(seed, random.Random(seed), nodes=mutant.nodes),
        "",
    )
