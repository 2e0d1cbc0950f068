"""Runs of the gateway's cores, with faults, liars and mutants: relay, reconciliation with nwaku."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sim.relaying.world import RelaySummary
from sim.run import simulate_relay, simulate_sync
from tests.sim.gateway_mutants import RECOVERY_MUTANTS, RELAY_MUTANTS, SYNC_MUTANTS
from tests.sim.test_repeating import command

GROUPS, GROUP = 2, 4
SYNC_RUNS = 40
RECOVERY_RUNS = 15
SEEDS = 60
"""A fault must show in one of so many runs; most show in the first."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_messages_reach_every_router_once_among_liars(group: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(group * GROUP, (group + 1) * GROUP):
        summary = simulate_relay(seed, random.Random(seed))
        seen["accepted"] += summary.accepted
        seen["settled"] += summary.settled
        seen["punished"] += summary.punished
    assert seen["accepted"] > 100 * GROUP
    assert seen["settled"] == 8 * GROUP
    assert seen["punished"]


def test_both_sides_find_the_differences_also_after_broken_sessions_and_lies() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SYNC_RUNS):
        summary = simulate_sync(seed, random.Random(seed))
        seen["sessions"] += summary.sessions
        seen["broken"] += summary.broken
        seen["lies"] += summary.lies
    assert seen["sessions"] > 5 * SYNC_RUNS
    assert seen["broken"] > 3
    assert seen["lies"] > SYNC_RUNS


@pytest.mark.parametrize(
    ("option", "summary"), [("--relay", "RelaySummary"), ("--sync", "SyncSummary")]
)
def test_a_run_is_the_same_in_every_process(option: str, summary: str) -> None:
    first, second = (command(option, "--seed", "9", "--trace", hash_seed=each) for each in "12")
    assert first == second
    assert f"seed 9: {summary}(digest=" in first


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", RELAY_MUTANTS)
def test_a_fault_of_a_router_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RELAY_MUTANTS[name].find(
        monkeypatch, SEEDS, lambda seed: simulate_relay(seed, random.Random(seed)), "--relay "
    )


def simulate_recovery(seed: int) -> RelaySummary:
    return simulate_relay(seed, random.Random(seed), pushes=False)


def test_announced_messages_reach_every_router_that_receives_no_push() -> None:
    assert all(simulate_recovery(seed).accepted for seed in range(RECOVERY_RUNS))


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", RECOVERY_MUTANTS)
def test_a_fault_of_recovery_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command_line = "--relay --no-pushes "
    RECOVERY_MUTANTS[name].find(monkeypatch, SEEDS, simulate_recovery, command_line)


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", SYNC_MUTANTS)
def test_a_fault_of_reconciliation_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SYNC_MUTANTS[name].find(
        monkeypatch, SEEDS, lambda seed: simulate_sync(seed, random.Random(seed)), "--sync "
    )
