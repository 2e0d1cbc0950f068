"""The simulator finds faults: neither a core nor a driver with one gets through."""

import gc
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from sim.world import World
from tests.sim.gossip_mutants import GOSSIP_MUTANTS
from tests.sim.group_mutants import WITH_STORE, WITHOUT_STORE
from tests.sim.mutant import Mutant
from tests.sim.node_mutants import NODE_MUTANTS, YEAR_MUTANTS
from tests.sim.relay_mutants import RECOVERY_MUTANTS, RELAY_MUTANTS

MUTANTS: Final[Mapping[str, Mapping[str, Mutant]]] = {
    "nodes": NODE_MUTANTS,
    "gossip": GOSSIP_MUTANTS,
    "group": WITHOUT_STORE,
    "group-with-store": WITH_STORE,
    "relay": RELAY_MUTANTS,
    "relay-without-pushes": RECOVERY_MUTANTS,
    "year": YEAR_MUTANTS,
}
"""Of each kind of run, faults that it finds."""

RUNS = 120
"""A fault must show in one of so many runs; most show in the first."""

EVENTS = 30_000
"""Many times those of the first runs without a fault; what goes round in circles has no end."""


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect what faulty runs leave behind, before it could act in the next run of the process."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, mutants in MUTANTS.items() for name in mutants]
)
def test_a_fault_is_found(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "max_events", EVENTS)
    MUTANTS[kind][name].find(monkeypatch, kind, RUNS)
