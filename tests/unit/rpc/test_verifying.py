"""Reconciliations whose end is checked by keyed digests: both sides, joined in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from reconcile.ids import LOWEST, SyncId
from reconcile.limits import SessionLimits
from sim.messages import CANDIDATES, forged_halves
from store.domain.ports import PeerFailed
from store.sync.errors import ProtocolBroken
from store.sync.frames import Extension, Reconcile, Steps
from store.sync.session import agreement, locating
from store.sync.session.agreement import HOUR_NS, new_pairs
from tests.support.verifying_pair import Side, reconcile

NO_HASH = bytes(32)
MINUTE_NS = 60 * 10**9
WINDOW = (LOWEST, (10_000 * HOUR_NS, NO_HASH))


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
    await reconcile(one, other, WINDOW)
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


FLOOR = (90 * MINUTE_NS, NO_HASH)
FLOORS = [
    ((FLOOR, LOWEST), 2 * HOUR_NS),
    ((LOWEST, FLOOR), 2 * HOUR_NS),
    ((FLOOR, (3 * HOUR_NS + 1, NO_HASH)), 4 * HOUR_NS),
    ((None, LOWEST), None),
    ((LOWEST, None), None),
    ((LOWEST, LOWEST), 0),
]


@pytest.mark.parametrize(("memory", "keyed_from_ns"), FLOORS)
@pytest.mark.parametrize("sums", [(True, True), (True, False), (False, True)])
async def test_what_is_not_in_memory_is_proven_by_lattice_sums(
    memory: tuple[SyncId | None, SyncId | None],
    keyed_from_ns: int | None,
    sums: tuple[bool, bool],
) -> None:
    ids = some(300, 1)
    one = Side(ids | some(3, 2), memory_start=memory[0], sums=sums[0])
    other = Side(ids | some(4, 3), memory_start=memory[1], sums=sums[1])
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == (0 if all(sums) else keyed_from_ns)


async def test_digests_begin_at_the_later_horizon() -> None:
    ids, horizon = some(300, 1), (100 * MINUTE_NS + 7, NO_HASH)
    for sides in (
        (Side(set(ids), horizon=horizon), Side(set(ids))),
        (Side(set(ids)), Side({each for each in ids if each >= horizon}, horizon=horizon)),
    ):
        one, other = await met(*sides)
        assert one.error is other.error is None
        assert proven_from(one) == proven_from(other) == horizon[0]


@pytest.mark.parametrize(
    ("memory", "count"), [((2 * HOUR_NS, NO_HASH), 0), ((2 * HOUR_NS, NO_HASH), 900), (None, 300)]
)
@pytest.mark.parametrize("differences", [(0, 0), (5, 0), (0, 5), (40, 60)])
@pytest.mark.parametrize("above", [False, True])
async def test_forged_sets_below_what_is_in_memory_are_found(
    memory: SyncId | None, count: int, differences: tuple[int, int], *, above: bool
) -> None:
    shared = some(count, 1)
    one = Side(shared | forged()[0] | some(differences[0], 2), memory_start=memory)
    other = Side(shared | forged()[1] | some(differences[1], 4), memory_start=memory)
    if above:
        for side, half in zip((one, other), forged(7, 5 * HOUR_NS), strict=True):
            side.ids |= half
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    if differences == (0, 0):
        assert hidden(one) == hidden(other) == one.ids ^ other.ids


async def test_lattice_digests_are_about_eleven_years_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agreement, "MAX_LATTICE_SPAN_NS", 3 * HOUR_NS)
    floor = (5 * HOUR_NS, NO_HASH)
    one, other = await met(
        Side({*forged()[0], *forged(7, 3 * HOUR_NS)[0]}, memory_start=floor),
        Side({*forged()[1], *forged(7, 3 * HOUR_NS)[1]}, memory_start=floor),
    )
    assert proven_from(one) == proven_from(other) == 2 * HOUR_NS
    assert hidden(one) == hidden(other) == forged(7, 3 * HOUR_NS)[0] | forged(7, 3 * HOUR_NS)[1]


async def test_what_neither_memory_nor_sums_show_is_not_called_proven() -> None:
    floor = (2 * HOUR_NS, NO_HASH)
    one, other = await met(
        Side(set(forged()[0]), memory_start=floor, sums=False),
        Side(set(forged()[1]), memory_start=floor),
    )
    assert one.result is not None
    assert not len(one.result.to_send)
    assert proven_from(one) == proven_from(other) == floor[0]


async def test_hours_that_are_too_full_for_one_search_are_left_to_the_next_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locating, "MAX_SEARCHED_IDS", 100)
    monkeypatch.setattr(locating, "MAX_LATTICE_DAYS", 2)
    at = [hour * HOUR_NS for hour in (1, 3, 30, 80, 130, 131)]
    halves = [forged(seed, time_ns) for seed, time_ns in enumerate(at)]
    one = Side({each for half in halves for each in half[0]}, memory_start=(200 * HOUR_NS, NO_HASH))
    other = Side({each for half in halves for each in half[1]}, memory_start=LOWEST)
    found = []
    while one.ids != other.ids:
        await met(one, other)
        assert one.result is not None
        assert one.error is other.error is None
        assert hidden(one) == hidden(other) == set(one.result.to_send) | set(one.result.to_receive)
        found.append({time_ns // HOUR_NS for time_ns, _ in hidden(one)})
        rest = len(found) < len(halves)
        assert one.result.truncated == rest
        assert proven_from(one) == proven_from(other) == (None if rest else 0)
        one.ids |= hidden(one)
        other.ids |= hidden(other)
    assert found == [{131}, {130}, {80}, {30}, {3}, {1}]


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
    ("a time beyond", lambda told: replace(told, lattice_from_ns=2**63)),
    ("a name of a key of 7 bytes", lambda told: replace(told, remembered=bytes(7))),
    ("a digest before its last", lambda told: replace(told, digest=bytes(16))),
    ("hashes nobody asked for", lambda told: replace(told, hashes=bytes(32))),
]


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(("sentence", "change"), OFFERS)
async def test_an_offer_that_is_none(
    sentence: str, change: Callable[[Extension], Extension], liar: int
) -> None:
    sides = [Side(some(50, seed)) for seed in (1, 2)]
    sides[liar].tamper = lying(change, 0)
    await met(*sides)
    error = sides[1 - liar].error
    assert isinstance(error, ProtocolBroken)
    assert sentence in str(error)


LAST = [
    ("a nonce after its first frame", lambda told: replace(told, nonce=bytes(16))),
    ("a nonce after its first frame", lambda told: replace(told, remembered=bytes(8))),
    ("a digest of 15 bytes", lambda told: replace(told, lattice_digest=bytes(15))),
    ("tells lattice steps although", lambda told: replace(told, steps=Steps())),
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


STEPS: list[tuple[int, str, Callable[[Steps], Steps | None]]] = [
    (1, "lattice steps", lambda told: replace(told, digests=told.digests[1:])),
    (1, "lattice steps", lambda told: replace(told, digests=told.digests + bytes(8))),
    (1, "lattice steps", lambda told: replace(told, hours=(1,))),
    (1, "lattice steps", lambda _: None),
    (2, "lattice steps", lambda told: replace(told, hours=told.hours[::-1])),
    (2, "lattice steps", lambda told: replace(told, hours=(*told.hours[:-1], 2**32 - 1))),
    (2, "lattice steps", lambda told: replace(told, hours=told.hours[:1] * len(told.hours))),
    (2, "lattice steps", lambda told: replace(told, digests=told.digests[:-1])),
    (2, "lattice steps", lambda told: replace(told, hours=(), digests=b"")),
    (2, "lattice steps", lambda _: None),
    (2, "names more than", lambda told: replace(told, hours=tuple(range(1_537)))),
    (3, "lattice steps", lambda told: replace(told, hours=(40, *told.hours))),
    (3, "lattice steps", lambda told: replace(told, digests=bytes(8))),
    (3, "lattice steps", lambda _: None),
]


@pytest.mark.parametrize(("nth", "sentence", "change"), STEPS)
async def test_lattice_steps_that_are_none(
    nth: int, sentence: str, change: Callable[[Steps], Steps | None]
) -> None:
    """The responder has the last word of the reconciliation, so the initiator tells the days."""
    count = 0

    def tamper(frame: Reconcile) -> Reconcile:
        nonlocal count
        told = frame.extension
        if told is None or told.steps is None:
            return frame
        count += 1
        wanted = count == (2 if nth == 3 else 1)
        steps = change(told.steps) if wanted else told.steps
        return replace(frame, extension=replace(told, steps=steps))

    floor = (3 * HOUR_NS, NO_HASH)
    sides = [Side(set(half), memory_start=floor) for half in forged()]
    teller, victim = sides if nth != 2 else sides[::-1]
    teller.tamper = tamper
    await met(sides[0], sides[1])
    assert isinstance(victim.error, PeerFailed)
    assert sentence in str(victim.error)


async def test_lattice_sums_that_are_made_up_end_the_session() -> None:
    floor = (3 * HOUR_NS, NO_HASH)
    ids = some(50, 1)
    for missummed in ((0, 1), (1, 0)):
        one, other = await met(
            *(Side(set(ids), memory_start=floor, missummed=number) for number in missummed)
        )
        for each in (one, other):
            assert "digest is not that" in str(each.error)
            assert proven_from(each) is None


async def test_the_key_of_sums_is_that_of_the_first_session() -> None:
    one, other = Side(some(500, 1) | some(9, 2)), Side(some(500, 1))
    names = []
    for _ in range(3):
        one, other = Side(one.ids, pairs=one.pairs), Side(other.ids, pairs=other.pairs)
        exact(*await met(one, other))
        assert proven_from(one) == proven_from(other) == 0
        mine, theirs = one.pairs.get("r"), other.pairs.get("i")
        assert mine is not None
        assert theirs is not None
        assert mine.name == theirs.name
        assert mine is not theirs
        names.append(mine.name)
    assert len(set(names)) == 1
    for forgetful in (0, 1):
        pairs = [
            new_pairs() if number == forgetful else each.pairs
            for number, each in enumerate((one, other))
        ]
        one, other = Side(one.ids, pairs=pairs[0]), Side(other.ids, pairs=pairs[1])
        exact(*await met(one, other))
        mine, theirs = one.pairs.get("r"), other.pairs.get("i")
        assert mine is not None
        assert theirs is not None
        assert mine.name == theirs.name


async def test_forged_sets_are_found_with_a_key_that_is_remembered() -> None:
    shared = some(300, 1)
    one, other = await met(Side(shared), Side(shared))
    one = Side(shared | forged()[0], pairs=one.pairs)
    other = Side(shared | forged()[1], pairs=other.pairs)
    exact(*await met(one, other))
    assert hidden(one) == hidden(other) == forged()[0] | forged()[1]


async def test_an_offer_of_another_version_is_none() -> None:
    def tamper(frame: Reconcile) -> Reconcile:
        told = frame.extension
        if told is None:
            return frame
        return replace(frame, extension=replace(told, version=told.version + 1))

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
