"""Compact frames of a peer that lies, or sends anything at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.compact import frames as compact_frames
from reconcile.compact import session
from reconcile.compact.frames import (
    AnswerHead,
    Frame,
    FrameKind,
    ResultFrame,
    SingleFrame,
    SlicesFrame,
    TableFrame,
    decode,
    encode,
    encode_answer,
    encode_balances,
    encode_offer,
)
from reconcile.compact.keys import BIT_BALANCES
from reconcile.compact.session import (
    Claim,
    CompactInitiator,
    CompactResponder,
    CompactResult,
    CompactStep,
    FallBack,
)
from reconcile.compact.table import MAX_CELLS, MAX_TABLES, TableShape
from reconcile.errors import MalformedCompactError, PayloadLimitError
from reconcile.ids import Bools, SyncId, SyncIds
from reconcile.index import IndexView
from storenode.message.varint import varint
from tests.support.reconcile_pair import EVERYTHING, NONCES, Joined, compact_pair
from tests.unit.reconcile.test_compact import SOME, sets_of, table_in

XOR = np.arange(4, dtype=np.uint64)
NONE = np.empty(0, np.uint64)


def views_of(first: list[SyncId], second: list[SyncId]) -> tuple[IndexView, IndexView]:
    return IndexView.of(SyncIds.of(first)), IndexView.of(SyncIds.of(second))


VIEWS = views_of(*sets_of(2, 4_000, 60, 50, 10**6))


def cut(count: int, regions: int, print_bytes: int) -> bytes:
    """Return the slices with which a frame ends."""
    rng = np.random.default_rng(count)
    deltas = rng.integers(1, 1 << 20, count).tolist()
    prints = rng.bytes(print_bytes * (count + regions))
    bounds = b"\3" + varint(count) + b"".join(map(varint, deltas))
    return bounds + prints + encode_balances(rng.integers(-500, 500, count + regions))


def answered(count: int, differs: Bools, print_bytes: int, slices: bytes) -> SlicesFrame:
    """Return an answer of the responder."""
    head = AnswerHead(XOR, count, differs, print_bytes)
    data = encode_answer(head, slices)
    return SlicesFrame(data, len(data) - len(slices), head)


def frames() -> list[Frame]:
    differs = np.array([True, False, True])
    shape = TableShape(4, 3, 2)
    cells = np.arange(shape.cells, dtype=np.uint64) << np.uint64(50)
    shorts = np.array([1, 2, 1 << 47], np.uint64)
    return [
        SlicesFrame(encode_offer(cut(2, 1, 2))),
        FrameKind.EQUAL,
        FrameKind.MORE,
        FrameKind.AGAIN,
        FrameKind.DONE,
        FrameKind.FAILED,
        SingleFrame(XOR),
        SingleFrame(XOR, 7),
        answered(1 << 40, differs, 0, cut(4, 2, 0)),
        answered(5, differs, 3, cut(400, 2, 3)),
        answered(5, differs, 1, cut(0, 2, 1) + encode_balances(np.arange(BIT_BALANCES) - 70)),
        TableFrame(None, shape, cells),
        TableFrame(differs, shape, cells),
        TableFrame(differs, shape, cells, np.array([False, True]), shorts[2:]),
        TableFrame(differs, shape, cells, np.array([False, False]), NONE),
        TableFrame(differs, shape, cells, np.array([True, False]), shorts[:1], by_prints=True),
        TableFrame(
            differs, shape, cells, np.array([False, True]), shorts[2:], np.array([True]), shorts
        ),
        TableFrame(
            differs, shape, cells, np.array([False, False]), NONE, np.array([True, False]), NONE
        ),
        ResultFrame(XOR, shorts[:2], 1, shorts),
        ResultFrame(XOR, NONE, 6, NONE),
    ]


def read(data: bytes) -> Frame:
    return decode(data, 3)


@pytest.mark.parametrize("frame", frames(), ids=lambda frame: type(frame).__name__)
def test_frames_are_read_as_they_were_written(frame: Frame) -> None:
    data = encode(frame)
    assert encode(read(data)) == data
    if isinstance(frame, SlicesFrame):
        return
    for end in range(len(data)):
        with pytest.raises(MalformedCompactError):
            read(data[:end])
    with pytest.raises(MalformedCompactError, match="malformed"):
        read(data + b"\0")


@given(st.sampled_from(frames()), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_spoiled_frames_are_read_or_refused(frame: Frame, rng: random.Random) -> None:
    data = bytearray(encode(frame))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        found = read(bytes(data))
    except (MalformedCompactError, PayloadLimitError):
        return
    assert encode(found) == bytes(data)


def head(kind: FrameKind) -> bytes:
    return bytes((kind,))


@pytest.mark.parametrize(
    "data",
    [
        head(FrameKind.TABLE) + b"\0\4" + varint(129) + varint(1),
        head(FrameKind.TABLE) + b"\0\4" + varint(1) + varint(2**40),
        head(FrameKind.TABLE) + b"\3\0" + varint(2**40),
        head(FrameKind.RESULT) + bytes(32) + varint(2**50) + varint(0) + b"\6",
        head(FrameKind.RESULT) + bytes(32) + b"\2\0\1\5\5",
        head(FrameKind.RESULT) + bytes(32) + b"\0\0\7",
        head(FrameKind.TABLE) + b"\0\6\1\1",
        head(FrameKind.TABLE) + b"\5",
        head(FrameKind.TABLE) + b"\3\0\2" + 2 * b"\5\0\0\0\0\0",
        head(FrameKind.SLICES) + bytes(32) + b"\0\7\5",
        head(FrameKind.SLICES) + bytes(32) + b"\0\xf7",
        b"\xee",
        b"",
    ],
)
def test_what_is_malformed_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedCompactError, match="malformed or beyond a limit"):
        read(data)


def test_a_frame_is_measured_before_it_is_read() -> None:
    with pytest.raises(PayloadLimitError) as caught:
        read(bytes(compact_frames.MAX_FRAME_BYTES + 1))
    assert caught.value.limit == "max_frame_bytes"


@pytest.mark.parametrize(
    "slices",
    [
        b"\0" + varint(64) + bytes(200),
        b"\0\1\0" + bytes(6),
        b"\x3f\0" + bytes(3),
        b"\x3e\1\5" + bytes(6),
        b"\0\1" + b"\xff" * 9 + b"\1" + bytes(6),
        b"\0\1\x81\0" + bytes(6),
        b"\0\0" + bytes(2),
        b"\0\0" + bytes(4),
        b"\0\0" + bytes(2) + varint(2**34),
    ],
)
def test_slices_that_are_malformed_or_too_many_are_refused(slices: bytes) -> None:
    side = compact_pair(*VIEWS).sides[1]
    with pytest.raises(MalformedCompactError, match="malformed or beyond a limit"):
        side.receive(encode_offer(slices))
    assert side.ended


def sent_until(
    kind: FrameKind, views: tuple[IndexView, IndexView] = VIEWS
) -> tuple[Joined, int, bytes]:
    """Return a session up to a frame of a kind: who is to receive it, and the frame."""
    joined = compact_pair(*views)
    frame, receiver = joined.sides[0].begin(), 1
    while frame[0] != kind:
        step = joined.sides[receiver].receive(frame)
        assert step.frame is not None
        frame, receiver = step.frame, 1 - receiver
        joined.frames[1 - receiver].append(frame)
    return joined, receiver, frame


KINDS = (FrameKind.OFFER, FrameKind.SLICES, FrameKind.TABLE, FrameKind.RESULT)


def answer_to(side: CompactInitiator | CompactResponder, data: bytes) -> CompactStep | str:
    """Return what a side answers to a frame, or what it says against it."""
    try:
        return side.receive(data)
    except (MalformedCompactError, PayloadLimitError) as refusal:
        return str(refusal)


@given(st.sampled_from(KINDS), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_peer_that_lies_cannot_make_a_result_wrong(kind: FrameKind, rng: random.Random) -> None:
    joined, receiver, frame = sent_until(kind)
    data = bytearray(frame)
    data[rng.randrange(1, len(data))] ^= 1 << rng.randrange(8)
    side = joined.sides[receiver]
    step = answer_to(side, bytes(data))
    if isinstance(step, str):
        assert side.ended
        return
    if isinstance(step.outcome, CompactResult):
        own = VIEWS[receiver].between(0, len(VIEWS[receiver])).pairs()
        other = VIEWS[1 - receiver].between(0, len(VIEWS[1 - receiver])).pairs()
        assert step.outcome.to_send.pairs() == sorted(set(own) - set(other))


def printed() -> tuple[IndexView, IndexView]:
    """Return sides that differ in so few IDs that these are sent by their prints."""
    ids = sorted(sets_of(9, 9_000, 0, 0, 10**9)[0])
    lacking = ({900, 4_000}, {2_000, 7_000})
    return views_of(*([i for at, i in enumerate(ids) if at not in some] for some in lacking))


def listing() -> tuple[IndexView, IndexView]:
    """Return sides of which the initiator has a gap, where it lists its IDs."""
    first, second = (sorted(ids) for ids in sets_of(9, 20_000, 0, 30, 10**9))
    return views_of(first[:9_000] + first[9_400:], second)


def unchanged(frame: TableFrame) -> TableFrame:
    return frame


def another_id(frame: TableFrame) -> TableFrame:
    return replace(frame, single=frame.single ^ np.eye(1, len(frame.single), 1, np.uint64)[0])


def one_id_twice(frame: TableFrame) -> TableFrame:
    return replace(frame, single=np.append(frame.single[1], frame.single[1:]))


def longer_list(frame: TableFrame) -> TableFrame:
    return replace(frame, named=np.union1d(frame.named, np.array([77], np.uint64)))


def shorter_list(frame: TableFrame) -> TableFrame:
    return replace(frame, named=frame.named[1:])


def nothing_listed_of_all(frame: TableFrame) -> TableFrame:
    assert frame.explained is not None
    return replace(frame, listed=np.ones(int((~frame.explained).sum()), np.bool_), named=NONE)


@pytest.mark.parametrize(
    ("views", "change", "most_cells", "reason"),
    [
        (VIEWS, one_id_twice, MAX_CELLS, "fingerprints"),
        (VIEWS, another_id, MAX_CELLS, "fingerprints"),
        (VIEWS, nothing_listed_of_all, 100, "more is listed than can be answered"),
        (printed(), another_id, MAX_CELLS, "fingerprints"),
        (printed(), unchanged, MAX_CELLS, ""),
        (listing(), longer_list, MAX_CELLS, "fingerprints"),
        (listing(), shorter_list, MAX_CELLS, "fingerprints"),
        (listing(), unchanged, MAX_CELLS, ""),
    ],
)
def test_a_table_that_lies_ends_in_a_base_session(
    monkeypatch: pytest.MonkeyPatch,
    views: tuple[IndexView, IndexView],
    change: Callable[[TableFrame], TableFrame],
    most_cells: int,
    reason: str,
) -> None:
    joined, _, _ = sent_until(FrameKind.TABLE, views)
    data = encode(change(table_in(joined)))
    monkeypatch.setattr(session, "MAX_CELLS", most_cells)
    outcome = joined.sides[1].receive(data).outcome
    if reason:
        assert isinstance(outcome, FallBack)
        assert reason in outcome.reason
    else:
        assert isinstance(outcome, CompactResult)


def test_lists_of_what_is_not_there_do_not_empty_a_table() -> None:
    joined, _, _ = sent_until(FrameKind.TABLE, listing())
    frame = table_in(joined)
    assert frame.listed is not None
    data = encode(replace(frame, listed=np.ones_like(frame.listed)))
    assert joined.sides[1].receive(data).frame == head(FrameKind.AGAIN)


def test_who_was_reported_of_an_id_may_not_want_it() -> None:
    joined, receiver, frame = sent_until(FrameKind.RESULT)
    result = decode(frame)
    assert isinstance(result, ResultFrame)
    mask = np.uint64((1 << 8 * result.wanted_bytes) - 1)
    wanted = np.union1d(result.wanted, table_in(joined).single[:1] & mask)
    step = joined.sides[receiver].receive(encode(replace(result, wanted=wanted)))
    assert isinstance(step.outcome, FallBack)


def test_tables_that_never_empty_end_in_a_base_session() -> None:
    joined, receiver, frame = sent_until(FrameKind.TABLE)
    side = joined.sides[receiver]
    rng = np.random.default_rng(3)
    shape = TableShape(4, 2_000, 16)
    for number in range(MAX_TABLES):
        cells = rng.integers(0, 2**64 - 1, shape.cells, np.uint64)
        step = side.receive(encode(TableFrame(None, shape, cells)))
        assert (step.outcome is None) == (number < MAX_TABLES - 1)
        assert step.frame is not None
    assert isinstance(step.outcome, FallBack)
    assert step.frame == head(FrameKind.FAILED)
    assert frame[0] == FrameKind.TABLE


def test_an_initiator_asks_for_three_tables_at_most() -> None:
    joined, receiver, frame = sent_until(FrameKind.SLICES)
    side = joined.sides[receiver]
    step = side.receive(frame)
    for _ in range(MAX_TABLES):
        assert step.outcome is None
        step = side.receive(head(FrameKind.AGAIN))
    assert isinstance(step.outcome, FallBack)


def test_a_failure_of_the_initiator_revokes_what_the_responder_found() -> None:
    joined = compact_pair(*VIEWS)
    joined.run()
    assert isinstance(joined.outcomes[1], CompactResult)
    assert isinstance(joined.sides[1].receive(head(FrameKind.FAILED)).outcome, FallBack)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_out_of_turn_are_refused(kind: FrameKind) -> None:
    for data in (encode(frame) for frame in frames() if not isinstance(frame, SlicesFrame)):
        joined, receiver, expected = sent_until(kind)
        if data[0] in (expected[0], FrameKind.FAILED) or (
            kind is FrameKind.SLICES and data[0] <= FrameKind.LOOK
        ):
            continue
        if kind is FrameKind.RESULT and data[0] == FrameKind.AGAIN:
            continue
        with pytest.raises((MalformedCompactError, PayloadLimitError)):
            joined.sides[receiver].receive(data)
        assert joined.sides[receiver].ended


def test_claims_that_are_wrong_end_in_a_base_session() -> None:
    first = compact_pair(*VIEWS).sides[0]
    honest = first.claim
    counts = honest.count + 3, 0, 1 << 62, (1 << 64) - 1
    claims = [Claim(count, honest.xor) for count in counts]
    for claim in (*claims, Claim(honest.count, honest.xor ^ XOR)):
        for offered in (True, False):
            assert_falls_back(claim, offered)


def assert_falls_back(claim: Claim, offered: bool) -> None:
    offering = compact_pair(*VIEWS).sides[0]
    responder = CompactResponder(VIEWS[1], EVERYTHING, NONCES, claim)
    if offered:
        step = responder.receive(offering.begin())
    else:
        offering.await_slices()
        step = CompactStep(responder.begin())
    while step.outcome is None:
        assert step.frame is not None
        answer = offering.receive(step.frame)
        if isinstance(answer.outcome, FallBack):
            return
        assert answer.frame is not None
        step = responder.receive(answer.frame)
    assert isinstance(step.outcome, FallBack)


@given(st.one_of(st.sampled_from(frames()).map(encode), st.binary(max_size=200)))
@SOME
def test_who_awaits_slices_takes_nothing_else(data: bytes) -> None:
    side = compact_pair(*VIEWS).sides[0]
    side.await_slices()
    step = answer_to(side, data)
    if isinstance(step, str):
        assert side.ended
    elif step.outcome is None:
        assert data[0] == FrameKind.SLICES
    else:
        assert isinstance(step.outcome, FallBack)


def test_counts_that_lie_make_no_column_overflow() -> None:
    for count in (0, 1 << 40, (1 << 63) - 1):
        joined, receiver, frame = sent_until(FrameKind.SLICES)
        at = 1 + 32
        end = at + len(varint(joined.sides[1].own_count))
        step = joined.sides[receiver].receive(frame[:at] + varint(count) + frame[end:])
        assert not isinstance(step.outcome, CompactResult)
