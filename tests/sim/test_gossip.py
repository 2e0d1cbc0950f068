"""Runs of gossip: alone, beside reconciliation, with liars, and with machines that are wrong."""

import random
from collections import Counter
from dataclasses import fields, replace

import pytest

from sim.gossiping.scenario import GossipScenario
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.run import simulate_gossip
from sim.scenario import Faults, Scenario, draw_with_gossip
from sim.world import World
from store.gossip.events import GossipCounter
from store.gossip.limits import GossipConfig
from tests.sim.gossip_mutants import DRIVER_MUTANTS, MACHINE_MUTANTS
from tests.sim.test_repeating import command

GROUPS, GROUP = 6, 5
SEEDS = 60
"""A fault of a machine must show in one of so many runs; most show in the first."""

DRIVER_SEEDS = 20
"""A fault of the driver must show in one of so many runs."""


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    """Return the counts of the machines of all runs."""
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
    assert "seed 8: Summary(digest=" in first


def scenario_of(nodes: int, degree: int, rng: random.Random) -> Scenario:
    """Draw a connected random graph of nodes without faults but broken links."""
    drawn = draw_with_gossip(rng, beside=False)
    assert drawn.gossip is not None
    peers = [tuple(rng.sample(range(each), min(each, degree // 2))) for each in range(nodes)]
    faults = Faults(**dict.fromkeys([each.name for each in fields(Faults)], 0))
    return replace(
        drawn,
        stores=tuple(range(nodes)),
        peers=tuple(peers),
        retention_ns=(None,) * nodes,
        clients=1,
        publish_every_ns=3 * NS_PER_S,
        faults_ns=20 * NS_PER_S,
        faults=replace(faults, breaks=0.05),
        gossip=GossipScenario(
            beside=False, config=GossipConfig(store_id="", max_confirms=0), min_confirms=(0,)
        ),
    )


@pytest.mark.parametrize(("nodes", "degree"), [(5, 4), (40, 6)])
def test_an_event_spreads_over_each_link_at_most_once(nodes: int, degree: int) -> None:
    rng = random.Random(nodes)
    scenario = scenario_of(nodes, degree, rng)
    summary = World(scenario, rng).run()
    links, events = sum(map(len, scenario.peers)), summary.messages
    bodies = sum(
        summary.counts.get(str(each), 0)
        for each in (GossipCounter.BODIES_PUSHED, GossipCounter.BODIES_ANSWERED)
    )
    assert events > nodes
    assert events * (nodes - 1) <= bodies <= 1.2 * events * links
    broken = summary.marks[Mark.TORN]
    assert summary.counts["ids_sent"] <= events * (2 * links + broken * nodes)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", MACHINE_MUTANTS | DRIVER_MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = DRIVER_SEEDS if name in DRIVER_MUTANTS else SEEDS
    mutant = (MACHINE_MUTANTS | DRIVER_MUTANTS)[name]
    mutant.find(
        monkeypatch,
        seeds,
        lambda seed: simulate_gossip(seed, random.Random(seed), nodes=mutant.nodes),
        "--gossip alone ",
    )
