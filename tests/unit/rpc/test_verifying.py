"""Reconciliations whose end is checked by keyed digests: both sides, joined in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from reconcile.ids import LOWEST, SyncId
from reconcile.limits import SessionLimits
from sim.forgery import CANDIDATES, forged_halves
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile
from store.sync.session.agreement import HOUR_NS
from tests.support.verifying_pair import EVERYTHING, Side, reconcile

NO_HASH = bytes(32)
MINUTE_NS = 60 * 10**9


def some(count: int, seed: int, start_ns: int = 0, step_ns: int = MINUTE_NS) -> set[SyncId]:
    generator = random.Random(seed)
    return {
        (start_ns + generator.randrange(count) * step_ns, generator.randbytes(32))
        for _ in range(count)
    }


@cache
def forged(seed: int = 3, at_ns: int = 50 * MINUTE_NS) -> tuple[frozenset[SyncId], ...]:
    """Two sets that have one fingerprint and one count."""
    generator = random.Random(seed)
    hashes = [generator.randbytes(32) for _ in range(CANDIDATES)]
    halves = forged_halves(hashes)
    return tuple(frozenset((at_ns + place, hashes[place]) for place in half) for half in halves)


async def met(one: Side, other: Side) -> tuple[Side, Side]:
    """Reconcile, and demand exact differences of sides that are honest and know the extension."""
    await reconcile(one, other, EVERYTHING)
    return one, other


def exact(one: Side, other: Side) -> None:
    for own, peer in ((one, other), (other, one)):
        assert own.error is None
        assert own.result is not None
        assert set(own.result.to_send) == own.ids - peer.ids
        assert set(own.result.to_receive) == peer.ids - own.ids


def proven_from(side: Side) -> int | None:
    assert side.work is not None
    return side.work.proof.keyed_from_ns


def hidden(side: Side) -> set[SyncId]:
    assert side.work is not None
    return set(side.work.proof.hidden)


@pytest.mark.parametrize("count", [0, 1, 30, 3_000])
@pytest.mark.parametrize("differences", [(0, 0), (1, 0), (0, 1), (7, 5), (400, 300)])
async def test_both_sides_conclude_by_key(count: int, differences: tuple[int, int]) -> None:
    shared = some(count, 1)
    one = Side(shared | some(differences[0], 2))
    other = Side(shared | some(differences[1], 3))
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    assert not hidden(one)
    assert not hidden(other)


@pytest.mark.parametrize("shared", [0, 10, 2_000])
@pytest.mark.parametrize("differences", [(0, 0), (1, 0), (0, 1), (60, 60)])
async def test_forged_sets_are_found(shared: int, differences: tuple[int, int]) -> None:
    base = some(shared, 1)
    one = Side(base | forged()[0] | some(differences[0], 2, start_ns=2 * HOUR_NS))
    other = Side(base | forged()[1] | some(differences[1], 4, start_ns=2 * HOUR_NS))
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    if differences == (0, 0):
        assert hidden(one) == hidden(other) == forged()[0] | forged()[1]


async def test_without_the_extension_forged_sets_look_equal() -> None:
    for keyed in ((False, False), (True, False), (False, True)):
        one = Side(set(forged()[0]), keyed=keyed[0])
        other = Side(set(forged()[1]), keyed=keyed[1])
        await met(one, other)
        assert one.result is not None
        assert other.result is not None
        assert not len(one.result.to_send) + len(other.result.to_send)
        assert proven_from(one) is proven_from(other) is None


@pytest.mark.parametrize("keyed", [(True, False), (False, True), (False, False)])
async def test_a_side_without_the_extension_is_met_as_ever(keyed: tuple[bool, bool]) -> None:
    one = Side(some(500, 1) | some(9, 2), keyed=keyed[0])
    other = Side(some(500, 1) | some(8, 3), keyed=keyed[1])
    exact(*await met(one, other))
    assert proven_from(one) is proven_from(other) is None
    told = [frame.extension for side in (one, other) for frame in side.sent if frame.extension]
    assert len(told) == keyed[0], "a responder offers nothing to who does not"


async def test_an_agreement_costs_no_payload() -> None:
    ids = some(400, 1)
    frames = []
    for keyed in (False, True):
        one, other = await met(Side(set(ids), keyed=keyed), Side(set(ids), keyed=keyed))
        frames.append([frame.payload for side in (one, other) for frame in side.sent])
    assert frames[1] == [*frames[0][:1], b"", *frames[0][1:]]


async def test_what_is_not_in_memory_is_not_proven() -> None:
    ids = some(300, 1)
    floor = (90 * MINUTE_NS, NO_HASH)
    for memory, expected in (
        ((floor, LOWEST), 2 * HOUR_NS),
        ((LOWEST, floor), 2 * HOUR_NS),
        ((floor, (3 * HOUR_NS + 1, NO_HASH)), 4 * HOUR_NS),
        ((None, LOWEST), None),
        ((LOWEST, None), None),
        ((LOWEST, LOWEST), 0),
    ):
        one = Side(ids | some(3, 2), memory_start=memory[0])
        other = Side(ids | some(4, 3), memory_start=memory[1])
        exact(*await met(one, other))
        assert proven_from(one) == proven_from(other) == expected


async def test_digests_begin_at_the_later_horizon() -> None:
    ids, horizon = some(300, 1), (100 * MINUTE_NS + 7, NO_HASH)
    for sides in (
        (Side(set(ids), horizon=horizon), Side(set(ids))),
        (Side(set(ids)), Side({each for each in ids if each >= horizon}, horizon=horizon)),
    ):
        one, other = await met(*sides)
        assert one.error is other.error is None
        assert proven_from(one) == proven_from(other) == horizon[0]


async def test_forged_sets_below_what_is_in_memory_stay_hidden_and_are_not_called_proven() -> None:
    floor = (2 * HOUR_NS, NO_HASH)
    one, other = await met(
        Side(set(forged()[0]), memory_start=floor), Side(set(forged()[1]), memory_start=floor)
    )
    assert one.result is not None
    assert not len(one.result.to_send)
    assert proven_from(one) == proven_from(other) == floor[0]


async def test_more_differences_than_a_session_reports_prove_nothing() -> None:
    limits = SessionLimits(max_differences=40)
    one = Side(set(forged()[0]), limits=limits)
    other = Side(set(forged()[1]), limits=limits)
    await met(one, other)
    for own, peer in ((one, other), (other, one)):
        assert own.error is None
        assert own.result is not None
        assert own.result.truncated
        assert set(own.result.to_send) <= own.ids - peer.ids
        assert set(own.result.to_receive) <= peer.ids - own.ids
        assert proven_from(own) is None
        assert hidden(own)


def lying(change: Callable[[Extension], Extension], nth: int) -> Callable[[Reconcile], Reconcile]:
    """Changes the extension of the frame with this number; 0 is the first."""
    count = 0

    def tamper(frame: Reconcile) -> Reconcile:
        nonlocal count
        count += 1
        if count - 1 != nth:
            return frame
        return replace(frame, extension=change(frame.extension or Extension()))

    return tamper


OFFERS = [
    ("a nonce of 15 bytes", lambda told: replace(told, nonce=bytes(15))),
    ("a nonce of 0 bytes", lambda told: replace(told, nonce=b"")),
    ("a nonce of 4096 bytes", lambda told: replace(told, nonce=bytes(4096))),
    ("a time beyond", lambda told: replace(told, keyed_from_ns=2**64 - 1)),
    ("a digest before its last", lambda told: replace(told, digest=bytes(16))),
    ("hashes nobody asked for", lambda told: replace(told, hashes=bytes(32))),
]


@pytest.mark.parametrize(("sentence", "change"), OFFERS)
async def test_an_initiators_offer_that_is_none(
    sentence: str, change: Callable[[Extension], Extension]
) -> None:
    one = Side(some(50, 1), tamper=lying(change, 0))
    other = Side(some(50, 2))
    await met(one, other)
    assert isinstance(other.error, ProtocolBroken)
    assert sentence in str(other.error)


@pytest.mark.parametrize(("sentence", "change"), OFFERS)
async def test_a_responders_offer_that_is_none(
    sentence: str, change: Callable[[Extension], Extension]
) -> None:
    one = Side(some(50, 1))
    other = Side(some(50, 2), tamper=lying(change, 0))
    await met(one, other)
    assert isinstance(one.error, ProtocolBroken)
    assert sentence in str(one.error)


LAST = [
    ("a nonce after its first frame", lambda told: replace(told, nonce=bytes(16))),
    ("a digest of 15 bytes", lambda told: replace(told, digest=bytes(15))),
    ("a digest of 17 bytes", lambda told: replace(told, digest=bytes(17))),
    ("hashes nobody asked for", lambda told: replace(told, hashes=bytes(32))),
]


@pytest.mark.parametrize(("sentence", "change"), LAST)
async def test_an_answer_to_a_digest_that_is_none(
    sentence: str, change: Callable[[Extension], Extension]
) -> None:
    one = Side(some(50, 1), tamper=lying(change, 1))
    other = Side(some(50, 1))
    await met(one, other)
    assert isinstance(other.error, ProtocolBroken)
    assert sentence in str(other.error)


async def test_a_digest_that_is_not_that_of_its_messages() -> None:
    ids = some(50, 1)
    for miscounted in ((0, 1), (1, 0)):
        one, other = await met(*(Side(set(ids), miscounted=number) for number in miscounted))
        for each in (one, other):
            assert "digest is not that" in str(each.error)
            assert proven_from(each) is None


async def test_an_answer_whose_digest_is_made_up() -> None:
    ids = some(50, 1)
    liar = lying(lambda told: replace(told, digest=bytes(16)), 1)
    _, other = await met(Side(set(ids), tamper=liar), Side(set(ids)))
    assert "digest is not that" in str(other.error)
    assert proven_from(other) is None


async def test_hashes_that_are_not_those_of_the_aliases() -> None:
    for change in (
        lambda told: replace(told, hashes=told.hashes[32:] + bytes(32)),
        lambda told: replace(told, hashes=told.hashes[32:]),
        lambda told: replace(told, hashes=b""),
        lambda told: replace(told, hashes=told.hashes + told.hashes[:32]),
        lambda told: replace(told, hashes=told.hashes[1:]),
        lambda told: replace(told, hashes=bytes(32 * 1_001)),
    ):

        def tamper(
            frame: Reconcile, change: Callable[[Extension], Extension] = change
        ) -> Reconcile:
            if frame.extension is None or not frame.extension.hashes:
                return frame
            return replace(frame, extension=change(frame.extension))

        limits = SessionLimits(max_differences=1_000)
        _, other = await met(
            Side(set(forged()[0]), tamper=tamper), Side(set(forged()[1]), limits=limits)
        )
        assert isinstance(other.error, ProtocolBroken)
        assert "hashes" in str(other.error)
        assert proven_from(other) is None


async def test_an_offer_of_another_version_is_none() -> None:
    def tamper(frame: Reconcile) -> Reconcile:
        told = frame.extension
        return frame if told is None else replace(frame, extension=replace(told, version=2))

    one = Side(some(50, 1) | some(3, 2), tamper=tamper)
    other = Side(some(50, 1))
    exact(*await met(one, other))
    assert proven_from(one) is proven_from(other) is None


async def test_a_side_that_is_stripped_of_its_extension_is_met_as_ever() -> None:
    def tamper(frame: Reconcile) -> Reconcile:
        return replace(frame, extension=None)

    for sides in (
        (Side(some(60, 1), tamper=tamper), Side(some(60, 2))),
        (Side(some(60, 1)), Side(some(60, 2), tamper=tamper)),
    ):
        one, other = await met(*sides)
        assert one.result is not None
        assert set(one.result.to_send) == one.ids - other.ids
        assert proven_from(one) is proven_from(other) is None
