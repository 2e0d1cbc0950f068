"""Reconciliations that agree on the compact mode: both sides, joined in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reconcile.compact.frames import FrameKind, PlainFrame, encode
from reconcile.ids import LOWEST, SyncId
from reconcile.limits import SessionLimits
from store.sync.errors import ProtocolBrokenError
from store.sync.frames import FrameExtension, Reconcile
from tests.support.verifying_pair import EVERYTHING, Side, reconcile
from tests.unit.rpc.test_verifying import exact, modes, proven_from, some

FLOOR = (90, bytes(32))
FAILED = encode(PlainFrame(FrameKind.FAILED))
Change = Callable[[FrameExtension], FrameExtension]


def sides(first: set[SyncId], second: set[SyncId], change: Change | None = None) -> list[Side]:
    """Two that know the mode; ``change``: how the second lies about the last frame of the mode."""

    def tamper(frame: Reconcile) -> Reconcile:
        told = frame.extension
        if change is None or told is None or not told.compact_ids:
            return frame
        return replace(frame, extension=change(told))

    return [Side(first, compact_from=0), Side(second, compact_from=0, tamper=tamper)]


def unoffered(first: set[SyncId], second: set[SyncId]) -> list[Side]:
    """Two that know the mode, and the initiator only says so."""
    met = sides(first, second)
    met[0].offers = False
    return met


async def test_it_takes_fewer_bytes_than_a_base_session() -> None:
    costs = []
    for compact_from, offers in ((None, True), (0, True), (0, False)):
        every = sorted(some(9_000, 1))
        one = Side(set(every) - set(every[7::150]), compact_from=compact_from, offers=offers)
        other = Side(set(every) - set(every[99::150]), compact_from=compact_from)
        await reconcile(one, other, EVERYTHING)
        exact(one, other)
        assert one.result is not None
        costs.append(one.result.bytes_sent + one.result.bytes_received)
    assert max(costs[1:]) < costs[0] / 2


async def test_a_responder_that_differs_begins_with_slices() -> None:
    one, other = unoffered(some(30, 1), some(30, 1) | some(90, 3))
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    first, answer = one.sent[0].extension, other.sent[0].extension
    assert first is not None
    assert not first.compact_frame
    assert answer is not None
    assert answer.compact_frame[0] == FrameKind.SLICES
    assert one.result is not None
    assert one.result.rounds == 2
    assert len(one.sent) <= 3


async def test_nodes_that_do_not_differ_send_no_frame_of_the_mode() -> None:
    one, other = unoffered(some(3_000, 1), some(3_000, 1))
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    assert modes(one, other) == {False}
    assert [len(side.sent) for side in (one, other)] == [2, 1]
    told = [frame.extension for side in (one, other) for frame in side.sent]
    assert not any(each is not None and each.size_bytes for each in told)
    assert not any(side.work is None or side.work.compact_failed for side in (one, other))


@pytest.mark.parametrize("offers", [True, False])
@pytest.mark.parametrize("knows", [(None, 0), (0, None), (10_000, 0)])
async def test_a_side_that_does_not_know_the_mode_is_met_as_ever(
    knows: tuple[int | None, int | None], offers: bool
) -> None:
    one = Side(some(500, 1) | some(9, 2), compact_from=knows[0], offers=offers)
    other = Side(some(500, 1) | some(8, 3), compact_from=knows[1])
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    assert proven_from(one) == proven_from(other) == 0
    assert modes(one, other) == {False}
    frames = [frame for side in (one, other) for frame in side.sent]
    plain = Side(set(one.ids)), Side(set(other.ids))
    await reconcile(*plain, EVERYTHING)
    assert len(frames) == len([frame for side in plain for frame in side.sent])


@pytest.mark.parametrize("agrees", [(True, False), (False, True)])
async def test_without_the_extension_there_is_no_mode(agrees: tuple[bool, bool]) -> None:
    one = Side(some(500, 1), compact_from=0, agrees=agrees[0])
    other = Side(some(500, 1) | some(8, 3), compact_from=0, agrees=agrees[1])
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    assert modes(one, other) == {False}


@pytest.mark.parametrize("offers", [True, False])
@pytest.mark.parametrize("memory", [(FLOOR, LOWEST), (LOWEST, FLOOR), (None, LOWEST)])
async def test_a_range_that_is_not_all_in_memory_is_reconciled_by_a_base_session(
    memory: tuple[SyncId | None, SyncId | None], offers: bool
) -> None:
    one, other = sides(some(500, 1) | some(9, 2), some(500, 1) | some(8, 3))
    one.memory_start, other.memory_start = memory
    one.offers = offers
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    assert modes(one, other) == {False}


async def test_nodes_of_different_clusters_exchange_nothing() -> None:
    one, other = sides(some(500, 1) | some(9, 2), some(500, 1))
    other.cluster = 2
    await reconcile(one, other, EVERYTHING)
    for side in (one, other):
        assert side.result is not None
        assert "cluster" in side.result.refusal
        assert not len(side.result.to_send)


async def test_more_differences_than_a_session_reports_fall_back() -> None:
    for limits in ((40, 1_000), (1_000, 40)):
        one, other = sides(some(500, 1) | some(60, 2), some(500, 1))
        one.limits, other.limits = (SessionLimits(max_differences=each) for each in limits)
        await reconcile(one, other, EVERYTHING)
        assert one.error is other.error is None
        assert one.result is not None
        assert set(one.result.to_send) <= one.ids - other.ids
        assert modes(one, other) == {False}


BAD = [
    b"",
    b"\xff",
    bytes(4096),
    FAILED,
    encode(PlainFrame(FrameKind.EQUAL)),
    encode(PlainFrame(FrameKind.AGAIN)),
    encode(PlainFrame(FrameKind.MORE)),
    encode(PlainFrame(FrameKind.DONE)),
]


@pytest.mark.parametrize(
    ("frame", "liar", "nth", "offers"),
    [
        (frame, (number + turn) % 2, (number + turn) % 3, bool((number + turn) // 2 % 2))
        for number, frame in enumerate(BAD)
        for turn in (0, 3)
    ],
)
async def test_whatever_comes_instead_of_a_frame_harms_no_honest_side(
    liar: int, nth: int, frame: bytes, offers: bool
) -> None:
    seen = 0

    def tamper(told: Reconcile) -> Reconcile:
        nonlocal seen
        if told.extension is None or not told.extension.compact_frame:
            return told
        seen += 1
        if seen - 1 != nth:
            return told
        return replace(told, extension=replace(told.extension, compact_frame=frame))

    met = sides(some(300, 1) | some(9, 2), some(300, 1) | some(8, 3))
    met[liar].tamper, met[0].offers = tamper, offers
    await reconcile(met[0], met[1], EVERYTHING)
    honest, peer = met[1 - liar], met[liar]
    if honest.result is None:
        assert isinstance(honest.error, ProtocolBrokenError | ValueError)
        return
    assert set(honest.result.to_send) <= honest.ids
    if proven_from(honest) is not None:
        assert set(honest.result.to_send) == honest.ids - peer.ids
        assert set(honest.result.to_receive) == peer.ids - honest.ids


@pytest.mark.parametrize("offers", [True, False])
async def test_a_frame_that_is_none_ends_in_a_base_session_that_says_why(offers: bool) -> None:
    def tamper(told: Reconcile) -> Reconcile:
        if told.extension is None or not told.extension.nonce:
            return told
        return replace(told, extension=replace(told.extension, compact_frame=b"\xff"))

    one, other = sides(some(300, 1) | some(9, 2), some(300, 1) | some(8, 3))
    other.tamper, one.offers = tamper, offers
    await reconcile(one, other, EVERYTHING)
    exact(one, other)
    assert one.work is not None
    assert one.work.compact_failed
    assert one.work.compact is not None
    assert "docs/spec/compact.md" in one.work.compact.reason
    assert proven_from(one) == proven_from(other) == 0
    assert modes(one, other) == {False}


@pytest.mark.parametrize(
    "change",
    [
        lambda told: replace(told, compact_ids=told.compact_ids[:-40]),
        lambda told: replace(told, compact_ids=told.compact_ids + bytes(40)),
        lambda told: replace(told, compact_ids=told.compact_ids[:-1] + b"\x00"),
        lambda told: replace(told, compact_ids=bytes(len(told.compact_ids))),
        lambda told: replace(told, compact_ids=b"\xff" * len(told.compact_ids)),
        lambda told: replace(told, compact_ids=b""),
    ],
)
async def test_ids_that_are_not_those_of_the_mode_are_refused(change: Change) -> None:
    one, other = sides(some(300, 1) | some(9, 2), some(300, 1) | some(8, 3), change)
    await reconcile(one, other, EVERYTHING)
    assert isinstance(one.error, ProtocolBrokenError)
    assert "IDs than" in str(one.error)
    assert one.result is None


async def test_ids_of_the_initiator_that_are_not_those_of_the_mode_are_refused() -> None:
    def tamper(told: Reconcile) -> Reconcile:
        if told.extension is None or not told.extension.compact_ids:
            return told
        return replace(told, extension=replace(told.extension, compact_ids=bytes(360)))

    one, other = sides(some(300, 1) | some(9, 2), some(300, 1) | some(8, 3))
    one.tamper = tamper
    await reconcile(one, other, EVERYTHING)
    assert isinstance(other.error, ProtocolBrokenError)
    assert other.result is None


async def test_compact_frames_without_an_agreement_break_the_protocol() -> None:
    def tamper(told: Reconcile) -> Reconcile:
        if told.extension is None or told.extension.nonce:
            return told
        return replace(told, extension=replace(told.extension, compact_frame=FAILED))

    one, other = Side(some(50, 1), tamper=tamper), Side(some(50, 1))
    await reconcile(one, other, EVERYTHING)
    assert "a compact frame nobody asked for" in str(other.error)
