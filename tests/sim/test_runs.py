"""Runs of the simulator: a failure prints its seed and how to repeat it."""

import random
from collections import Counter

import pytest

from sim.marks import Mark
from sim.run import simulate

GROUPS, GROUP = 4, 10

# What is so rare that some hundred runs may do without.
RARE = {Mark.ANOTHER_WAY, Mark.PRUNED, Mark.LOST_PLACE, Mark.STALLED}
OF_GOSSIP = {Mark.UNREPORTED}  # its own tests look for it


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """Return how many runs had each rare event."""
    return Counter()


@pytest.fixture(scope="module")
def digests() -> set[str]:
    """Return the digests of all runs."""
    return set()


@pytest.mark.parametrize("group", range(GROUPS))
def test_all_stores_become_equal_once_the_faults_stop(
    group: int, seen: Counter[str], digests: set[str]
) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        summary = simulate(seed, random.Random(seed))
        assert summary.compared
        seen["runs"] += 1
        digests.add(summary.digest)
        seen.update(summary.marks.keys())


def test_the_runs_have_come_by_what_they_are_for(seen: Counter[str], digests: set[str]) -> None:
    assert len(digests) == seen["runs"], "each seed gives a run of its own"
    if seen["runs"] == GROUPS * GROUP:
        assert {mark for mark in Mark if not seen[mark]} <= RARE | OF_GOSSIP


@pytest.mark.parametrize("nodes", [2, 6])
def test_the_number_of_nodes_can_be_chosen(nodes: int) -> None:
    assert simulate(5, random.Random(5), nodes=nodes).nodes == nodes
