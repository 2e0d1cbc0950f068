"""Short runs of all attacks: the node lives, and an honest client is served.

What an attack costs in memory is bounded; how long an honest call takes is a figure of the
benchmark, and no test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.attacks import honest
from chaos.attacks.attacker import load_attacks
from chaos.attacks.run import run_attack

ATTACKS = load_attacks()
MOST_MIB = {"unfinished_requests": 350, "silent_calls": 150, "compressed_requests": 50}
"""Growth above the 150 MiB of a node at rest."""

MOST_OTHERS_MIB = 400
"""A container of 1 GiB has room for both."""

FEWER = {
    "compressed_requests": 20,
    "crowded_calls": 2_000,
    "idle_connections": 100,
    "unread_follows": 40,
}
COUNTS = {name: attack.short for name, attack in ATTACKS.items()} | FEWER
"""Counts below the short ones; test_hostile_callers tests the connections of one host."""

LEAST_CALLS = {"rapid_resets": 20}
"""Calls of the honest client during an attack."""

PAUSE_S = 0.5
"""Pause between calls of the honest client, where they are not counted."""

SAW = {
    "idle_connections": "of 100 connections that could be made the node has closed 90",
    "compressed_requests": "20 of 20 ended UNIMPLEMENTED",
    "half_sent_probes": "answered 20 with 200",
    "gossip_places": "an honest peer had a stream after",
    "reconcile_places": "an honest peer transferred after",
}
"""Parts of the final sentences of some attacks."""


def test_there_are_attacks_on_everything_that_is_bounded() -> None:
    assert {"unread_scans", "walks", "silent_calls", "rapid_resets", "half_sent_probes"} <= set(
        ATTACKS
    )


@pytest.mark.parametrize("name", ATTACKS)
async def test_a_node_serves_on_under_attack(name: str, new_store: Callable[[], str]) -> None:
    pause_s = honest.PAUSE_S if name in LEAST_CALLS else PAUSE_S
    outcome = await run_attack(
        {name: COUNTS[name]}, seed=1, database_url=new_store(), pause_s=pause_s
    )
    assert outcome.alive
    assert outcome.failures == {}
    assert outcome.calls > LEAST_CALLS.get(name, 0)
    assert outcome.growth_mib < MOST_MIB.get(name, MOST_OTHERS_MIB), outcome.saw
    assert "failed with code" not in outcome.saw
    assert SAW.get(name, "") in outcome.saw
