"""Bounds that can follow each other, against the letter of the specification."""

from collections import deque
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from reconcile.codec import bridge, encode, expressible
from reconcile.codec.bounds import prefix_length
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from tests.support.spec_peer import Range, Reader, RefusedError, encoded_bound
from tests.unit.reconcile.naive_codec import payload_of

places = st.integers(0, 31)
sparse_hashes = st.lists(st.tuples(places, st.integers(0, 255)), max_size=3).map(
    lambda changes: bytes(dict(changes).get(place, 0) for place in range(32))
)
hashes = sparse_hashes | st.binary(min_size=32, max_size=32)
bounds = st.tuples(st.integers(0, 2) | st.integers(0, 2**63 - 1), hashes)


def test_the_table_of_the_specification() -> None:
    # WAKU-SYNC, "Delta encoding for sequential SyncIds": its example.
    # Of the third row, which has the second's time, the hash is sent up to the byte that differs.
    records = [Range((time, bytes(32)), 0) for time in (1000, 1002, 1003)]
    assert encode(payload_of(0, (), records))[2:] == b"\xe8\x07\0\x02\0\x01\0"
    second, third = bytes.fromhex("351c5e86").ljust(32, b"\x22"), bytes.fromhex("3560")
    assert prefix_length(second, third.ljust(32, b"\0")) == 2


def can_follow(previous: SyncId, bound: SyncId) -> bool:
    """Return True if a decoder reads a bound as it was meant."""
    if bound <= previous:
        return False
    try:
        return Reader(encoded_bound(previous, bound)).bound(previous) == bound
    except RefusedError:
        return False


@given(st.lists(st.tuples(bounds, bounds)))
def test_expressible_is_what_a_decoder_sees(pairs: list[tuple[SyncId, SyncId]]) -> None:
    previous, following = SyncIds.of(a for a, _ in pairs), SyncIds.of(b for _, b in pairs)
    expected = [can_follow(a, b) for a, b in pairs]
    assert expressible(previous, following).tolist() == expected


def steps_between(previous: SyncId, target: SyncId) -> list[SyncId]:
    """Return the bounds that lead from one to a greater one."""
    return bridge(SyncIds.of([previous]), SyncIds.of([target]))[1].pairs()


@given(st.lists(st.tuples(bounds, bounds)))
def test_a_bridge_leads_to_each_bound_in_expressible_steps(
    pairs: list[tuple[SyncId, SyncId]],
) -> None:
    pairs = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    rows, found = bridge(SyncIds.of(a for a, _ in pairs), SyncIds.of(b for _, b in pairs))
    for row, (previous, target) in enumerate(pairs):
        chain = found[rows == row].pairs()
        assert chain[-1] == target
        assert chain == steps_between(previous, target)
        assert len(chain) <= 33
        assert all(can_follow(a, b) for a, b in zip([previous, *chain], chain, strict=False))


def test_a_bridge_takes_the_fewest_steps() -> None:
    all_hashes = [bytes(29) + bytes(tail) for tail in product((0, 1, 255), repeat=3)]
    every = [(time, hash_) for time in (4, 5) for hash_ in all_hashes]
    steps = {a: [b for b in every if can_follow(a, b)] for a in every}
    for begin in every:
        distances, queue = {begin: 0}, deque([begin])
        while queue:
            here = queue.popleft()
            for there in steps[here]:
                if there not in distances:
                    distances[there] = distances[here] + 1
                    queue.append(there)
        assert {
            target: len(steps_between(begin, target)) for target in every if target > begin
        } == {target: distance for target, distance in distances.items() if distance}


def test_the_longest_way() -> None:
    assert len(steps_between(LOWEST, END)) == 33
    assert steps_between((7, b"\1" * 32), (7, b"\1" * 31 + b"\2")) == [(7, b"\1" * 31 + b"\2")]
