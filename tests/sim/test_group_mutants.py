"""Simulated groups find faults: a core with one of them does not get through."""

import random
import re

import pytest

from sim.groups.run import simulate_group
from sim.run import SimulationFailure
from tests.sim.group_mutants import GROUP_MUTANTS

SEEDS = 40
"""A fault must show in one of so many runs; most show in the first."""


@pytest.mark.parametrize("name", GROUP_MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = GROUP_MUTANTS[name]
    monkeypatch.setattr(mutant.part, mutant.method, mutant.fault)
    for seed in range(SEEDS):
        try:
            simulate_group(seed, random.Random(seed), 3, with_store=mutant.with_store)
        except SimulationFailure as failure:
            first, *others = str(failure).splitlines()
            if re.search(mutant.finding, first):
                flag = " --with-store" if mutant.with_store else ""
                again = f"python -m sim --groups 3{flag} --seed {seed} --trace"
                assert others[-1] == f"repeat it with: {again}"
                return
    pytest.fail(f"no run of {SEEDS} has found a core that {name}")
