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
from reconcile.limits import CodecLimits, SessionLimits
from reconcile.session import PayloadFrame as Received
from reconcile.session import Result
from reconcile.view import View
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
from tests.support.spec_peer import ITEM_SET, SKIP, Id, Range, SpecPeer

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
    assert results[0].own_count == len(ours)
    assert results[1].own_count == len(theirs)
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
    nodes = initiator(memory_view(ours)), responder(memory_view(theirs))
    results = join(*nodes)
    assert_exact(results, ours, theirs)
    assert sum(len(payload) for node in nodes for payload in node.payloads) < most_bytes
    assert results[0].rounds <= most_rounds


@pytest.mark.parametrize("seed", range(30))
def test_only_the_window_above_both_horizons_is_reconciled(seed: int) -> None:
    rng = random.Random(seed)
    ours, theirs = different(seed, count=500, differing=100, moments=rng.choice([1, 5, 10**6]))
    every = sorted(set(ours) | set(theirs))
    lower, upper = EVERYTHING
    if seed % 3:
        lower, upper = sorted(rng.sample([*every, *EVERYTHING], 2))
    lower, upper = (lower[0], bytes(32)), (upper[0] + (upper[0] == lower[0]), bytes(32))
    horizons = [LOWEST, LOWEST]
    if seed % 3 != 1:
        below = [an_id for an_id in every if an_id < upper] or [LOWEST]
        horizons = [rng.choice([LOWEST, rng.choice(below)]) for _ in range(2)]
        horizons[0] = horizons[0][0], bytes(32)
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
        first = initiator(memory_view(ours))
        assert_exact(join(first, responder(memory_view(shared))), ours, shared)
        sizes.append(sum(map(len, first.payloads)))
    assert sizes[0] < sizes[1]


def test_equal_sets_need_one_payload_and_an_empty_one() -> None:
    ids = some_ids(random.Random(7), 5_000, 10**6)
    first, second = initiator(NaiveView(ids)), responder(NaiveView(ids))
    join(first, second)
    assert [len(payload) for payload in first.payloads] == [4 + 9 + 1 + 32]
    assert second.payloads == [b""]


FIRST = "01020003" + "ffffffffffffffff7f" + "01" + "0f" + "00" * 30 + "f0"
ONLY_NOW = "01020003" + "8094ebdc03" + "00" + "80a8d6b907" + "01" + "0f" + "00" * 31


@pytest.mark.parametrize(
    ("window", "expected"),
    [(EVERYTHING, FIRST), (((10**9, bytes(32)), (3 * 10**9, bytes(32))), ONLY_NOW)],
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


# Sessions with a peer that has only the specification, on either side


class SetsOnly(SpecPeer):
    """Answers every difference with whole sets."""

    def split(self, lower: Id, upper: Id) -> list[Range]:
        return [Range(upper, ITEM_SET, items=self.within(lower, upper))]


class ManySkips(SpecPeer):
    """Leaves its Skips as they are, touching, and adds one at the end."""

    def write(self, ranges: list[Range]) -> bytes:
        if not super().write(ranges):
            return b""
        last = [Range(EVERYTHING[1], SKIP)] if ranges[-1].upper < EVERYTHING[1] else []
        return self.encode([*ranges, *last])


def begins(first: Node, peer: SpecPeer) -> Result:
    """Let the node begin a session."""
    frame = first.begin()
    while frame is not None and frame.payload:
        frame = first.give(Received(peer.answer(frame.payload)))
    return first.result


def is_asked(second: Node, peer: SpecPeer, window: tuple[SyncId, SyncId]) -> Result:
    """Let the peer begin a session."""
    payload = peer.first(*window)
    while payload:
        frame = second.give(Received(payload))
        assert frame is not None
        if not frame.payload:
            return second.result
        payload = peer.answer(frame.payload)
    assert second.give(Received(b"")) is None
    return second.result


@pytest.mark.parametrize("kind", [SpecPeer, SetsOnly, ManySkips])
@pytest.mark.parametrize("side", ["begins", "is asked"])
@pytest.mark.parametrize("seed", range(8))
def test_both_sides_know_what_each_lacks(kind: type[SpecPeer], side: str, seed: int) -> None:
    rng = random.Random(seed)
    moments = rng.choice([1, 3, 50, 10**6])
    ids = some_ids(rng, rng.choice([5, 200, 1200]), moments)
    differing = rng.choice([0, 1, 20, 150]) if len(ids) > 150 else 2
    middle = rng.randrange(differing + 1)
    ours, theirs = two_sets(rng, ids[differing:], ids[:middle], ids[middle:differing])
    peer = kind(theirs, small=rng.choice([1, 8, 40]), parts=rng.choice([2, 5, 16]))
    lower = rng.choice([LOWEST, (min(ids)[0], bytes(32)), (sorted(ids)[1][0] + 1, bytes(32))])
    window = (lower, EVERYTHING[1])
    if side == "begins":
        result = begins(initiator(NaiveView(ours), window=window), peer)
    else:
        result = is_asked(responder(NaiveView(ours)), peer, window)
    mine, yours = ({i for i in ids if i >= lower} for ids in (ours, theirs))
    assert result.to_send.pairs() == sorted(mine - yours)
    assert result.to_receive.pairs() == sorted(yours - mine)
    assert peer.to_send == yours - mine
    assert peer.to_receive == mine - yours


@pytest.mark.parametrize("seed", range(6))
def test_a_horizon_that_the_peer_does_not_know_of(seed: int) -> None:
    rng = random.Random(seed)
    ids = some_ids(rng, 800, rng.choice([1, 20, 10**6]))
    ours, theirs = two_sets(rng, ids[100:], ids[:50], ids[50:100])
    horizon = rng.choice(ids)
    for side in ("is asked", "begins"):
        peer = SpecPeer(theirs)
        if side == "begins":
            horizon = horizon[0], bytes(32)
            result = begins(initiator(NaiveView(ours), horizon=horizon), peer)
        else:
            result = is_asked(responder(NaiveView(ours), horizon=horizon), peer, EVERYTHING)
        mine, yours = ({i for i in ids if i >= horizon} for ids in (ours, theirs))
        assert result.to_send.pairs() == sorted(mine - yours)
        assert result.to_receive.pairs() == sorted(yours - mine)
        assert peer.to_send == yours - mine
        assert peer.to_receive == mine - yours


@pytest.mark.parametrize("other", [(2, (0, 3)), (1, (0,)), (1, ()), (1, (0, 3, 4))])
def test_other_shards_are_refused_by_name(other: tuple[int, tuple[int, ...]]) -> None:
    cluster, shards = other
    peer = SpecPeer([(7, bytes(32))], cluster=cluster, shards=shards)
    second = responder(NaiveView([]))
    frame = second.give(Received(peer.first(*EVERYTHING)))
    assert frame is not None
    assert frame.payload == b""
    assert f"cluster {cluster}" in frame.refusal
    assert second.result.refusal == frame.refusal
    first = initiator(NaiveView([]))
    first.begin()
    assert first.give(Received(b"", refusal=frame.refusal)) is None
    assert first.result.refusal == frame.refusal


def test_shards_in_another_order_are_the_same() -> None:
    peer = SpecPeer([(7, b"\x01" * 32)], shards=(3, 0))
    result = begins(initiator(NaiveView([])), peer)
    assert result.refusal == ""
    assert result.to_receive.pairs() == [(7, b"\x01" * 32)]


def test_an_answer_from_other_shards_ends_with_the_reason() -> None:
    peer = SpecPeer([(7, b"\x01" * 32)])
    first = initiator(NaiveView([]))
    frame = first.begin()
    assert frame is not None
    answer = bytearray(peer.answer(frame.payload))
    assert answer[:4] == bytes([1, 2, 0, 3])
    answer[3] = 4
    sent = first.give(Received(bytes(answer)))
    assert sent is not None
    assert (sent.payload, sent.refusal) == (b"", "")
    assert "shards 0, 4" in first.result.refusal


def test_an_empty_payload_that_names_other_shards_is_no_agreement() -> None:
    first = initiator(NaiveView([(7, b"\x01" * 32)]))
    first.begin()
    first.give(Received(bytes([1, 1, 5])))
    assert "shards 5" in first.result.refusal


# A session that comes to its limit on differences: both sides must find the same ones

Ids = list[SyncId]


def reconciled(ours: Ids, theirs: Ids, limits: SessionLimits, tuning: Tuning) -> list[Result]:
    """Return both results of one session."""
    first = initiator(memory_view(ours), limits=limits, tuning=tuning)
    second = responder(memory_view(theirs), limits=limits, tuning=tuning)
    return list(join(first, second))


def assert_alike(results: list[Result], ours: Ids, theirs: Ids, most: int) -> None:
    """Check that one side sends what the other expects, and that both report truncation."""
    first, second = results
    assert first.to_send == second.to_receive
    assert first.to_receive == second.to_send
    assert first.truncated == second.truncated
    only_ours, only_theirs = set(ours) - set(theirs), set(theirs) - set(ours)
    found = len(first.to_send) + len(first.to_receive)
    assert set(first.to_send) <= only_ours
    assert set(first.to_receive) <= only_theirs
    if first.truncated:
        assert found == most
    else:
        assert found == len(only_ours) + len(only_theirs) < most


LIMITS = [
    CodecLimits(),
    CodecLimits(max_payload_bytes=8_192, max_ranges=64, max_elements=16),
    CodecLimits(max_elements=40),
]
TUNINGS = [Tuning(), Tuning(first_parts=2, last_fingerprints=1, min_parts=1, largest_late_set=8)]


@pytest.mark.parametrize("tuning", TUNINGS)
@pytest.mark.parametrize("payload", LIMITS)
@pytest.mark.parametrize("moments", [1, 7, 500])
@pytest.mark.parametrize("most", [1, 5, 50, 300])
def test_both_sides_stop_at_the_same_differences(
    most: int, moments: int, payload: CodecLimits, tuning: Tuning
) -> None:
    rng = random.Random(most * moments)
    limits = SessionLimits(payload=payload, max_differences=most)
    for mine, yours in ((0, 80), (80, 0), (40, 40), (2, 3)):
        shared = some_ids(rng, rng.choice((0, 100)), moments)
        ours = shared + some_ids(rng, mine, moments)
        theirs = shared + some_ids(rng, yours, moments)
        assert_alike(reconciled(ours, theirs, limits, tuning), ours, theirs, most)


@pytest.mark.parametrize("most", [1, 3, 20])
def test_sessions_go_on_until_all_in_one_nanosecond_is_found(most: int) -> None:
    rng = random.Random(most)
    ids = some_ids(rng, 90, 1)
    ours, theirs = set(ids[:60]), set(ids[30:])
    limits = SessionLimits(max_differences=most)
    for _ in range(60 // most + 1):
        results = reconciled(sorted(ours), sorted(theirs), limits, TUNINGS[1])
        assert_alike(results, sorted(ours), sorted(theirs), most)
        theirs |= set(results[0].to_send)
        ours |= set(results[0].to_receive)
    assert ours == theirs == set(ids)
