"""Runs of gossip: alone, beside reconciliation, with liars, and with machines that are wrong."""

import random
import re
from collections import Counter

import pytest

from sim.gossiping.run import simulate_gossip
from sim.gossiping.spread import Shape, spread
from sim.run import SimulationFailure
from store.gossip.events import What
from tests.sim.gossip_mutants import GOSSIP_MUTANTS

GROUPS, GROUP = 40, 5
SEEDS = 60
"""A fault must show in one of so many runs; most show in the first."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What the machines of all runs have counted."""
    return Counter()


@pytest.mark.parametrize("group", range(GROUPS))
def test_all_stores_become_equal_by_gossip_alone(group: int, seen: Counter[str]) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        summary = simulate_gossip(seed, random.Random(seed))
        seen["runs"] += 1
        seen["crashes"] += summary.world.crashes
        seen["read"] += summary.read
        seen.update(summary.counts)


def test_the_runs_have_come_by_what_they_are_for(seen: Counter[str]) -> None:
    if seen["runs"] == GROUPS * GROUP:
        assert seen["crashes"] > GROUPS * GROUP // 2
        assert seen["read"] > 500
        rare = {What.REFUSED, What.IDS_UNANNOUNCED}
        assert {what for what in What if not seen[what]} <= rare


@pytest.mark.parametrize("group", range(4))
def test_gossip_and_reconciliation_do_not_stand_in_each_others_way(group: int) -> None:
    for seed in range(2 * group, 2 * group + 2):
        summary = simulate_gossip(seed, random.Random(seed), beside=True)
        assert summary.world.sessions


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in (2, 5):
        first, second = (simulate_gossip(seed, random.Random(seed)) for _ in range(2))
        assert first == second


@pytest.mark.parametrize(("nodes", "degree"), [(5, 4), (50, 6)])
def test_an_event_spreads_over_many_nodes_once_over_each_link_at_most(
    nodes: int, degree: int
) -> None:
    result = spread(Shape(nodes, degree, events=3, breaks=0.05), random.Random(nodes))
    assert result.copies <= 1.2
    assert result.ids <= 2 * result.links + result.breaks * nodes


@pytest.mark.parametrize("name", GOSSIP_MUTANTS)
def test_a_fault_is_found(name: str) -> None:
    mutant = GOSSIP_MUTANTS[name]
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS):
        try:
            simulate_gossip(seed, random.Random(seed), make=mutant.make)
        except SimulationFailure as failure:
            first, *others = str(failure).splitlines()
            if re.search(mutant.finding, first):
                assert f"seed {seed}:" in first
                again = f"repeat it with: python -m sim --gossip alone --seed {seed} --trace"
                assert others[-1] == again
                return
    pytest.fail(f"no run of {SEEDS} has found a machine that {name}")
