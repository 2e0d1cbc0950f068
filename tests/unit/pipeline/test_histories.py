"""Drawn histories: what they say of themselves is what a look at their messages gives."""

from __future__ import annotations

import pytest

from bench.histories import HOUR_NS, HOURS_PER_DAY, Channel, channels
from storenode.sds.codec import decode

UNTIL_NS = 1_795_322_254_000_000_000
DAYS = 3


@pytest.mark.parametrize("seed", range(3))
def test_a_history_is_what_it_says(seed: int) -> None:
    drawn = list(channels(2_000, 5, DAYS, UNTIL_NS, seed))
    assert len(drawn) == 5
    assert 1_800 < sum(len(each.messages) for each in drawn) < 2_200
    for each in drawn:
        compare(each)


def compare(channel: Channel) -> None:
    parents: dict[str, list[str]] = {}
    lamports: dict[str, int] = {}
    last = 0
    for each in channel.messages:
        said = decode(each.payload)
        assert said is not None
        assert said.channel_id.decode() == channel.name
        assert last < each.timestamp < UNTIL_NS + HOUR_NS
        last = each.timestamp
        name = said.message_id.decode()
        parents[name] = [parent.decode() for parent, _ in said.parents]
        assert said.lamport is not None
        lamports[name] = said.lamport
    assert channel.messages[0].timestamp >= UNTIL_NS - DAYS * HOURS_PER_DAY * HOUR_NS
    named = {parent for own in parents.values() for parent in own}
    assert named - parents.keys() == channel.gaps != set()
    past: dict[str, bool] = {}
    for name, own in parents.items():
        past[name] = any(parent in channel.gaps or past[parent] for parent in own)
        assert all(lamports[name] > lamports[parent] for parent in own if parent in lamports)
    children = [parent for own in parents.values() for parent in own]
    assert channel.incomplete == sum(past.values())
    assert channel.merges == sum(len(own) > 1 for own in parents.values()) > 0
    assert channel.forks == sum(children.count(name) > 1 for name in parents) > 0
