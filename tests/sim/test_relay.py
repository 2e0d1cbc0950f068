"""Runs of relay: gossipsub routers with faults and liars, and routers that are wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sim.run import simulate_relay
from tests.sim.relay_mutants import RELAY_MUTANTS
from tests.sim.test_repeating import command

GROUPS, GROUP = 2, 6
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


def test_a_run_is_the_same_in_every_process() -> None:
    first, second = (command("--relay", "--seed", "9", "--trace", hash_seed=each) for each in "12")
    assert first == second
    assert "seed 9: RelaySummary(digest=" in first


@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("name", RELAY_MUTANTS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    RELAY_MUTANTS[name].find(
        monkeypatch, SEEDS, lambda seed: simulate_relay(seed, random.Random(seed)), "--relay "
    )
