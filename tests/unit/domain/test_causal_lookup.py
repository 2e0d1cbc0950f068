"""Look-ups by SDS message ID against the naive reading of the rules."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.domain.causal_world import Parent, Stored, World, digest, look_up, naive_look_up
from tests.unit.domain.test_causal_walk import references, worlds


@given(worlds(), st.lists(references, max_size=8))
def test_a_look_up_selects_what_the_rules_say(world: World, entries: list[Parent]) -> None:
    lookup = look_up(world, entries)
    expected = naive_look_up(world, entries)
    assert [(claim[3], claim[2]) for claim in lookup.messages] == expected.messages
    assert lookup.missing == expected.missing
    assert lookup.truncated == expected.truncated


def test_all_is_found_in_two_reads() -> None:
    world = World(
        [Stored(1, digest(number), b"%d" % number) for number in range(50)]
        + [Stored(2, digest(100), None)]
    )
    entries: list[Parent] = [(b"%d" % number, digest(100)) for number in range(60)]
    lookup = look_up(world, entries)
    assert len(world.reads) == 2
    assert len(lookup.messages) == 50 + 60
    assert not lookup.missing
