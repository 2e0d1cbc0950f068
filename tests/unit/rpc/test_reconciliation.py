"""Reconciliations of two sides that are joined in memory: base and compact mode, sums, liars."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock, Mock, patch

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.algorithm.plan import Tuning
from reconcile.algorithm.questions import asked_about
from reconcile.codec import decode, encode_head
from reconcile.compact.frames import FrameKind, encode
from reconcile.errors import MalformedPayloadError, PayloadLimitError
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.lattice import LatticeSum
from reconcile.limits import DEFAULT_SESSION_LIMITS, SessionLimits
from reconcile.session import Result, Role
from reconcile.view import Loaded, Needs
from sim.messages import CANDIDATES, forged_halves
from store.domain.hub import START
from store.domain.partitioning import HOUR_NS
from store.domain.ports import NotServingError, PeerError
from store.domain.view import Span
from store.sync.errors import ProtocolBrokenError
from store.sync.frames import parse_reconcile
from store.sync.index.views import StoredView
from store.sync.limits import REMEMBERED_NS, THREADED_ROWS
from store.sync.session import reconciliation, sum_search
from store.sync.session.exchange import Exchange
from store.sync.session.reconciliation import Reconciliation
from store.sync.session.registry import PeerSession
from store.sync.session.report import SessionReport
from store.sync.session.sum_search import PeerNotes, has_spans
from storenode.wire.storenode.v1.peer_pb2 import ReconcileExtension, ReconcileFrame, SumSearch

TIMEOUT_S = 60.0
EVERYTHING = (LOWEST, (END[0], LOWEST[1]))

Tamper = Callable[[ReconcileFrame], None]


def unchanged(frame: ReconcileFrame) -> None:
    """Change nothing, as an honest sender."""


class SideView:
    """A view of some IDs, of which those from a time on count as being in memory."""

    horizon = LOWEST
    places = (START,)

    def __init__(self, side: Side) -> None:
        self.floor = side.memory_start or END
        self._side = side
        self._view = side.view or IndexView.of(side.id_columns())

    @property
    def ids(self) -> MemoryView:
        """The IDs, all of them in memory."""
        return MemoryView(self._view)

    async def load(self, needs: Needs) -> Loaded:
        """Fail: nothing is needed."""
        raise AssertionError(needs)

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the lattice sums of ranges of time."""
        if not self._side.sums:
            return None
        found = self._view.lattices(spans)
        assert found is not None
        return [LatticeSum(each.count + self._side.missummed, each.state) for each in found]

    async def listed(self, span: Span, limit: int) -> SyncIds | None:
        """Return the IDs of a range of time; None: more than ``limit``."""
        low, high = (self._view.rank((time_ns, LOWEST[1])) for time_ns in span)
        return self._view.between(low, high) if high - low <= limit else None

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs with their content digests."""
        rows = self._view
        return SyncIds(ids.timestamps, ids.hashes, rows.digests(rows.ranks(ids)))

    @property
    def rows(self) -> IndexView | None:
        """The index in memory."""
        return None if self._side.memory_start is None else self._view


@dataclass
class Side:
    """A side: its IDs, as a set or as a view, its abilities, and its lies.

    ``contents``: content digests that are others than usual. ``agrees``: it has the extension.
    ``sums``: it has lattice sums. ``is_older``: it does not know keyed sums.
    ``compact_from`` and ``offers``: as `Reconciliation` has them.
    """

    ids: set[SyncId] = field(default_factory=set)
    view: IndexView | None = None
    contents: dict[SyncId, bytes] = field(default_factory=dict)
    agrees: bool = True
    compact_from: int | None = None
    offers: bool = True
    cluster: int = 1
    memory_start: SyncId | None = LOWEST
    horizon: SyncId = LOWEST
    tamper: Tamper = unchanged
    missummed: int = 0
    sums: bool = True
    nonce: bytes = b""
    limits: SessionLimits = DEFAULT_SESSION_LIMITS
    sent: list[ReconcileFrame] = field(default_factory=list)
    notes: PeerNotes = field(default_factory=PeerNotes)
    is_older: bool = False
    work: Reconciliation = field(init=False)
    report: SessionReport = field(init=False)
    result: Result | None = None
    error: BaseException | None = None

    def id_columns(self) -> SyncIds:
        """Return the IDs with their content digests."""
        ids = SyncIds.of(sorted(self.ids))
        digests = b"".join(self.contents.get(each, each[1][:16]) for each in ids)
        return SyncIds(ids.timestamps, ids.hashes, np.frombuffer(digests, np.uint8).reshape(-1, 16))


class _Stream:
    def __init__(self, side: Side, inbox: asyncio.Queue[Any], outbox: asyncio.Queue[Any]) -> None:
        self._side = side
        self._inbox = inbox
        self._outbox = outbox

    async def read(self) -> bytes | None:
        """Return the next frame; None after the last."""
        data = cast("bytes | None", await self._inbox.get())
        if data is not None and self._side.is_older:
            frame = ReconcileFrame.FromString(data)
            as_older(frame)
            return frame.SerializeToString()
        return data

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        sent = ReconcileFrame.FromString(frame)
        self._side.tamper(sent)
        self._side.sent.append(sent)
        await self._outbox.put(sent.SerializeToString())

    async def half_close(self) -> None:
        """End this direction."""
        await self._outbox.put(None)


async def reconcile(
    initiator: Side, responder: Side, window: tuple[SyncId, SyncId] = EVERYTHING
) -> None:
    """Run one session to its end on both sides; results and errors are in the sides."""
    there: asyncio.Queue[Any] = asyncio.Queue()
    back: asyncio.Queue[Any] = asyncio.Queue()
    one = _verifying(initiator, Role.INITIATOR, _Stream(initiator, back, there), window)

    async def answer() -> Result:
        stream = _Stream(responder, there, back)
        data = await stream.read()
        assert data is not None
        first = parse_reconcile(data)
        asked = asked_about(decode(first.ranges_data, responder.limits.payload).ranges)
        work = _verifying(responder, Role.RESPONDER, stream, asked)
        return await work.respond(first)

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(
            _run(initiator, one.initiate(), there), _run(responder, answer(), back)
        )


async def _run(side: Side, work: Any, outbox: asyncio.Queue[Any]) -> None:  # noqa: ANN401
    try:
        side.result = await work
    except (PeerError, ValueError) as error:
        side.error = error
    finally:
        await outbox.put(None)


def _verifying(
    side: Side, role: Role, stream: _Stream, asked: tuple[SyncId, SyncId] | None
) -> Reconciliation:
    is_initiator = role is Role.INITIATOR
    nonce = side.nonce or bytes([is_initiator]) * 16
    rng = SimpleNamespace(randbytes=lambda _: nonce)
    work = SimpleNamespace(
        cluster=side.cluster,
        shards=(),
        limits=side.limits,
        tuning=Tuning(),
        sums=side.agrees,
        compact_from=side.compact_from,
    )
    exchange = SimpleNamespace(
        work=work,
        environment=SimpleNamespace(steady_ns=lambda: 0, random=rng),
        notes={"peer": side.notes},
        turn=lambda _: nullcontext(),
    )
    side.notes.equal = not side.offers
    side.report = SessionReport(
        role, 0, "peer", horizon=side.horizon, asked_from=asked and asked[0]
    )
    side.work = Reconciliation(
        cast("Exchange", exchange),
        PeerSession(side.report, "peer:1", 0, "" if is_initiator else "0" * 32),
        stream,
        cast("StoredView", SideView(side)),
        asked,
    )
    return side.work


NO_HASH: Final = bytes(32)
MINUTE_NS: Final = 60 * 10**9
DAY_NS: Final = 24 * HOUR_NS
WINDOW: Final = (LOWEST, (10_000 * HOUR_NS, NO_HASH))
FLOOR: Final = (90, NO_HASH)
FAILED: Final = encode(FrameKind.FAILED)
SKIPS: Final = bytes([1, 0, 1, 0])
MODES: Final = {"base": (None, True), "offered": (0, True), "unoffered": (0, False)}
"""The modes of a session: `compact_from` of both sides, and whether compact is offered."""

EXPECTED_ERRORS: Final = PeerError, NotServingError, MalformedPayloadError, PayloadLimitError

Lie = Callable[[ReconcileExtension], object]


def some(count: int, seed: int, start_ns: int = 0) -> set[SyncId]:
    """Return random IDs, one a minute or so."""
    rng = random.Random(seed)
    return {(start_ns + rng.randrange(count) * MINUTE_NS, rng.randbytes(32)) for _ in range(count)}


@cache
def forged(seed: int = 3, at_ns: int = 50 * MINUTE_NS) -> tuple[frozenset[SyncId], ...]:
    """Return two sets that have one fingerprint and one count."""
    rng = random.Random(seed)
    hashes = [rng.randbytes(32) for _ in range(CANDIDATES)]
    halves = forged_halves(hashes)
    return tuple(frozenset((at_ns + place, hashes[place]) for place in half) for half in halves)


def sides(mode: str, first: set[SyncId], second: set[SyncId]) -> tuple[Side, Side]:
    """Return an initiator and a responder that use a mode."""
    compact_from, offers = MODES[mode]
    return (
        Side(set(first), compact_from=compact_from, offers=offers),
        Side(set(second), compact_from=compact_from),
    )


def differing(mode: str) -> tuple[Side, Side]:
    """Return two sides that differ in 17 IDs."""
    return sides(mode, some(300, 1) | some(9, 2), some(300, 1) | some(8, 3))


def both(one: Side, other: Side) -> Iterator[tuple[Side, Side]]:
    """Yield each side with its peer."""
    yield one, other
    yield other, one


def check_exact(one: Side, other: Side, *, proven_from: int | None = 0) -> None:
    """Check that both sides found just the differences, and from when on sums were equal."""
    for own, peer in both(one, other):
        assert own.error is None
        assert own.result is not None
        assert set(own.result.to_send) == own.ids - peer.ids
        assert set(own.result.to_receive) == peer.ids - own.ids
        assert own.report.keyed_from_ns == proven_from


def hidden(side: Side) -> set[SyncId]:
    """Return the differences that fingerprints did not show."""
    return set(side.work.hidden)


def is_compact(one: Side, other: Side) -> bool:
    """Return True if both sides used the compact mode."""
    used = {side.report.compact for side in (one, other)}
    assert len(used) == 1
    return used.pop()


def lies(lie: Lie, when: Callable[[ReconcileExtension], object], nth: int | None = 0) -> Tamper:
    """Return a sender that changes one of its extensions: the nth of some; None: all of them."""
    seen = 0

    def tamper(frame: ReconcileFrame) -> None:
        nonlocal seen
        if when(frame.extension):
            if nth in (None, seen):
                lie(frame.extension)
            seen += 1

    return tamper


def set_to(**fields: object) -> Lie:
    """Return a change of fields."""

    def lie(extension: ReconcileExtension) -> None:
        extension.MergeFrom(ReconcileExtension(**fields))  # type: ignore[arg-type]

    return lie


def as_older(frame: ReconcileFrame) -> None:
    """Leave out what versions before the keyed sums do not send."""
    frame.extension.ClearField("keyed_sum")


# Honest sides


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("count", "differences"),
    [(0, (0, 0)), (0, (400, 300)), (1, (1, 0)), (30, (0, 1)), (1_000, (0, 0)), (1_000, (400, 300))],
)
async def test_both_sides_find_exactly_the_differences_and_conclude_by_sums(
    mode: str, count: int, differences: tuple[int, int]
) -> None:
    shared = some(count, 1)
    one, other = sides(mode, shared | some(differences[0], 2), shared | some(differences[1], 3))
    await reconcile(one, other)
    check_exact(one, other)
    assert not hidden(one) | hidden(other)
    assert one.result is not None
    assert other.result is not None
    assert one.report.bytes_sent == other.report.bytes_received
    assert one.report.bytes_received == other.report.bytes_sent
    assert not any(frame.HasField("count") for frame in one.sent[1:] + other.sent[1:])
    expected = mode != "base" and bool(count) and (mode == "offered" or any(differences))
    if count:
        assert is_compact(one, other) == expected
    if expected:
        assert one.result.rounds <= 2
        assert len(one.sent) <= 3
        assert one.result.own_count == other.report.peer_count == len(one.ids)
        assert other.result.own_count == one.report.peer_count == len(other.ids)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shared", "differences"), [(0, 0), (10, 1), (2_000, 60)])
async def test_forged_sets_are_found(mode: str, shared: int, differences: int) -> None:
    one, other = (
        forged()[place] | some(shared, 1) | some(differences, 2 + place, start_ns=2 * HOUR_NS)
        for place in range(2)
    )
    pair = sides(mode, set(one), set(other))
    await reconcile(*pair)
    check_exact(*pair)
    if not differences:
        assert hidden(pair[0]) == hidden(pair[1]) == forged()[0] | forged()[1]


@pytest.mark.parametrize("sums", [(True, False), (False, True), (False, False)])
async def test_a_side_without_sums_gives_no_proof(sums: tuple[bool, bool]) -> None:
    one, other = differing("base")
    one.sums, other.sums = sums
    await reconcile(one, other)
    check_exact(one, other, proven_from=None)


async def test_sums_begin_at_the_later_horizon() -> None:
    ids, horizon = some(300, 1), (100 * MINUTE_NS + 7, NO_HASH)
    kept = {each for each in ids if each >= horizon}
    for one, other in (
        (Side(set(ids), horizon=horizon), Side(set(ids))),
        (Side(set(ids)), Side(kept, horizon=horizon)),
    ):
        await reconcile(one, other)
        for side in (one, other):
            assert side.error is None
            assert side.report.keyed_from_ns == horizon[0]


@pytest.mark.parametrize("older", [(), (0,), (1,), (0, 1)])
async def test_equal_sides_take_one_frame_each_unless_one_is_older(older: tuple[int, ...]) -> None:
    pair = Side(some(300, 1)), Side(some(300, 1))
    for place in older:
        pair[place].tamper = as_older
        pair[place].is_older = True
    await reconcile(*pair)
    check_exact(*pair)
    assert [len(side.sent) for side in pair] == [2 if older else 1, 1]
    for side in pair:
        assert side.result is not None
        assert (side.result.rounds, side.result.own_count) == (1, len(side.ids))
        assert side.report.peer_count == len(side.ids)


@pytest.mark.parametrize("start", [None, FLOOR])
async def test_a_side_that_has_not_all_in_memory_sends_no_keyed_sum(start: SyncId | None) -> None:
    pair = Side(some(300, 1), memory_start=start), Side(some(300, 1))
    for one, other in both(*pair):
        one.sent, other.sent = [], []
        await reconcile(one, other)
        check_exact(one, other)
        assert (len(one.sent), len(other.sent)) == (2, 1)


async def test_nodes_of_different_clusters_exchange_nothing() -> None:
    one, other = differing("offered")
    other.cluster = 2
    await reconcile(one, other)
    for side in (one, other):
        assert side.result is not None
        assert "cluster" in side.result.refusal
        assert not len(side.result.to_send)


# The compact mode


@pytest.mark.parametrize("offers", [True, False])
@pytest.mark.parametrize("knows", [(None, 0), (0, None), (10_000, 0)])
async def test_the_mode_needs_both_sides(
    knows: tuple[int | None, int | None], offers: bool
) -> None:
    one, other = differing("base")
    await reconcile(one, other)
    frames = len(one.sent + other.sent)
    one, other = differing("base")
    one.compact_from, other.compact_from, one.offers = *knows, offers
    await reconcile(one, other)
    check_exact(one, other)
    assert not is_compact(one, other)
    assert len(one.sent + other.sent) == frames


@pytest.mark.parametrize("mode", ["offered", "unoffered"])
@pytest.mark.parametrize("memory", [(FLOOR, LOWEST), (LOWEST, FLOOR), (None, LOWEST)])
async def test_the_mode_needs_all_ids_in_memory(
    memory: tuple[SyncId | None, SyncId | None], mode: str
) -> None:
    one, other = differing(mode)
    one.memory_start, other.memory_start = memory
    await reconcile(one, other)
    check_exact(one, other)
    assert not is_compact(one, other)


@pytest.mark.parametrize("limits", [(40, 1_000), (1_000, 40)])
async def test_more_differences_than_a_session_reports_fall_back(limits: tuple[int, int]) -> None:
    one, other = sides("offered", some(500, 1) | some(60, 2), some(500, 1))
    one.limits, other.limits = (SessionLimits(max_differences=each) for each in limits)
    await reconcile(one, other)
    assert one.error is other.error is None
    assert one.result is not None
    assert set(one.result.to_send) <= one.ids - other.ids
    assert not is_compact(one, other)


# Conflicts and searches


def conflicts(side: Side) -> set[tuple[SyncId, bytes, bytes]]:
    """Return the conflicts that a side found."""
    return {
        ((each.timestamp, each.message_hash), each.own_digest, each.peer_digest)
        for each in side.work.conflicts
    }


@pytest.mark.parametrize(
    ("count", "differences", "mode"),
    [
        (0, (0, 0), "base"),
        (0, (40, 60), "offered"),
        (1, (1, 0), "base"),
        (1_000, (0, 0), "offered"),
        (1_000, (40, 60), "base"),
    ],
)
async def test_one_hash_with_two_contents_is_a_conflict(
    count: int, differences: tuple[int, int], mode: str
) -> None:
    shared = some(count, 1) | some(3, 9)
    wrong = {each: bytes([place]) * 16 for place, each in enumerate(sorted(some(3, 9)))}
    one, other = sides(mode, shared | some(differences[0], 2), shared | some(differences[1], 4))
    other.contents = wrong
    await reconcile(one, other)
    check_exact(one, other)
    assert conflicts(one) == {(each, each[1][:16], wrong[each]) for each in wrong}
    assert conflicts(other) == {(each, wrong[each], each[1][:16]) for each in wrong}
    assert not hidden(one) | hidden(other)


async def test_crowds_that_differ_are_divided_down_to_a_nanosecond() -> None:
    crowd = {(HOUR_NS + at, random.Random(at).randbytes(32)) for at in range(600)}
    one, other = (Side(crowd | half) for half in forged(at_ns=HOUR_NS + 300))
    await reconcile(one, other)
    check_exact(one, other)
    assert hidden(one) == one.ids ^ other.ids


async def test_more_than_is_listed_in_one_nanosecond_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sum_search, "MAX_LISTED_IDS", 20)
    one, other = (Side({(5, digest) for _, digest in half}) for half in forged())
    await reconcile(one, other)
    for side in (one, other):
        assert side.error is None
        assert side.result is not None
        assert side.result.truncated
        assert side.report.keyed_from_ns is None


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
    await reconcile(one, other)
    assert one.result is not None
    assert other.result is not None
    for own, peer in both(one, other):
        assert own.error is None
        assert own.result is not None
        assert own.result.truncated
        assert set(own.result.to_send) <= own.ids - peer.ids
        assert set(own.result.to_receive) <= peer.ids - own.ids
        assert own.report.keyed_from_ns is None
    assert set(one.result.to_send) == set(other.result.to_receive)
    assert set(one.result.to_receive) == set(other.result.to_send)


class Lasting:
    """A pair of sides with many IDs in conflict, which remember what sessions found."""

    def __init__(self) -> None:
        rng = random.Random(7)
        times = range(40 * DAY_NS, 131 * 40 * DAY_NS, 40 * DAY_NS)
        self.ids = {(time_ns, rng.randbytes(32)) for time_ns in times}
        self.contents = dict.fromkeys(self.ids, bytes(16))
        self.memories = [PeerNotes(), PeerNotes()]
        self.sessions = 0

    async def meet(self, *more: set[SyncId]) -> tuple[Side, Side]:
        """Run a session in which each side holds some more."""
        one, other = (
            Side(self.ids | more[at] if more else set(self.ids), notes=self.memories[at])
            for at in range(2)
        )
        other.contents = dict(self.contents)
        self.sessions += 1
        one.nonce = bytes([self.sessions]) * 16
        await reconcile(one, other, (LOWEST, (150_000 * HOUR_NS, NO_HASH)))
        for side in (one, other):
            assert side.error is None
            side.notes.update(0, side.work.conflicts, side.work.settled)
        return one, other

    async def until_known(self) -> tuple[Side, Side]:
        """Run sessions until one proves that all but the conflicts is equal."""
        for _ in range(30):
            one, other = await self.meet()
            assert one.report.keyed_from_ns == other.report.keyed_from_ns
            if one.report.keyed_from_ns is not None:
                return one, other
        raise AssertionError("no session has found all")

    def check_known(self, side: Side, *ids: SyncId) -> None:
        """Check that a side found these IDs in conflict, or all."""
        assert {each for each, *_ in conflicts(side)} == (set(ids) or self.ids)


async def test_lasting_conflicts_are_searched_for_once() -> None:
    world = Lasting()
    await world.until_known()
    assert world.sessions > 2, "one session looks into a part of them"
    for side in await world.meet():
        world.check_known(side)
        assert not hidden(side)
        assert not any(has_spans(frame.extension.search) for frame in side.sent)
        assert side.result is not None
        assert not side.result.truncated
    check_exact(*await world.meet({(5, bytes([1]) * 32)}, {(6, bytes([2]) * 32)}))
    notes, known = world.memories[0], world.memories[0].known(0)
    notes.update(REMEMBERED_NS, known, [(0, 2**62)])
    assert notes.known(REMEMBERED_NS) == known


async def test_a_new_conflict_is_found_among_those_that_last() -> None:
    world = Lasting()
    await world.until_known()
    new = (HOUR_NS, bytes([200]) * 32)
    world.ids.add(new)
    world.contents[new] = bytes([1]) * 16
    for side in await world.meet():
        assert new in {each for each, *_ in conflicts(side)}
    for side in await world.until_known():
        world.check_known(side)
    world.contents = {new: world.contents[new]}
    await world.meet()
    for side in await world.until_known():
        world.check_known(side, new)


@pytest.mark.parametrize("forgetful", [0, 1])
async def test_a_side_that_has_forgotten_conflicts_searches_for_them(forgetful: int) -> None:
    world = Lasting()
    await world.until_known()
    world.memories[forgetful] = PeerNotes()
    for side in await world.meet():
        assert side.report.keyed_from_ns is None
    for side in await world.until_known():
        world.check_known(side)


# Liars


def is_first(extension: ReconcileExtension) -> object:
    """Return True for the extension of a first frame."""
    return extension.nonce


def is_later(extension: ReconcileExtension) -> object:
    """Return True for any other."""
    return not extension.nonce


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(
    ("sentence", "fields"),
    [
        ("a nonce of 15 bytes", {"nonce": bytes(15)}),
        ("a nonce of 4096 bytes", {"nonce": bytes(4096)}),
        ("a time beyond", {"compared_from": 2**64 - 1}),
        ("a sum before its last", {"sum": bytes(32)}),
        ("a keyed sum of another size", {"keyed_sum": bytes(31)}),
        ("a search before sums", {"search": {}}),
    ],
)
async def test_an_offer_that_is_none(sentence: str, fields: dict[str, object], liar: int) -> None:
    pair = differing("base")
    pair[liar].tamper = lies(set_to(**fields), is_first)
    await reconcile(*pair)
    error = pair[1 - liar].error
    assert isinstance(error, ProtocolBrokenError)
    assert sentence in str(error)


@pytest.mark.parametrize(
    ("sentence", "fields"),
    [
        ("a nonce after its first frame", {"nonce": bytes(16)}),
        ("a keyed sum after its first frame", {"keyed_sum": bytes(32)}),
        ("a sum of 31 bytes", {"sum": bytes(31)}),
        ("a sum of 33 bytes", {"sum": bytes(33)}),
        ("searches where sums are equal", {"search": {}}),
        ("or not where they differ", {"sum": bytes(32)}),
        ("a compact frame nobody asked for", {"compact_frame": FAILED}),
    ],
)
async def test_an_answer_to_a_sum_that_is_none(sentence: str, fields: dict[str, object]) -> None:
    lie = lies(set_to(**fields), is_later)

    def tamper(frame: ReconcileFrame) -> None:
        as_older(frame)
        lie(frame)

    one, other = Side(some(50, 1), compact_from=None, tamper=tamper), Side(some(50, 1))
    await reconcile(one, other)
    assert isinstance(other.error, ProtocolBrokenError)
    assert sentence in str(other.error)


def repeat_sum(one: Side) -> Tamper:
    """Return a responder that answers with the keyed sum of the initiator's first frame."""

    def tamper(frame: ReconcileFrame) -> None:
        frame.extension.keyed_sum = one.sent[0].extension.keyed_sum
        frame.ranges_data = b""

    return tamper


async def test_a_keyed_sum_cannot_be_repeated() -> None:
    one, other = differing("base")
    other.tamper = repeat_sum(one)
    await reconcile(one, other)
    assert "keyed sum is not that of what is here" in str(one.error)
    assert one.report.keyed_from_ns is None


@pytest.mark.parametrize(("start", "name"), [(None, "keyed_sum"), (LOWEST, "compared_from")])
async def test_an_unasked_keyed_sum_ends_the_session(start: SyncId | None, name: str) -> None:
    one, other = Side(some(50, 1), memory_start=start), Side(some(50, 1))
    other.tamper = lies(set_to(**{name: bytes(32) if start is None else 1}), is_first)
    await reconcile(one, other)
    assert "keyed sum is not that of what is here" in str(one.error)


async def test_a_keyed_sum_of_other_messages_changes_nothing() -> None:
    one, other = differing("base")
    one.tamper = lies(set_to(keyed_sum=bytes(32)), is_first)
    await reconcile(one, other)
    check_exact(one, other)


@pytest.mark.parametrize("wrong", [(0, 1), (1, 0)])
async def test_sums_that_are_not_those_of_messages_end_the_session(wrong: tuple[int, int]) -> None:
    one, other = (Side(some(50, 1), missummed=number) for number in wrong)
    await reconcile(one, other, WINDOW)
    for side in (one, other):
        assert "sum is not that" in str(side.error)
        assert side.report.keyed_from_ns is None


async def test_sums_of_many_spans_are_made_beside_the_event_loop() -> None:
    search = sum_search.Search(Mock(lattices=AsyncMock()), (1, 2**24 + 1), SyncIds.empty(), b"", 1)
    with patch.object(sum_search, "in_thread_if", AsyncMock(return_value=[])) as threads:
        await search.begin()
        await search.answer(SumSearch(spans=range(1, 2**24, 2**16), sums=bytes(32 * 128)))
    assert [call.args[0] for call in threads.call_args_list] == [True, True, False]


def last_span(*times: int) -> Lie:
    """Return a change of the last span of a search."""

    def lie(extension: ReconcileExtension) -> None:
        del extension.search.spans[-2:]
        extension.search.spans.extend(times)

    return lie


def search_elsewhere(extension: ReconcileExtension) -> None:
    """Search in a span that was not divided."""
    extension.search.CopyFrom(SumSearch(spans=[DAY_NS, 40 * DAY_NS], sums=bytes(32)))


def list_messages(change: Callable[[bytes], bytes]) -> Lie:
    """Return a change of the messages that a search lists."""

    def lie(extension: ReconcileExtension) -> None:
        extension.search.messages = change(extension.search.messages)

    return lie


def repeat_first_span(extension: ReconcileExtension) -> None:
    """Replace each span of a search by the first."""
    spans = extension.search.spans
    spans[:] = list(spans[:2]) * (len(spans) // 2)


@pytest.mark.parametrize(
    ("liar", "sentence", "lie"),
    [
        (0, "or not where they differ", lambda extension: extension.ClearField("search")),
        (0, "spans that overlap", last_span(5, 5)),
        (0, "spans that overlap", repeat_first_span),
        (0, "other spans", last_span(2**63, 2**64 - 1)),
        (1, "leaves the search", lambda extension: extension.ClearField("search")),
        (1, "other spans", search_elsewhere),
        (1, "outside of its lists", list_messages(lambda _: bytes(56))),
        (1, "does not ascend", list_messages(lambda messages: 2 * messages)),
    ],
)
async def test_a_step_of_a_search_that_is_none(liar: int, sentence: str, lie: Lie) -> None:
    """Check that it ends the session: the initiator begins the search, the responder answers."""
    pair = [Side(set(half)) for half in forged()]
    pair[liar].tamper = lies(lie, lambda extension: extension.HasField("search"), None)
    await reconcile(pair[0], pair[1], WINDOW)
    victim = pair[1 - liar]
    assert isinstance(victim.error, ProtocolBrokenError)
    assert sentence in str(victim.error)


@pytest.mark.parametrize("liar", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        lambda ids: ids[:-40],
        lambda ids: ids + bytes(40),
        lambda ids: ids[:-1] + bytes([ids[-1] ^ 1]),
        lambda ids: bytes(len(ids)),
        lambda _: b"",
    ],
)
async def test_ids_that_are_not_those_of_the_mode_are_refused(
    change: Callable[[bytes], bytes], liar: int
) -> None:
    pair = differing("offered")

    def lie(extension: ReconcileExtension) -> None:
        extension.compact_ids = change(extension.compact_ids)

    pair[liar].tamper = lies(lie, lambda extension: extension.compact_ids)
    await reconcile(*pair)
    honest = pair[1 - liar]
    assert isinstance(honest.error, ProtocolBrokenError)
    assert "IDs than" in str(honest.error)
    assert honest.result is None


async def test_many_ids_of_the_mode_are_checked_in_a_thread() -> None:
    step = AsyncMock(side_effect=lambda _, work, *given: work(*given))
    with patch.object(reconciliation, "in_thread_if", step):
        await reconcile(*sides("offered", set(), some(THREADED_ROWS + 1, 2) | some(1, 1)))
    assert (True, reconciliation._checked_ids) in [call.args[:2] for call in step.mock_calls]


# Random frames


def changed_bytes(rng: random.Random, value: bytes) -> bytes:
    """Return bytes that are random, cut off, longer, or changed in one place."""
    flipped = bytearray(value or b"\0")
    flipped[rng.randrange(len(flipped))] ^= 1 + rng.randrange(255)
    return rng.choice(
        [
            b"",
            bytes(flipped),
            value[: rng.randint(0, len(value))],
            value + rng.randbytes(rng.choice([1, 8, 16, 32, 56])),
            rng.randbytes(rng.choice([1, 7, 16, 32, 48, 200])),
            encode_head(1, ()) + rng.randbytes(rng.randrange(60)),
            SKIPS,
            bytes([rng.choice(list(FrameKind))]),
        ]
    )


def change_message(rng: random.Random, message: Message) -> None:
    """Change a field of a message, or of a message in it."""
    field: Any = rng.choice(list(message.DESCRIPTOR.fields))
    value: Any = getattr(message, field.name)
    repeated = field.is_repeated
    if field.type == FieldDescriptor.TYPE_MESSAGE and not repeated:
        change_message(rng, value)
        return
    if rng.random() < 0.2:
        message.ClearField(field.name)
        return
    limit = 2**32 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT32 else 2**63

    def scalar() -> int:
        return rng.choice([0, 1, 2, 3, 24, rng.randrange(limit), limit - 1])

    match field.type:
        case FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, changed_bytes(rng, value))
        case FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, not value)
        case FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, rng.choice(["", "a", value * 2]))
        case FieldDescriptor.TYPE_ENUM:
            value.append(rng.randrange(6))
        case _ if repeated:
            value.extend(sorted(scalar() for _ in range(rng.randint(1, 4))))
        case _:
            setattr(message, field.name, scalar())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("liar", [0, 1], ids=["initiator", "responder"])
@settings(max_examples=40, deadline=None)
@given(nth=st.integers(0, 5), seed=st.integers(0, 2**32))
async def test_no_changed_frame_harms_an_honest_side(
    mode: str, liar: int, nth: int, seed: int
) -> None:
    count = -1

    def tamper(frame: ReconcileFrame) -> None:
        nonlocal count
        count += 1
        if count == nth:
            rng = random.Random(seed)
            for _ in range(rng.randint(1, 3)):
                change_message(rng, frame)

    ids = sorted((at, random.Random(at).randbytes(32)) for at in range(1, 40))
    pair = sides(mode, set(ids[2:]), set(ids[:-2]))
    pair[liar].tamper = tamper
    await reconcile(*pair)
    for side in pair:
        assert side.result is not None or isinstance(side.error, EXPECTED_ERRORS)
    honest, peer = pair[1 - liar], pair[liar]
    if honest.result is None:
        return
    assert set(honest.result.to_send) <= honest.ids
    start_ns = honest.report.keyed_from_ns
    if start_ns is not None:
        later = {an_id for an_id in honest.ids - peer.ids if an_id[0] >= start_ns}
        assert {an_id for an_id in honest.result.to_send if an_id[0] >= start_ns} == later
        # What a liar claims to hold shows only when it is to send it.
        assert honest.ids.isdisjoint(honest.result.to_receive)
