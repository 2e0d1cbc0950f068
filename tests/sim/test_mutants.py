"""The simulator finds faults: machines with one each do not get through."""

import random
import re

import pytest

from sim.run import SimulationFailure, simulate
from tests.sim.mutants import MUTANTS

SEEDS = 60
"""A fault must show in one of so many runs; most show in the first."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_found(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in range(SEEDS):
        try:
            simulate(seed, random.Random(seed), cores=mutant.cores)
        except SimulationFailure as failure:
            first, *others = str(failure).splitlines()
            if re.search(mutant.finding, first):
                assert f"seed {seed}:" in first
                assert others[-1] == f"repeat it with: python -m sim --seed {seed} --trace"
                return
    pytest.fail(f"no run of {SEEDS} has found a machine that {name}")
