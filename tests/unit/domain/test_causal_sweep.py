"""Whole requests, swept or walked, against the naive reading; and which of the two it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.domain.causal import CausalWalk
from store.domain.claims import Done, Pause, Read
from store.domain.ports import CausalRequest
from store.domain.sweep import LARGEST_WINDOW_CLAIMS, STEP_REFERENCES, CausalHistory, Sweep
from storenode.sds.proofs import ID_BYTES
from tests.unit.domain.causal_world import (
    Expected,
    Parent,
    Stored,
    World,
    chain,
    digest,
    find,
    in_one_cycle,
    naive_walk,
    request,
)
from tests.unit.domain.test_causal_walk import (
    UNKNOWN,
    limits,
    missing_of,
    references,
    taken_by,
    worlds,
)


def assert_found(world: World, wanted: CausalRequest) -> Sweep | CausalWalk:
    """The result, after comparing it with the naive reading."""
    expected: Expected = naive_walk(world, wanted)
    found = find(world, wanted)
    taken = taken_by(found)
    assert len(taken) == len(set(taken))
    assert set(taken) == set(expected.taken)
    heads: list[Parent] = [(head.message_id, head.retrieval_hint) for head in wanted.heads]
    assert missing_of(found, world, heads) == expected.missing
    assert found.truncated == expected.truncated
    place = {taken[number]: at for at, number in enumerate(found.parents_first())}
    assert len(place) == len(taken)
    for child, parent in expected.edges - in_one_cycle(expected.edges):
        assert place[parent] < place[child]
    return found


@settings(max_examples=150)
@given(worlds(), st.lists(references, max_size=4), limits)
def test_any_request_finds_what_the_rules_say(
    world: World, heads: list[Parent], limited: dict[str, object]
) -> None:
    assert_found(world, request(heads, **limited))


@st.composite
def orderly_worlds(draw: st.DrawFn) -> tuple[World, list[Parent]]:
    """Histories as they should be: unique IDs, older parents, true hints; and their tips."""
    messages: list[Stored] = []
    unreferenced: dict[bytes, Parent] = {}
    hinted, proven = draw(st.booleans()), draw(st.booleans())
    for number in range(draw(st.integers(1, 30))):
        chosen = draw(st.sets(st.sampled_from(messages), max_size=3)) if messages else set()
        parents: list[Parent] = []
        for parent in sorted(chosen, key=lambda each: each.hash):
            assert parent.message_id is not None
            parents.append((parent.message_id, parent.hash if hinted else None))
            unreferenced.pop(parent.message_id, None)
        if draw(st.integers(0, 5)) == 0:
            parents.append((b"lost-%d" % number, UNKNOWN if hinted else None))
        name = b"%064d" % number
        stored = Stored(10 + number // 2, digest(number), name, tuple(parents), proven)
        messages.append(stored)
        unreferenced[name] = name, stored.hash
    prefetched = draw(st.sampled_from([1, 3, 1000]))
    world = World(messages, most_prefetched=prefetched, prefers=draw(st.booleans()))
    return world, list(unreferenced.values())


@given(orderly_worlds())
def test_orderly_history_is_swept(case: tuple[World, list[Parent]]) -> None:
    world, tips = case
    found = assert_found(world, request(tips))
    assert isinstance(found, Sweep)
    assert len(found.taken) == len(world.messages)


@given(orderly_worlds(), st.data())
def test_part_of_an_orderly_history_is_found(
    case: tuple[World, list[Parent]], data: st.DataObject
) -> None:
    world, _ = case
    ids = [each.message_id for each in world.messages if each.message_id is not None]
    heads: list[Parent] = [(head, None) for head in data.draw(st.lists(st.sampled_from(ids)))]
    known = data.draw(st.frozensets(st.sampled_from(ids), max_size=5))
    assert_found(world, request(heads, known_ids=known))


def line(*stored: Stored) -> World:
    return World(list(stored), prefers=True)


CHILD: Parent = (b"child", None)
GENUINE = b"a" * ID_BYTES

DISORDER = {
    "a parent newer than its child": line(
        Stored(5, digest(1), b"child", ((b"parent", digest(2)),)), Stored(6, digest(2), b"parent")
    ),
    "a cycle": line(
        Stored(5, digest(1), b"child", ((b"parent", None),)),
        Stored(4, digest(2), b"parent", ((b"child", None),)),
    ),
    "a second claimant of an ID without a hint": line(
        Stored(5, digest(1), b"child", ((b"parent", None),)),
        Stored(4, digest(2), b"parent"),
        Stored(9, digest(3), b"parent"),
    ),
    "hints that differ": line(
        Stored(5, digest(1), b"child", ((b"parent", digest(2)), (b"parent", digest(3)))),
        Stored(4, digest(2), b"parent"),
        Stored(3, digest(3), b"parent"),
    ),
    "a hint that names nothing, of an ID that is claimed": line(
        Stored(5, digest(1), b"child", ((b"parent", UNKNOWN),)), Stored(4, digest(2), b"parent")
    ),
    "a hint that names an opaque message": line(
        Stored(5, digest(1), b"child", ((b"parent", digest(2)),)), Stored(4, digest(2), None)
    ),
    "a hint that names an opaque message, of an ID that was met without one": line(
        Stored(5, digest(1), b"child", ((b"parent", None), (b"other", None))),
        Stored(4, digest(2), b"parent"),
        Stored(3, digest(3), b"other", ((b"parent", digest(4)),)),
        Stored(2, digest(4), None),
    ),
    "a hint to what is not proven, of an ID that another proves": line(
        Stored(5, digest(1), b"child", ((GENUINE, digest(2)),)),
        Stored(4, digest(2), GENUINE),
        Stored(3, digest(3), GENUINE, proven=True),
    ),
    "the same of an ID that was met without a hint": line(
        Stored(7, digest(1), b"child", ((GENUINE, None), (b"near", None))),
        Stored(6, digest(2), b"near", ((b"far", None),)),
        Stored(5, digest(3), b"far", ((GENUINE, digest(4)),)),
        Stored(4, digest(4), GENUINE),
        Stored(3, digest(5), GENUINE, proven=True),
    ),
    "a head with two claimants": line(
        Stored(5, digest(1), b"child"), Stored(4, digest(2), b"child")
    ),
    "a head that is missing": line(Stored(5, digest(1), b"other")),
}


@pytest.mark.parametrize("world", DISORDER.values(), ids=DISORDER)
def test_disorder_is_walked(world: World) -> None:
    assert isinstance(assert_found(world, request([CHILD])), CausalWalk)


def test_limits_are_walked() -> None:
    world = chain(30)
    assert isinstance(assert_found(world, request([(b"29", None)], max_depth=3)), CausalWalk)
    assert isinstance(assert_found(world, request([(b"29", None)], max_messages=29)), CausalWalk)
    assert isinstance(assert_found(world, request([(b"29", None)], max_messages=30)), Sweep)


def test_a_sweep_takes_a_read_per_window_and_ends_with_what_is_known() -> None:
    world = chain(20_000)
    head: Parent = (b"19999", digest(19_999))
    assert len(find(world, request([head])).taken) == 20_000
    assert len(world.reads) <= 4 + 20_000 // LARGEST_WINDOW_CLAIMS
    world.reads.clear()
    assert len(find(world, request([head], known_ids=frozenset((b"19000",)))).taken) == 999
    assert sum(read.window.limit for read in world.reads if read.window) < 3_000


def test_a_thin_history_is_given_up_early() -> None:
    dice = random.Random(3)
    noise = [Stored(2 + number, digest(1_000 + number), b"n%d" % number) for number in range(9_000)]
    dice.shuffle(noise)
    ends = [Stored(1, digest(1), b"old"), Stored(9_999, digest(2), b"new", ((b"old", digest(1)),))]
    world = World(noise + ends)
    assert len(find(world, request([(b"new", None)])).taken) == 2
    assert sum(read.window.limit for read in world.reads if read.window) < 2_000


def test_a_window_of_many_parents_is_gone_through_in_steps() -> None:
    messages = [Stored(1 + number, digest(number), b"%d" % number) for number in range(200)]
    ids: list[Parent] = [(b"%d" % number, digest(number)) for number in range(200)]
    messages += [
        Stored(1_000 + number, digest(1_000 + number), b"child%d" % number, tuple(ids))
        for number in range(100)
    ]
    world = World(messages)
    heads: list[Parent] = [(b"child%d" % number, None) for number in range(100)]
    history = CausalHistory(request(heads))
    pauses, answer = 0, None
    while not isinstance(effect := history.step(answer), Done):
        history.result.check()
        pauses += isinstance(effect, Pause)
        answer = world.answer(effect, request(heads).heads) if isinstance(effect, Read) else None
    assert isinstance(history.result, Sweep)
    assert len(history.result.taken) == 300
    assert pauses >= 100 * 200 // STEP_REFERENCES
