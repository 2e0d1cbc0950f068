"""Reconciliations whose end is checked by lattice sums: both sides, joined in memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from reconcile.ids import LOWEST, SyncId
from reconcile.limits import SessionLimits
from sim.messages import CANDIDATES, forged_halves
from store.sync.errors import ProtocolBrokenError
from store.sync.frames import FrameExtension, Reconcile, SearchStep
from store.sync.session import sum_search
from store.sync.session.conflicts import ConflictMemory
from store.sync.session.sum_search import HOUR_NS, parts_of
from tests.support.verifying_pair import Side, reconcile

NO_HASH = bytes(32)
MINUTE_NS = 60 * 10**9
WINDOW = (LOWEST, (10_000 * HOUR_NS, NO_HASH))
LONG_WINDOW = (LOWEST, (150_000 * HOUR_NS, NO_HASH))


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
    return side.work.summed_from_ns


def hidden(side: Side) -> set[SyncId]:
    assert side.work is not None
    return set(side.work.hidden)


MODES = {"base": (None, True), "offered": (0, True), "unoffered": (0, False)}
"""By what a session finds differences: `compact_from` of both sides, and whether it is offered."""


def sides(mode: str, first: set[SyncId], second: set[SyncId]) -> tuple[Side, Side]:
    compact_from, offers = MODES[mode]
    return (
        Side(first, compact_from=compact_from, offers=offers),
        Side(second, compact_from=compact_from),
    )


def modes(*met: Side) -> set[bool]:
    return {side.work.is_compact for side in met if side.work is not None}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("count", "differences"),
    [
        (0, (0, 0)),
        (0, (400, 300)),
        (1, (1, 0)),
        (30, (0, 1)),
        (30, (7, 5)),
        (3_000, (0, 0)),
        (3_000, (400, 300)),
    ],
)
async def test_both_sides_find_exactly_the_differences_and_conclude_by_sums(
    mode: str, count: int, differences: tuple[int, int]
) -> None:
    shared = some(count, 1)
    one, other = sides(mode, shared | some(differences[0], 2), shared | some(differences[1], 3))
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    assert not hidden(one)
    assert not hidden(other)
    assert one.result is not None
    assert other.result is not None
    assert one.result.bytes_sent == other.result.bytes_received
    assert one.result.bytes_received == other.result.bytes_sent
    if count and mode != "base" and (mode == "offered" or any(differences)):
        assert modes(one, other) == {True}
        assert one.result.rounds <= 2
        assert one.result.own_count == other.result.peer_count == len(one.ids)
        assert other.result.own_count == one.result.peer_count == len(other.ids)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shared", "differences"), [(0, (0, 0)), (10, (1, 0)), (2_000, (0, 0)), (2_000, (60, 60))]
)
async def test_forged_sets_are_found(mode: str, shared: int, differences: tuple[int, int]) -> None:
    base = some(shared, 1)
    one, other = sides(
        mode,
        base | forged()[0] | some(differences[0], 2, start_ns=2 * HOUR_NS),
        base | forged()[1] | some(differences[1], 4, start_ns=2 * HOUR_NS),
    )
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    if differences == (0, 0):
        assert hidden(one) == hidden(other) == forged()[0] | forged()[1]


async def test_without_the_extension_forged_sets_look_equal() -> None:
    for agrees in ((False, False), (True, False), (False, True)):
        one = Side(set(forged()[0]), agrees=agrees[0])
        other = Side(set(forged()[1]), agrees=agrees[1])
        await met(one, other)
        assert one.result is not None
        assert other.result is not None
        assert not len(one.result.to_send) + len(other.result.to_send)
        assert proven_from(one) is proven_from(other) is None


@pytest.mark.parametrize("agrees", [(True, False), (False, True), (False, False)])
async def test_a_side_without_the_extension_is_met_as_ever(agrees: tuple[bool, bool]) -> None:
    one = Side(some(500, 1) | some(9, 2), agrees=agrees[0])
    other = Side(some(500, 1) | some(8, 3), agrees=agrees[1])
    exact(*await met(one, other))
    assert proven_from(one) is proven_from(other) is None
    told = [frame.extension for side in (one, other) for frame in side.sent if frame.extension]
    assert len(told) == agrees[0], "a responder offers nothing to who does not"


async def test_an_agreement_costs_no_payload() -> None:
    ids = some(400, 1)
    frames = []
    for agrees in (False, True):
        one, other = await met(Side(set(ids), agrees=agrees), Side(set(ids), agrees=agrees))
        frames.append([frame.payload for side in (one, other) for frame in side.sent])
    assert frames[1] == [*frames[0][:1], b"", *frames[0][1:]]


async def test_a_side_without_sums_gives_no_proof() -> None:
    ids = some(300, 1)
    for sums in ((True, False), (False, True), (False, False)):
        one = Side(ids | some(3, 2), sums=sums[0])
        other = Side(ids | some(4, 3), sums=sums[1])
        exact(*await met(one, other))
        assert proven_from(one) is proven_from(other) is None


async def test_sums_begin_at_the_later_horizon() -> None:
    ids, horizon = some(300, 1), (100 * MINUTE_NS + 7, NO_HASH)
    for sides in (
        (Side(set(ids), horizon=horizon), Side(set(ids))),
        (Side(set(ids)), Side({each for each in ids if each >= horizon}, horizon=horizon)),
    ):
        one, other = await met(*sides)
        assert one.error is other.error is None
        assert proven_from(one) == proven_from(other) == horizon[0]


def conflicts(side: Side) -> set[tuple[SyncId, bytes, bytes]]:
    assert side.work is not None
    return {
        ((each.timestamp, each.message_hash), each.own_digest, each.peer_digest)
        for each in side.work.conflicts
    }


@pytest.mark.parametrize(
    ("count", "differences", "compact_from"),
    [
        (0, (0, 0), None),
        (0, (40, 60), 0),
        (1, (1, 0), None),
        (1, (0, 0), 0),
        (3_000, (1, 0), 0),
        (3_000, (40, 60), None),
    ],
)
async def test_one_hash_with_two_contents_is_a_conflict(
    count: int, differences: tuple[int, int], compact_from: int | None
) -> None:
    shared = some(count, 1) | some(3, 9)
    wrong = {each: bytes([place]) * 16 for place, each in enumerate(sorted(some(3, 9)))}
    one = Side(shared | some(differences[0], 2), compact_from=compact_from)
    other = Side(shared | some(differences[1], 4), contents=wrong, compact_from=compact_from)
    exact(*await met(one, other))
    assert conflicts(one) == {(each, each[1][:16], wrong[each]) for each in wrong}
    assert conflicts(other) == {(each, wrong[each], each[1][:16]) for each in wrong}
    assert proven_from(one) == proven_from(other) == 0
    assert not hidden(one)
    assert not hidden(other)


async def test_crowds_that_differ_are_divided_down_to_a_nanosecond() -> None:
    crowd = {(HOUR_NS + at, random.Random(at).randbytes(32)) for at in range(600)}
    one = Side(crowd | set(forged(at_ns=HOUR_NS + 300)[0]))
    other = Side(crowd | set(forged(at_ns=HOUR_NS + 300)[1]))
    exact(*await met(one, other))
    assert proven_from(one) == proven_from(other) == 0
    assert one.work is not None
    assert hidden(one) == one.ids ^ other.ids


async def test_more_than_is_listed_in_one_nanosecond_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sum_search, "MAX_LISTED_IDS", 20)
    one, other = (Side({(5, digest) for _, digest in half}) for half in forged())
    await met(one, other)
    for side in (one, other):
        assert side.error is None
        assert side.result is not None
        assert side.result.truncated
        assert proven_from(side) is None


class Lasting:
    """A pair of sides with many IDs in conflict, which remember what sessions found."""

    def __init__(self) -> None:
        rng = random.Random(7)
        times = range(40 * 24 * HOUR_NS, 131 * 40 * 24 * HOUR_NS, 40 * 24 * HOUR_NS)
        self.ids = {(time_ns, rng.randbytes(32)) for time_ns in times}
        self.contents = dict.fromkeys(self.ids, bytes(16))
        self.memories = [ConflictMemory(), ConflictMemory()]
        self.sessions = 0

    async def meet(self, *more: set[SyncId]) -> tuple[Side, Side]:
        """Run a session in which each side holds some more."""
        one, other = (
            Side(self.ids | more[at] if more else set(self.ids), conflicts=self.memories[at])
            for at in range(2)
        )
        other.contents = dict(self.contents)
        self.sessions += 1
        one.nonce = bytes([self.sessions]) * 16
        await reconcile(one, other, LONG_WINDOW)
        for side in (one, other):
            assert side.error is None
            assert side.work is not None
            side.conflicts.update("peer", 0, side.work.conflicts, side.work.settled)
        return one, other

    async def until_known(self) -> tuple[Side, Side]:
        """Run sessions until one proves that all but the conflicts is equal."""
        for _ in range(30):
            one, other = await self.meet()
            assert proven_from(one) == proven_from(other)
            if proven_from(one) is not None:
                return one, other
        raise AssertionError("no session has found all")


async def test_lasting_conflicts_are_searched_for_once() -> None:
    world = Lasting()
    await world.until_known()
    assert world.sessions > 2, "one session looks into a part of them"
    for side in await world.meet():
        assert {each for each, *_ in conflicts(side)} == world.ids
        assert not hidden(side)
        steps = [each.extension.search for each in side.sent if each.extension]
        assert not any(step for step in steps if step), "no span was searched"
        assert side.result is not None
        assert not side.result.truncated
    one, other = await world.meet({(5, bytes([1]) * 32)}, {(6, bytes([2]) * 32)})
    exact(one, other)
    assert proven_from(one) == proven_from(other) == 0


async def test_a_new_conflict_is_found_among_those_that_last() -> None:
    world = Lasting()
    await world.until_known()
    new = (HOUR_NS, bytes([200]) * 32)
    world.ids.add(new)
    world.contents[new] = bytes([1]) * 16
    for side in await world.meet():
        assert new in {each for each, *_ in conflicts(side)}
    for side in await world.until_known():
        assert {each for each, *_ in conflicts(side)} == world.ids
    world.contents = {new: world.contents[new]}
    await world.meet()
    for side in await world.until_known():
        assert {each for each, *_ in conflicts(side)} == {new}, "the others are resolved"


@pytest.mark.parametrize("forgetful", [0, 1])
async def test_a_side_that_has_forgotten_conflicts_searches_for_them(forgetful: int) -> None:
    world = Lasting()
    await world.until_known()
    world.memories[forgetful] = ConflictMemory()
    for side in await world.meet():
        assert proven_from(side) is None
    for side in await world.until_known():
        assert {each for each, *_ in conflicts(side)} == world.ids


async def test_more_differences_than_a_session_reports_prove_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sum_search, "FEW_LISTED_IDS", 100)
    limits = SessionLimits(max_differences=40)
    spread = [forged(seed, seed * 40 * HOUR_NS) for seed in range(1, 4)]
    one, other = (
        Side({each for halves in spread for each in halves[place]}, limits=limits)
        for place in (0, 1)
    )
    await met(one, other)
    for own, peer in ((one, other), (other, one)):
        assert own.error is None
        assert own.result is not None
        assert own.result.truncated
        assert set(own.result.to_send) <= own.ids - peer.ids
        assert set(own.result.to_receive) <= peer.ids - own.ids
        assert proven_from(own) is None
    assert one.result is not None
    assert other.result is not None
    assert set(one.result.to_send) == set(other.result.to_receive)
    assert set(one.result.to_receive) == set(other.result.to_send)


def lying(
    change: Callable[[FrameExtension], FrameExtension], nth: int
) -> Callable[[Reconcile], Reconcile]:
    """Return a sender that changes the extension of its frame with this number; 0 is the first."""
    count = 0

    def tamper(frame: Reconcile) -> Reconcile:
        nonlocal count
        count += 1
        if count - 1 != nth:
            return frame
        return replace(frame, extension=change(frame.extension or FrameExtension()))

    return tamper


OFFERS = [
    ("a nonce of 15 bytes", lambda told: replace(told, nonce=bytes(15))),
    ("a nonce of 0 bytes", lambda told: replace(told, nonce=b"")),
    ("a nonce of 4096 bytes", lambda told: replace(told, nonce=bytes(4096))),
    ("a time beyond", lambda told: replace(told, compared_from_ns=2**64 - 1)),
    ("a sum before its last", lambda told: replace(told, sum=bytes(32))),
    ("a search before sums", lambda told: replace(told, search=SearchStep())),
]


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(("sentence", "change"), OFFERS)
async def test_an_offer_that_is_none(
    sentence: str, change: Callable[[FrameExtension], FrameExtension], liar: int
) -> None:
    sides = [Side(some(50, seed)) for seed in (1, 2)]
    sides[liar].tamper = lying(change, 0)
    await met(*sides)
    error = sides[1 - liar].error
    assert isinstance(error, ProtocolBrokenError)
    assert sentence in str(error)


LAST = [
    ("a nonce after its first frame", lambda told: replace(told, nonce=bytes(16))),
    ("a sum of 31 bytes", lambda told: replace(told, sum=bytes(31))),
    ("a sum of 33 bytes", lambda told: replace(told, sum=bytes(33))),
    ("searches where sums are equal", lambda told: replace(told, search=SearchStep())),
    ("or not where they differ", lambda told: replace(told, sum=bytes(32))),
]


@pytest.mark.parametrize(("sentence", "change"), LAST)
async def test_an_answer_to_a_sum_that_is_none(
    sentence: str, change: Callable[[FrameExtension], FrameExtension]
) -> None:
    one = Side(some(50, 1), tamper=lying(change, 1))
    other = Side(some(50, 1))
    await met(one, other)
    assert isinstance(other.error, ProtocolBrokenError)
    assert sentence in str(other.error)


async def test_sums_that_are_not_those_of_the_messages_end_the_session() -> None:
    ids = some(50, 1)
    for missummed in ((0, 1), (1, 0)):
        one, other = await met(*(Side(set(ids), missummed=number) for number in missummed))
        for each in (one, other):
            assert "sum is not that" in str(each.error)
            assert proven_from(each) is None


DAY_NS = 24 * HOUR_NS
STEPS: list[tuple[int, str, Callable[[SearchStep], SearchStep | None]]] = [
    (0, "leaves the search", lambda _: None),
    (0, "spans that overlap", lambda told: replace(told, spans=(*told.spans[:-1], (5, 5)))),
    (0, "spans that overlap", lambda told: replace(told, spans=(told.spans[0],) * len(told.spans))),
    (0, "other spans", lambda told: replace(told, spans=(*told.spans[:-1], (2**63, 2**64 - 1)))),
    (1, "other spans", lambda _: SearchStep(((DAY_NS, 40 * DAY_NS),), (bytes(32),))),
    (1, "outside of its lists", lambda told: replace(told, messages=bytes(56))),
    (1, "does not ascend", lambda told: replace(told, messages=told.messages * 2)),
]


@pytest.mark.parametrize(("nth", "sentence", "change"), STEPS)
async def test_a_step_of_a_search_that_is_none(
    nth: int, sentence: str, change: Callable[[SearchStep], SearchStep | None]
) -> None:
    """The responder has the last word of the reconciliation, so the initiator begins the search."""

    def tamper(frame: Reconcile) -> Reconcile:
        if frame.extension is None or frame.extension.search is None:
            return frame
        return replace(
            frame, extension=replace(frame.extension, search=change(frame.extension.search))
        )

    sides = [Side(set(half)) for half in forged()]
    sides[nth].tamper = tamper
    await met(sides[0], sides[1])
    victim = sides[1 - nth]
    assert isinstance(victim.error, ProtocolBrokenError)
    assert any(each in str(victim.error) for each in (sentence, "or not where they differ"))


def test_parts_of_a_span_touch_and_are_at_most_64_times_shorter() -> None:
    span = (5, 3 * 365 * DAY_NS + 7)
    while span[1] - span[0] > 1:
        parts = parts_of(span)
        assert [parts[0][0], parts[-1][1]] == list(span)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))
        assert 2 <= len(parts) <= 65
        span = parts[len(parts) // 2]
