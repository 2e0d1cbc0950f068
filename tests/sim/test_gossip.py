"""Runs of gossip: alone, beside reconciliation, with liars, and with machines that are wrong."""

import random
from collections import Counter

import pytest

from sim.gossiping.spread import Shape, spread
from sim.marks import Mark
from sim.run import simulate_gossip
from store.gossip.events import GossipCounter
from tests.sim.gossip_mutants import DRIVER_MUTANTS, MACHINE_MUTANTS
from tests.sim.test_repeating import command

GROUPS, GROUP = 6, 5
SEEDS = 60
"""A fault of a machine must show in one of so many runs; most show in the first."""

DRIVER_SEEDS = 20
"""A fault of the driver must show in one of so many runs."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """What the machines of all runs have counted."""
    return Counter()


@pytest.mark.parametrize("group", range(GROUPS))
def test_all_stores_become_equal_by_gossip_alone(group: int, seen: Counter[str]) -> None:
    for seed in range(group * GROUP, (group + 1) * GROUP):
        summary = simulate_gossip(seed, random.Random(seed))
        seen["runs"] += 1
        seen["crashes"] += summary.crashes
        seen["confirmed"] += summary.confirmed
        seen["answers"] += summary.answers
        seen.update(summary.marks)
        seen.update(summary.counts)


def test_the_runs_have_come_by_what_they_are_for(seen: Counter[str]) -> None:
    if seen["runs"] == GROUPS * GROUP:
        assert seen["crashes"] > GROUPS * GROUP // 2
        assert seen["confirmed"] > 500
        assert seen["answers"] > GROUPS * GROUP
        assert seen[Mark.COMMIT_CRASH]
        assert seen[Mark.UNREPORTED]
        # Messages with one hash are not simulated.
        rare = {GossipCounter.REFUSED, GossipCounter.IDS_UNANNOUNCED, GossipCounter.CONFLICTS}
        assert {what for what in GossipCounter if not seen[what]} <= rare


@pytest.mark.parametrize("group", range(2))
def test_gossip_and_reconciliation_do_not_stand_in_each_others_way(group: int) -> None:
    sessions = 0
    for seed in range(2 * group, 2 * group + 2):
        sessions += simulate_gossip(seed, random.Random(seed), beside=True).sessions
    assert sessions


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate_gossip(2, random.Random(2)) for _ in range(2))
    assert first == second


def test_a_run_is_the_same_in_every_process() -> None:
    first, second = (
        command("--gossip", "alone", "--seed", "8", "--trace", hash_seed=each) for each in "12"
    )
    assert first == second
    assert "seed 8: GossipSummary(digest=" in first


@pytest.mark.parametrize(("nodes", "degree"), [(5, 4), (50, 6)])
def test_an_event_spreads_over_many_nodes_once_over_each_link_at_most(
    nodes: int, degree: int
) -> None:
    result = spread(Shape(nodes, degree, events=3, breaks=0.05), random.Random(nodes))
    assert result.copies <= 1.2
    assert result.ids <= 2 * result.links + result.breaks * nodes


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", MACHINE_MUTANTS | DRIVER_MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = DRIVER_SEEDS if name in DRIVER_MUTANTS else SEEDS
    (MACHINE_MUTANTS | DRIVER_MUTANTS)[name].find(
        monkeypatch,
        seeds,
        lambda seed: simulate_gossip(seed, random.Random(seed)),
        "--gossip alone ",
    )
