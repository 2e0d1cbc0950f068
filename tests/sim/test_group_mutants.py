"""Simulated groups find faults: neither a core nor a driver with one gets through."""

import random

import pytest

from sim.run import simulate_group
from tests.sim.group_mutants import WITH_STORE, WITHOUT_STORE

pytestmark = [
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("swept"),
]

SEEDS = 60
"""A fault must show in one of so many runs; most show in the first."""


@pytest.mark.parametrize("name", WITHOUT_STORE | WITH_STORE)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_store = name in WITH_STORE
    mutant = (WITHOUT_STORE | WITH_STORE)[name]
    mutant.find(
        monkeypatch,
        SEEDS,
        lambda seed: simulate_group(seed, random.Random(seed), 3, with_store=with_store),
        "--groups 3 --with-store " if with_store else "--groups 3 ",
    )
