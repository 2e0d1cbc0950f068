"""A first payload that divides the window: sets of one XOR are seen in parts."""

from __future__ import annotations

import random
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from reconcile.codec import RangeKind, decode
from reconcile.ids import LOWEST, SyncId
from reconcile.session import ReconcileSession as Session
from reconcile.session import Role, SessionConfig
from sim.messages import CANDIDATES, forged_halves
from tests.support.naive_view import NaiveView
from tests.support.reconcile_pair import (
    CLUSTER,
    EVERYTHING,
    SHARDS,
    Node,
    assert_exact,
    join,
    responder,
)

NO_HASH = bytes(32)

ids_of = st.lists(st.integers(0, 999), unique=True, max_size=60).map(
    lambda numbers: [(number % 61, sha256(b"%d" % number).digest()) for number in numbers]
)


def begun(ids: list[SyncId], cuts: list[int], window: tuple[SyncId, SyncId] = EVERYTHING) -> Node:
    """Return the session of an initiator that divides its window."""
    config = SessionConfig(
        cluster=CLUSTER, shards=SHARDS, window=window, cuts=tuple((at, NO_HASH) for at in cuts)
    )
    return Node(Session(Role.INITIATOR, config), NaiveView(ids))


@given(ids_of, ids_of, ids_of, st.lists(st.integers(0, 70), unique=True, max_size=5).map(sorted))
def test_a_divided_window_is_reconciled_exactly(
    shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId], cuts: list[int]
) -> None:
    one, other = {*shared, *ours}, {*shared, *theirs}
    assert_exact(join(begun(sorted(one), cuts), responder(NaiveView(sorted(other)))), one, other)


def test_only_cuts_inside_the_window_divide_it() -> None:
    node = begun([(15, b"\1" * 32)], [5, 10, 12, 20, 25], ((10, NO_HASH), (20, NO_HASH)))
    join(node, responder(NaiveView([])))
    ranges = decode(node.payloads[0]).ranges
    kinds = ranges.kinds.tolist()
    assert kinds == [RangeKind.SKIP, RangeKind.FINGERPRINT, RangeKind.FINGERPRINT]
    assert ranges.upper.pairs() == [(10, NO_HASH), (12, NO_HASH), (20, NO_HASH)]
    assert node.counts[0] == 1


def test_a_cut_through_forged_sets_shows_them() -> None:
    generator = random.Random(1)
    hashes = [generator.randbytes(32) for _ in range(CANDIDATES)]
    one, other = (
        [(1_000 + place, hashes[place]) for place in half] for half in forged_halves(hashes)
    )
    whole, _ = join(begun(one, []), responder(NaiveView(other)))
    assert not len(whole.to_send) + len(whole.to_receive)
    for cut in (1_010, 1_100, 1_200):
        results = join(begun(one, [cut]), responder(NaiveView(other)))
        assert_exact(results, one, other)
    beside, _ = join(begun(one, [999]), responder(NaiveView(other)))
    assert not len(beside.to_send)
    assert beside.window[0] == LOWEST
