"""Simulated groups find faults: neither a core nor a driver with one gets through."""

import random
import re

import pytest

from sim.groups.run import simulate_group
from sim.run import SimulationFailure
from storenode.sds.behind import Lacks
from tests.sim.group_driver_mutants import GROUP_DRIVER_MUTANTS
from tests.sim.group_mutants import GROUP_MUTANTS

pytestmark = [
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("swept"),
]

SEEDS = 60
"""A fault must show in one of so many runs; most show in the first."""


MUTANTS = GROUP_MUTANTS | GROUP_DRIVER_MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.part, mutant.method, mutant.fault)
    if not mutant.compares:
        monkeypatch.setattr(Lacks, "look", lambda *_: None)
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS):
        try:
            simulate_group(seed, random.Random(seed), 3, with_store=mutant.with_store)
        except SimulationFailure as failure:
            first, *others = str(failure).splitlines()
            if re.search(mutant.finding, first):
                flag = " --with-store" if mutant.with_store else ""
                again = f"python -m sim --groups 3{flag} --seed {seed} --trace"
                assert others[-1] == f"repeat it with: {again}"
                return
    pytest.fail(f"no run of {SEEDS} has found a participant that {name}")
