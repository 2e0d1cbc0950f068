"""How few reads a walk needs, and how little it reads in vain."""

from __future__ import annotations

import random
import struct

from hypothesis import given
from hypothesis import strategies as st

from store.domain.causal import LARGEST_WINDOW_CLAIMS, MOST_AHEAD_CLAIMS
from store.domain.claims import references
from tests.unit.domain.causal_world import (
    Parent,
    Stored,
    World,
    chain,
    digest,
    packed_hints,
    packed_keys,
    request,
    walk,
)


def thinned(size: int, every: int = 1) -> tuple[World, Parent, int]:
    """A chain of each ``every``-th of so many messages, its head, and its length."""
    length = -(-size // every)
    last = (length - 1) * every
    return chain(size, every), (b"%d" % last, digest(last)), length


def test_a_dense_chain_takes_a_read_per_window() -> None:
    world, head, length = thinned(20_000)
    assert len(walk(world, request([head])).taken) == length
    assert len(world.reads) <= 8 + length // LARGEST_WINDOW_CLAIMS


def test_a_thin_chain_is_followed_by_its_parents() -> None:
    world, head, length = thinned(60_000, every=60)
    assert len(walk(world, request([head])).taken) == length
    assert len(world.reads) < 30
    in_vain = sum(read.window.limit for read in world.reads if read.window is not None)
    assert in_vain < 4 * length


def test_a_thin_chain_that_becomes_dense_is_read_by_windows_again() -> None:
    thin, head, _ = thinned(30_000, every=60)
    oldest = next(stored for stored in thin.messages if stored.message_id == b"0")
    dense = [
        Stored(
            1 + number,
            digest(1_000_000 + number),
            b"dense%d" % number,
            ((b"dense%d" % (number - 1), None),) if number else (),
        )
        for number in range(25_000)
    ]
    later = [
        Stored(100_000 + stored.timestamp, stored.hash, stored.message_id, stored.parents)
        for stored in thin.messages
        if stored is not oldest
    ]
    bridge = Stored(100_000, oldest.hash, b"0", ((b"dense24999", None),))
    world = World([*dense, bridge, *later])
    assert len(walk(world, request([head])).taken) == 25_500
    assert len(world.reads) < 80


def test_scattered_missing_parents_cost_no_read_each() -> None:
    rnd = random.Random(5)
    messages, head = [], (b"", digest(0))
    for number in range(20_000):
        parents: list[Parent] = [head] if number else []
        if rnd.random() < 0.05:
            parents.append((b"lost%d" % number, digest(500_000 + number)))
        head = (b"%d" % number, digest(number))
        messages.append(Stored(1 + number, digest(number), head[0], tuple(parents)))
    world = World(messages)
    walked = walk(world, request([head]))
    assert len(walked.taken) == 20_000
    assert 800 < len(walked.missing) < 1_200
    assert len(world.reads) < 40


def test_prefetching_respects_what_is_still_wanted() -> None:
    world, head, _ = thinned(8_000)
    assert len(walk(world, request([head], max_messages=50)).taken) == 50
    windows = [read.window.limit for read in world.reads if read.window is not None]
    assert sum(windows) <= 200
    world.reads.clear()
    assert len(walk(world, request([head], max_depth=3)).taken) == 4
    assert sum(read.ahead for read in world.reads) == 0
    assert len(world.reads) <= 3


def test_branches_of_very_different_speed_are_walked_in_few_reads() -> None:
    messages: list[Stored] = []
    tips: dict[str, Parent] = {}
    for number in range(15_000):
        branch = "slow" if number % 500 == 0 else "fast"
        parents = (tips[branch],) if branch in tips else ()
        tips[branch] = (b"%d" % number, digest(number))
        messages.append(Stored(1 + number, digest(number), tips[branch][0], parents))
    world = World(messages)
    assert len(walk(world, request(tips.values())).taken) == 15_000
    assert len(world.reads) < 120
    assert max(read.ahead for read in world.reads) <= MOST_AHEAD_CLAIMS


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


def test_hints_of_odd_sizes_that_add_up_are_told_from_hashes() -> None:
    key = bytes(16)
    odd = [bytes(28), struct.pack(">i", 32) + bytes(32)]
    assert len(packed_hints(odd)) == 20 + 2 * 36
    assert references(packed_keys([key, key]), packed_hints(odd)) == [(key, None), (key, None)]
