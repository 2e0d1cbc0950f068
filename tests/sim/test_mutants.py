"""The simulator finds faults: neither a core nor a driver with one gets through."""

import gc
from collections.abc import Iterator
from typing import Final

import pytest

from tests.sim.mutant import Mutant, read_mutants

MUTANTS: Final = list(read_mutants())


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect what faulty runs leave behind, before it could act in the next run of the process."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: f"{each.kind}-{each.name}")
def test_a_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.find(monkeypatch)
