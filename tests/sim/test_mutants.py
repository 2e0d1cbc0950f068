"""The simulator finds faults: neither a core nor a driver with one gets through."""

import random
import re

import pytest

from sim.run import SimulationFailure, simulate
from sim.world import World
from tests.sim.driver_mutants import DRIVERS
from tests.sim.mutants import CORES

SEEDS = 120
"""A fault must show in one of so many runs; most show in the first."""

EVENTS = 30_000
"""Many times those of the first runs without a fault; what goes round in circles has no end."""

MUTANTS = CORES | DRIVERS

pytestmark = pytest.mark.usefixtures("swept")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.plant(monkeypatch)
    monkeypatch.setattr(World, "max_events", EVENTS)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS):
        try:
            simulate(seed, random.Random(seed))
        except SimulationFailure as failure:
            first, *others = str(failure).splitlines()
            if re.search(mutant.finding, first):
                assert f"seed {seed}:" in first
                assert others[-1] == f"repeat it with: python -m sim --seed {seed} --trace"
                return
    pytest.fail(f"no run of {SEEDS} has found a node that {name}")
