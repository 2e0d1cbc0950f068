"""Walks against the naive reading of the rules, on graphs of every kind."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from store.domain import causal
from store.domain.causal import CausalWalk
from store.domain.sweep import Sweep
from storenode.message.limits import MAX_SDS_CLAIMANTS
from storenode.sds.proofs import ID_BYTES
from tests.unit.domain.causal_world import (
    Parent,
    Stored,
    World,
    digest,
    in_one_cycle,
    naive_walk,
    request,
    walk,
)

PROVABLE = [b"a" * ID_BYTES, b"b" * ID_BYTES]
IDS = [*PROVABLE, b"c", b"d", b"e", b"f", b"g", b"h"]
UNKNOWN = digest(999)
MOST = 24

hints = st.one_of(
    st.none(),
    st.integers(0, MOST - 1).map(digest),
    st.sampled_from([UNKNOWN, b"", b"short", bytes(33)]),
)
references = st.tuples(st.sampled_from(IDS), hints)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Messages whose IDs collide, whose parents form cycles, whose hints lie; some are opaque."""
    count = draw(st.integers(0, MOST))
    messages = []
    for number in range(count):
        message_id = draw(st.one_of(st.sampled_from(IDS), st.sampled_from(IDS), st.none()))
        parents = draw(st.lists(references, max_size=4)) if message_id is not None else ()
        timestamp = draw(st.integers(1, 6))
        proven = message_id in PROVABLE and draw(st.booleans())
        messages.append(Stored(timestamp, digest(number), message_id, tuple(parents), proven))
    opaque = [stored.hash for stored in messages if stored.message_id is None]
    foreign = draw(st.sets(st.sampled_from(opaque))) if opaque else set()
    return World(
        messages,
        frozenset(foreign),
        draw(st.sampled_from([1, 2, 5, 1000])),
        prefers=draw(st.booleans()),
        claimants=draw(st.sampled_from([1, 2, MAX_SDS_CLAIMANTS])),
    )


def taken_by(walked: CausalWalk | Sweep) -> list[bytes]:
    return [found[2] for found in walked.taken]


def missing_of(
    walked: CausalWalk | Sweep, world: World, heads: list[Parent]
) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for origin in walked.missing.values():
        parents = heads if origin.is_head else world.by_hash[walked.taken[origin.node][2]].parents
        message_id, hint = parents[origin.slot]
        found[message_id] = hint
    return found


def assert_parents_first(walked: CausalWalk, edges: set[tuple[bytes, bytes]]) -> None:
    order = list(walked.parents_first())
    assert sorted(order) == list(range(len(walked.taken)))
    place = {walked.taken[number][2]: at for at, number in enumerate(order)}
    for child, parent in edges - in_one_cycle(edges):
        assert place[parent] < place[child]


limits = st.fixed_dictionaries(
    {
        "known_ids": st.frozensets(st.sampled_from(IDS), max_size=2),
        "max_messages": st.sampled_from([1, 2, 5, 1000]),
        "max_depth": st.integers(0, 4),
    }
)


@settings(max_examples=150)
@given(worlds(), st.lists(references, max_size=4), limits, st.sampled_from([0, 1, 1 << 30]))
def test_a_walk_takes_what_the_rules_say(
    world: World, heads: list[Parent], limited: dict[str, object], prefetched_bytes: int
) -> None:
    wanted = request(heads, **limited)
    with patch.object(causal, "MAX_PREFETCHED_BYTES", prefetched_bytes):
        walked = walk(world, wanted)
    expected = naive_walk(world, wanted)
    assert taken_by(walked) == expected.taken
    assert missing_of(walked, world, heads) == expected.missing
    assert walked.truncated == expected.truncated
    assert_parents_first(walked, expected.edges)


@given(
    worlds(),
    st.lists(references, min_size=1, max_size=4),
    st.tuples(st.just("MAX_WALK_BYTES"), st.integers(0, 20_000))
    | st.tuples(st.just("MAX_EDGES"), st.integers(0, 20)),
)
def test_a_walk_out_of_memory_keeps_what_is_nearest(
    world: World, heads: list[Parent], limit: tuple[str, int]
) -> None:
    wanted = request(heads)
    with patch.object(causal, *limit):
        walked = walk(world, wanted)
    expected = naive_walk(world, wanted)
    count = len(walked.taken)
    assert taken_by(walked) == expected.taken[:count]
    assert walked.truncated == (expected.truncated or count < len(expected.taken))
    taken = set(taken_by(walked))
    assert_parents_first(
        walked, {edge for edge in expected.edges if edge[0] in taken and edge[1] in taken}
    )
    assert set(missing_of(walked, world, heads)) <= set(IDS)


def test_references_beside_many_proven_messages_take_little_memory() -> None:
    """Whoever names a forged message in all references would else have 17 edges for each."""
    genuine, forged = PROVABLE[0], digest(99)
    messages = [Stored(1, digest(number), genuine, (), proven=True) for number in range(20)]
    messages.append(Stored(2, forged, genuine))
    parents: list[Parent] = [(genuine, forged)] * 50
    for number in range(30):
        before: list[Parent] = [(b"%d" % (number - 1), None)] if number else []
        messages.append(
            Stored(3 + number, digest(100 + number), b"%d" % number, (*before, *parents))
        )
    world = World(messages, prefers=True)
    wanted = request([(b"29", None)])
    walked, expected = walk(world, wanted), naive_walk(world, wanted)
    assert taken_by(walked) == expected.taken
    assert_parents_first(walked, expected.edges)
    assert len(walked._edges) <= 2 * 30 * 51


def test_edges_are_bounded_where_nothing_is_read_between_them() -> None:
    """All references lead to the same few messages, so that one read serves the whole walk."""
    oldest = [Stored(1 + number, digest(number), b"%d" % number) for number in range(20)]
    parents: list[Parent] = [(each.message_id or b"", None) for each in oldest]
    newer = [
        Stored(100 + number, digest(100 + number), b"%d" % (100 + number), tuple(parents))
        for number in range(400)
    ]
    heads = [(b"%d" % (100 + number), None) for number in range(400)]
    with patch.object(causal, "MAX_EDGES", 4_500), patch.object(causal, "STEP_REFERENCES", 500):
        walked = walk(World([*oldest, *newer]), request(heads))
    assert walked.truncated
    assert 4_500 < len(walked._edges) <= 4_500 + 500 + 20
    assert len(list(walked.parents_first())) == len(walked.taken)
