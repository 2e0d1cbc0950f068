"""Sessions with a peer that has only the specification, on either side."""

from __future__ import annotations

import random

import pytest

from reconcile.ids import LOWEST, SyncId
from reconcile.session import PayloadFrame as Received
from reconcile.session import Result
from tests.support.naive_view import NaiveView
from tests.support.reconcile_pair import EVERYTHING, Node, initiator, responder, some_ids, two_sets
from tests.support.spec_peer import ITEM_SET, SKIP, Id, Range, SpecPeer


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
    for side in ("begins", "is asked"):
        peer = SpecPeer(theirs)
        if side == "begins":
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
