"""Participants beside those of the published JavaScript library, each reading the other."""

from __future__ import annotations

from itertools import product

import pytest

from tests.integration.javascript.world import OURS, THEIRS, Case, Library, World

LINES = 60
EVERY_MS = 2_000
SETTLE_MS = 900_000

CASES = [Case(1, history, with_store) for history, with_store in product((2, 200), (True, False))]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_all_logs_are_complete(case: Case, library: Library) -> None:
    world = World(library, case)
    world.talk(LINES, EVERY_MS)
    world.run(SETTLE_MS)
    assert len(world.said) == LINES
    assert world.errors == []
    assert all(world.whole(name) for name in OURS + THEIRS)
    # Both are acknowledged by what the other sends.
    theirs = {message_id for message_id, who in world.said.items() if who in THEIRS}
    assert theirs <= world.acknowledged
    assert not any(channel.outgoing.by_id for channel in world.ours.values())
