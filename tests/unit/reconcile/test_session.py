"""Sessions of any two sets, joined in memory: both sides find exactly what each lacks."""

from __future__ import annotations

import random
from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.algorithm import turn
from reconcile.algorithm.plan import Tuning
from reconcile.codec import RangeKind, decode, expressible
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.session import Bounds
from reconcile.session import PayloadFrame as Received
from reconcile.view import View
from sim.messages import CANDIDATES, forged_halves
from tests.support.naive_view import NaiveView
from tests.support.reconcile_pair import (
    EVERYTHING,
    Node,
    assert_exact,
    initiator,
    join,
    memory_view,
    reconcile,
    responder,
    some_ids,
    two_sets,
)

HOUR_NS = 3_600_000_000_000

Sets = tuple[list[SyncId], list[SyncId]]


def different(seed: int, *, count: int, differing: int, moments: int) -> Sets:
    """Return two sets with a common part; few moments make many ties."""
    rng = random.Random(seed)
    ids = some_ids(rng, count + differing, moments)
    ours = rng.randrange(differing + 1)
    return two_sets(rng, ids[differing:], ids[:ours], ids[ours:differing])


@pytest.mark.parametrize("view", [NaiveView, memory_view])
@pytest.mark.parametrize(
    ("moments", "count", "differing"),
    [  # every pair of values
        ((1, 2, 60, 10**6)[(row + column) % 4], count, differing)
        for row, count in enumerate((0, 1, 40, 1000, 4000))
        for column, differing in enumerate((0, 1, 7, 150))
    ],
)
def test_exact_differences(
    view: Callable[[list[SyncId]], View], moments: int, count: int, differing: int
) -> None:
    seed = hash((moments, count, differing))
    ours, theirs = different(seed, count=count, differing=differing, moments=moments)
    results = reconcile(ours, theirs, view)
    assert_exact(results, ours, theirs)
    assert results[0].own_count == results[1].peer_count == len(ours)
    assert results[1].own_count == results[0].peer_count == len(theirs)
    assert not any(each.truncated for each in results)
    assert results[0].rounds <= 5


def tricky_id(timestamp: int, shared: int, head: list[int]) -> SyncId:
    """Return an ID whose hash begins like others, with zeros and 0xff where it hurts.

    It ends like no other, since XOR fingerprints tell only such hashes apart.
    """
    begin = (b"\xab" * shared + bytes(head)).ljust(20, b"\0")[:20]
    return timestamp, begin + sha256(begin + timestamp.to_bytes(8, "big")).digest()[:12]


def tricky_ids() -> st.SearchStrategy[list[SyncId]]:
    times = st.sampled_from([1, 2, 3, 1000, 2**62, 2**63 - 2])
    heads = st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]), max_size=6)
    return st.lists(st.builds(tricky_id, times, st.integers(0, 20), heads), max_size=60)


@given(tricky_ids(), tricky_ids(), tricky_ids())
@settings(max_examples=150, deadline=None)
def test_exact_differences_of_hashes_that_look_alike(
    shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId]
) -> None:
    first, second = shared + ours, shared + theirs
    tuning = Tuning(first_parts=3, min_parts=1, gauges=1)
    results = join(
        initiator(NaiveView(first), tuning=tuning), responder(NaiveView(second), tuning=tuning)
    )
    assert_exact(results, first, second)


@pytest.mark.parametrize(
    ("lacking", "moments", "most_bytes", "most_rounds"),
    [
        ((0, 1), HOUR_NS, 2_700, 2),
        ((10, 10), HOUR_NS, 8_200, 3),
        ((100, 100), HOUR_NS, 52_000, 4),
        ((100, 100), 3_600, 51_500, 4),
        ((3_000, 3_000), HOUR_NS, 760_000, 4),
        ("minute", HOUR_NS, 17_000, 4),
        ("gap", HOUR_NS, 42_500, 3),
    ],
)
def test_sessions_take_few_bytes_and_rounds(
    lacking: str | tuple[int, int], moments: int, most_bytes: int, most_rounds: int
) -> None:
    rng = random.Random(3)
    ids = sorted(some_ids(rng, 20_000, moments))
    if isinstance(lacking, tuple):
        without = [set(rng.sample(ids, count)) for count in lacking]
    else:
        without = [set(ids[9_000:10_000]), set()]
        if lacking == "minute":
            without = [set(ids[9_000:9_300:2]), set(ids[9_001:9_300:2])]
    ours, theirs = ([an_id for an_id in ids if an_id not in some] for some in without)
    results = reconcile(ours, theirs, memory_view)
    assert_exact(results, ours, theirs)
    assert results[0].bytes_sent + results[0].bytes_received < most_bytes
    assert results[0].rounds <= most_rounds


@pytest.mark.parametrize("seed", range(30))
def test_only_the_window_above_both_horizons_is_reconciled(seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = different(seed, count=500, differing=100, moments=rng.choice([1, 5, 10**6]))
    every = sorted(set(ours) | set(theirs))
    lower, upper = EVERYTHING
    if seed % 3:
        lower, upper = sorted(rng.sample([*every, *EVERYTHING], 2))
    if rng.random() < 0.5:
        lower, upper = (lower[0], bytes(32)), (upper[0] + (upper[0] == lower[0]), bytes(32))
    horizons = [LOWEST, LOWEST]
    if seed % 3 != 1:
        below = [an_id for an_id in every if an_id < upper] or [LOWEST]
        horizons = [rng.choice([LOWEST, rng.choice(below)]) for _ in range(2)]
    first = initiator(NaiveView(ours), window=(lower, upper), horizon=horizons[0])
    second = responder(NaiveView(theirs), horizon=horizons[1])
    results = join(first, second)
    start = max(lower, *horizons)
    inside = [[i for i in ids if start <= i < upper] for ids in (ours, theirs)]
    assert_exact(results, *inside)
    assert results[1].own_count == len(inside[1])
    if horizons == [LOWEST, LOWEST]:
        assert results[0].window == results[1].window == (lower, upper)
        assert results[0].own_count == len(inside[0])


def test_a_window_below_the_horizon_ends_at_once() -> None:
    window = ((5, bytes(32)), (9, bytes(32)))
    first = initiator(NaiveView([(6, bytes(32))]), window=window, horizon=(9, bytes(32)))
    assert first.begin() is None
    assert first.result.rounds == 0
    assert first.result.to_send == SyncIds.empty()


def test_a_crowd_around_deduced_ids_is_not_read_beyond_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(6)
    shared, mine = some_ids(rng, 3_000, 2), some_ids(rng, 12, 10**6)
    ours = sorted({*shared, *((shared[at][0], hash_) for at, (_, hash_) in enumerate(mine))})
    sizes: list[int] = []
    for most in (turn.MAX_CROWD, 40):
        monkeypatch.setattr(turn, "MAX_CROWD", most)
        results = reconcile(ours, shared, memory_view)
        assert_exact(results, ours, shared)
        sizes.append(results[0].bytes_sent)
    assert sizes[0] < sizes[1]


def test_equal_sets_need_one_payload_and_an_empty_one() -> None:
    ids = some_ids(random.Random(7), 5_000, 10**6)
    first, second = initiator(NaiveView(ids)), responder(NaiveView(ids))
    join(first, second)
    assert [len(payload) for payload in first.payloads] == [4 + 9 + 1 + 32]
    assert second.payloads == [b""]
    assert first.counts == second.counts == [5_000]


def test_a_count_is_sent_once_each_way() -> None:
    ours, theirs = different(9, count=3000, differing=200, moments=10**6)
    first, second = initiator(NaiveView(ours)), responder(NaiveView(theirs))
    join(first, second)
    assert first.counts == [len(ours), *[None] * (len(first.payloads) - 1)]
    assert second.counts == [len(theirs), *[None] * (len(second.payloads) - 1)]


FIRST = "01020003" + "ffffffffffffffff7f" + "01" + "0f" + "00" * 30 + "f0"
ONLY_NOW = "01020003" + "8094ebdc03" + "00" + "80a8d6b907" + "01" + "0f" + "00" * 31


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (EVERYTHING, FIRST),
        (((10**9, bytes(32)), (3 * 10**9, bytes(32))), ONLY_NOW),
    ],
)
def test_the_first_payload_byte_for_byte(window: tuple[SyncId, SyncId], expected: str) -> None:
    stored = [(10**9 + 1, b"\x0f" + bytes(31)), (3 * 10**9, bytes(31) + b"\xf0")]
    first = initiator(NaiveView(stored), window=window)
    sent = first.begin()
    assert sent is not None
    assert sent.payload.hex() == expected


def test_the_first_answer_byte_for_byte() -> None:
    # Few IDs that differ: all of them as a set, over just the window.
    view = NaiveView([(7, b"\x01" * 32), (9, b"\x02" * 32)])
    fingerprint = "00" * 32
    asked = "01020003" + "05" + "00" + "05" + "01" + fingerprint
    sent = responder(view).give(Received(bytes.fromhex(asked)))
    assert sent is not None
    items = "07" + "01" * 32 + "02" + "02" * 32
    assert sent.payload.hex() == "01020003" + "05" + "00" + "05" + "02" + "02" + items + "00"
    assert sent.count == 2


def test_a_window_belongs_to_the_initiator_alone() -> None:
    with pytest.raises(ValueError, match="window"):
        initiator(NaiveView([]), window=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window"):
        responder(NaiveView([]), window=EVERYTHING)


@pytest.mark.parametrize("moments", [1, 10, 10**6])
def test_payloads_keep_the_rules_of_the_encoding(moments: int) -> None:
    # Skips that can be one are one, and no payload ends with one or holds nothing else.
    ours, theirs = different(10, count=4000, differing=200, moments=moments)
    first, second = initiator(NaiveView(ours)), responder(NaiveView(theirs))
    join(first, second)
    for payload in filter(None, first.payloads + second.payloads):
        ranges = decode(payload).ranges
        ranges.check()
        skips = ranges.kinds == RangeKind.SKIP
        assert not skips[-1]
        pairs = np.flatnonzero(skips[1:] & skips[:-1])
        assert not expressible(ranges.lower[pairs], ranges.upper[pairs + 1]).any()


# A first payload that divides the window: sets of one XOR are seen in parts

ids_of = st.lists(st.integers(0, 999), unique=True, max_size=60).map(
    lambda numbers: [(number % 61, sha256(b"%d" % number).digest()) for number in numbers]
)


def begun(ids: list[SyncId], cuts: list[int], window: Bounds = EVERYTHING) -> Node:
    """Return the session of an initiator that divides its window."""
    return initiator(NaiveView(ids), window=window, cuts=tuple((at, bytes(32)) for at in cuts))


@given(ids_of, ids_of, ids_of, st.lists(st.integers(0, 70), unique=True, max_size=5).map(sorted))
def test_a_divided_window_is_reconciled_exactly(
    shared: list[SyncId], ours: list[SyncId], theirs: list[SyncId], cuts: list[int]
) -> None:
    one, other = {*shared, *ours}, {*shared, *theirs}
    assert_exact(join(begun(sorted(one), cuts), responder(NaiveView(sorted(other)))), one, other)


def test_only_cuts_inside_the_window_divide_it() -> None:
    node = begun([(15, b"\1" * 32)], [5, 10, 12, 20, 25], ((10, bytes(32)), (20, bytes(32))))
    join(node, responder(NaiveView([])))
    ranges = decode(node.payloads[0]).ranges
    kinds = ranges.kinds.tolist()
    assert kinds == [RangeKind.SKIP, RangeKind.FINGERPRINT, RangeKind.FINGERPRINT]
    assert ranges.upper.pairs() == [(10, bytes(32)), (12, bytes(32)), (20, bytes(32))]
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
