"""Causal walks and lookups by ID against a naive oracle, on graphs of every kind."""

from __future__ import annotations

import struct
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from store.domain import causal
from store.domain.causal import HEADS, MOST_AHEAD, CausalWalk
from store.domain.claims import CLAIM_BYTES, PARENT_BYTES, references
from storenode.message.limits import MAX_SDS_CLAIMANTS
from storenode.sds.proofs import ID_BYTES
from tests.unit.domain.causal_world import (
    Parent,
    Stored,
    World,
    chain,
    digest,
    in_one_cycle,
    look_up,
    naive_look_up,
    naive_walk,
    packed_hints,
    packed_keys,
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
parents_of = st.tuples(st.sampled_from(IDS), hints)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Generate colliding IDs, cycles of parents, lying hints and opaque messages."""
    count = draw(st.integers(0, MOST))
    messages = []
    for number in range(count):
        message_id = draw(st.one_of(st.sampled_from(IDS), st.sampled_from(IDS), st.none()))
        parents = draw(st.lists(parents_of, max_size=4)) if message_id is not None else ()
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


def taken_by(walked: CausalWalk) -> list[bytes]:
    return [found[2] for found in walked.taken]


def missing_of(walked: CausalWalk, world: World, heads: list[Parent]) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for origin in walked.missing.values():
        parents = (
            heads if origin.node == HEADS else world.by_hash[walked.taken[origin.node][2]].parents
        )
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
@given(worlds(), st.lists(parents_of, max_size=4), limits)
def test_a_walk_takes_what_the_rules_say(
    world: World, heads: list[Parent], limited: dict[str, object]
) -> None:
    wanted = request(heads, **limited)
    walked = walk(world, wanted)
    expected = naive_walk(world, wanted)
    assert taken_by(walked) == expected.taken
    assert missing_of(walked, world, heads) == expected.missing
    assert walked.truncated == expected.truncated
    assert_parents_first(walked, expected.edges)


@given(worlds(), st.lists(parents_of, min_size=1, max_size=4), st.integers(0, 20_000))
def test_a_walk_out_of_memory_keeps_what_is_nearest(
    world: World, heads: list[Parent], most_bytes: int
) -> None:
    wanted = request(heads)
    with patch.object(causal, "MAX_WALK_BYTES", most_bytes):
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


def test_edges_are_bounded_where_nothing_is_read_between_them() -> None:
    # All references lead to the same few messages, so that one read serves the whole walk.
    oldest = [Stored(1 + number, digest(number), b"%d" % number) for number in range(20)]
    parents: list[Parent] = [(each.message_id or b"", None) for each in oldest]
    newer = [
        Stored(100 + number, digest(100 + number), b"%d" % (100 + number), tuple(parents))
        for number in range(400)
    ]
    heads = [(b"%d" % (100 + number), None) for number in range(400)]
    whole = walk(World([*oldest, *newer]), request(heads))
    assert (whole.truncated, len(whole._edges)) == (False, 8_000)
    most_bytes = (len(newer) + len(oldest)) * 2 * CLAIM_BYTES + 400 * 20 * 16 * PARENT_BYTES
    with patch.multiple(causal, MAX_WALK_BYTES=most_bytes + 4 * 4_500, STEP_REFERENCES=500):
        walked = walk(World([*oldest, *newer]), request(heads))
    assert walked.truncated
    assert len(walked._edges) < 8_000
    assert len(list(walked.parents_first())) == len(walked.taken)


def test_a_deep_chain_takes_few_reads_however_thin_it_is_in_its_channel() -> None:
    for depth, every in ((9_000, 1), (600, 60)):
        world, last = chain(depth * every, every), (depth - 1) * every
        assert len(walk(world, request([(b"%d" % last, digest(last))])).taken) == depth
        assert len(world.queries) <= 10 + depth // MOST_AHEAD
        assert sum(query.ahead for query in world.queries) < 2 * depth


def test_limits_bound_what_is_read_ahead() -> None:
    world, head = chain(8_000), (b"7999", digest(7_999))
    assert len(walk(world, request([head], max_messages=50)).taken) == 50
    assert sum(query.ahead for query in world.queries) <= 200
    world.queries.clear()
    assert len(walk(world, request([head], max_depth=1)).taken) == 2
    assert sum(query.ahead for query in world.queries) == 0
    world.queries.clear()
    assert len(walk(world, request([head], max_depth=500)).taken) == 501
    assert len(world.queries) < 10


@given(worlds(), st.lists(parents_of, max_size=8))
def test_a_look_up_selects_what_the_rules_say(world: World, entries: list[Parent]) -> None:
    lookup = look_up(world, entries)
    expected = naive_look_up(world, entries)
    assert [(claim[3], claim[2]) for claim in lookup.messages] == expected.messages
    assert lookup.missing == expected.missing
    assert lookup.truncated == expected.truncated
    assert len(world.queries) <= 2


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=16, max_size=16),
            st.one_of(
                st.none(),
                st.binary(min_size=32, max_size=32),
                st.binary(max_size=80).filter(lambda hint: len(hint) != 32),
            ),
        ),
        max_size=12,
    )
)
def test_parents_are_read_from_the_arrays_of_the_database(
    parents: list[tuple[bytes, bytes | None]],
) -> None:
    keys = packed_keys([key for key, _ in parents])
    hints = packed_hints([hint for _, hint in parents])
    expected = [
        (key, hint if hint is not None and len(hint) == 32 else None) for key, hint in parents
    ]
    assert references(keys, hints) == expected


def test_hints_of_odd_sizes_that_add_up_are_not_taken_for_hashes() -> None:
    key = bytes(16)
    odd = [bytes(28), struct.pack(">i", 32) + bytes(32)]
    assert len(packed_hints(odd)) == 20 + 2 * 36
    assert references(packed_keys([key, key]), packed_hints(odd)) == [(key, None), (key, None)]
