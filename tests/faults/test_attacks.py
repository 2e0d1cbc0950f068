"""Every attack of `bench.hostile`, shortly: the node lives, and an honest client is served.

What an attack costs in memory is bounded; how long an honest call takes is a figure of the
benchmark, and no test.
"""

from __future__ import annotations

import pytest

from bench.hostile.attacker import found
from bench.hostile.run import run_attack

ATTACKS = found()
MOST_MIB = 400
"""Above what the node has at rest, 150: a container of 1 GiB has room for both."""


def test_there_are_attacks_on_everything_that_is_bounded() -> None:
    assert {"unread_scans", "walks", "silent_calls", "rapid_resets", "half_sent_probes"} <= set(
        ATTACKS
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_a_node_serves_on_under_attack(name: str) -> None:
    outcome = run_attack({name: ATTACKS[name].SHORT}, seed=1)
    assert outcome.alive
    assert outcome.failures == {}
    assert outcome.calls > 0
    assert outcome.growth_mib < MOST_MIB
    assert "failed with code" not in outcome.saw
