"""Compact frames of a peer that lies, or sends anything at all."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.compact import limits, session
from reconcile.compact.frames import (
    Answered,
    Cut,
    Decoded,
    Filled,
    Frame,
    Kind,
    Offer,
    Plain,
    Single,
    decode,
    encode,
    varints,
)
from reconcile.compact.keys import TALLIED
from reconcile.compact.outcome import FallBack, Found, Step
from reconcile.compact.session import Claim, Initiator, Responder
from reconcile.compact.table import Shape
from reconcile.errors import LimitExceeded, MalformedCompact
from reconcile.ids import SyncId, SyncIds
from reconcile.index import IndexView
from storenode.message.varint import varint
from tests.support.compact_pair import EVERYTHING, NONCES, Joined, compact_pair
from tests.unit.reconcile.test_compact import SOME, sets_of

XOR = np.arange(4, dtype=np.uint64)
NONE = np.empty(0, np.uint64)


def views_of(seed: int = 1) -> tuple[list[list[SyncId]], tuple[IndexView, IndexView]]:
    ids = sets_of(seed, 4_000, 60, 50, 10**6)
    first, second = (IndexView.of(SyncIds.of(own)) for own in ids)
    return ids, (first, second)


VIEWS = views_of()[1]


def cut(count: int, regions: int, print_bytes: int, seed: int = 0) -> Cut:
    rng = np.random.default_rng(seed)
    multiples = rng.integers(1, 1 << 20, count).cumsum()
    prints = rng.integers(0, 1 << 8 * print_bytes, count + regions, np.uint64)
    balances = rng.integers(-500, 500, count + regions)
    return Cut(3, multiples, prints, print_bytes, balances)


def frames() -> list[Frame]:
    differs = np.array([True, False, True])
    shape = Shape(4, 3, 2)
    cells = np.arange(shape.cells, dtype=np.uint64) << np.uint64(50)
    shorts = np.array([1, 2, 1 << 47], np.uint64)
    return [
        Offer(cut(2, 1, 2)),
        *(Plain(kind) for kind in (Kind.EQUAL, Kind.MORE, Kind.AGAIN, Kind.DONE, Kind.FAILED)),
        Single(Kind.FOUND, XOR),
        Single(Kind.LOOK, XOR, 7),
        Answered(XOR, 1 << 40, differs, cut(4, 2, 0)),
        Answered(XOR, 5, differs, cut(400, 2, 3)),
        Answered(XOR, 5, differs, cut(0, 2, 1), np.arange(TALLIED) - 70),
        Filled(None, shape, cells),
        Filled(differs, shape, cells),
        Filled(differs, shape, cells, np.array([False, True]), shorts[2:]),
        Filled(differs, shape, cells, np.array([False, False]), NONE),
        Filled(differs, shape, cells, np.array([True, False]), shorts[:1], by_prints=True),
        Filled(
            differs, shape, cells, np.array([False, True]), shorts[2:], np.array([True]), shorts
        ),
        Filled(
            differs, shape, cells, np.array([False, False]), NONE, np.array([True, False]), NONE
        ),
        Decoded(XOR, shorts[:2], 1, shorts),
        Decoded(XOR, NONE, 6, NONE),
    ]


def read(data: bytes) -> Frame:
    return decode(data, lambda differs: int(differs.sum()), 3)


@pytest.mark.parametrize("frame", frames(), ids=lambda frame: type(frame).__name__)
def test_frames_are_read_as_they_were_written(frame: Frame) -> None:
    data = encode(frame)
    assert encode(read(data)) == data
    for end in range(len(data)):
        with pytest.raises((MalformedCompact, LimitExceeded)):
            read(data[:end])
    with pytest.raises(MalformedCompact, match="Something follows"):
        read(data + b"\0")


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))))
@SOME
def test_columns_are_varints(values: list[int]) -> None:
    assert varints(np.array(values, np.int64)) == b"".join(map(varint, values))


@given(st.sampled_from(frames()), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_spoiled_frames_are_read_or_refused(frame: Frame, rng: random.Random) -> None:
    data = bytearray(encode(frame))
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        found = read(bytes(data))
    except (MalformedCompact, LimitExceeded):
        return
    assert encode(found) == bytes(data)


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = read(data)
    except (MalformedCompact, LimitExceeded):
        return
    assert encode(found) == data


def head(kind: Kind) -> bytes:
    return bytes((kind,))


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (head(Kind.OFFER) + b"\0" + varint(64), "max_slices"),
        (head(Kind.TABLE) + b"\0\4" + varint(129) + varint(1), "max_windows"),
        (head(Kind.TABLE) + b"\0\4" + varint(1) + varint(2**40), "max_cells"),
        (head(Kind.TABLE) + b"\3\0" + varint(2**40), "max_differences"),
        (head(Kind.RESULT) + bytes(32) + varint(2**50) + varint(0) + b"\6", "max_differences"),
        (bytes(limits.MAX_FRAME_BYTES + 1), "max_frame_bytes"),
    ],
)
def test_sizes_are_bounded_before_anything_is_allocated(data: bytes, limit: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        read(data)
    assert caught.value.limit == limit


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (head(Kind.OFFER) + b"\0\1\0", "do not ascend"),
        (head(Kind.OFFER) + b"\x3f\0", "multiples of 2"),
        (head(Kind.OFFER) + b"\x3e\1\5" + bytes(8), "past 2"),
        (head(Kind.OFFER) + b"\0\1" + b"\xff" * 9 + b"\1", "cut off or past"),
        (head(Kind.OFFER) + b"\0\1\x81\0" + bytes(8), "longer than it must be"),
        (head(Kind.RESULT) + bytes(32) + b"\2\0\1\5\5", "do not ascend"),
        (head(Kind.RESULT) + bytes(32) + b"\0\0\7", "have 1 to 6 bytes"),
        (head(Kind.TABLE) + b"\0\6\1\1", "no such shape"),
        (head(Kind.TABLE) + b"\5", "no such choice"),
        (head(Kind.TABLE) + b"\3\0\2" + 2 * b"\5\0\0\0\0\0", "do not ascend"),
        (head(Kind.SLICES) + bytes(32) + b"\0\7\5", "have 0 to 4"),
        (head(Kind.SLICES) + bytes(32) + b"\0\xf7", "stands for nothing"),
        (b"\xee", "No frame of this kind"),
    ],
)
def test_what_cannot_be_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(MalformedCompact, match=what):
        read(data)


def sent_until(kind: Kind) -> tuple[Joined, int, bytes]:
    """A session up to a frame of a kind: who is to receive it, and the frame."""
    joined = compact_pair(*VIEWS)
    frame, receiver = joined.sides[0].begin(), 1
    while frame[0] != kind:
        step = joined.sides[receiver].receive(frame)
        assert step.frame is not None
        frame, receiver = step.frame, 1 - receiver
    return joined, receiver, frame


KINDS = (Kind.OFFER, Kind.SLICES, Kind.TABLE, Kind.RESULT)


def answer_to(side: Initiator | Responder, data: bytes) -> Step | str:
    """What a side answers to a frame, or what it says against it."""
    try:
        return side.receive(data)
    except (MalformedCompact, LimitExceeded) as refusal:
        return str(refusal)


@given(st.sampled_from(KINDS), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_peer_that_lies_cannot_make_a_result_wrong(kind: Kind, rng: random.Random) -> None:
    joined, receiver, frame = sent_until(kind)
    data = bytearray(frame)
    data[rng.randrange(1, len(data))] ^= 1 << rng.randrange(8)
    side = joined.sides[receiver]
    step = answer_to(side, bytes(data))
    with kernel.python_only():
        plain, other_receiver, _ = sent_until(kind)
        again = answer_to(plain.sides[other_receiver], bytes(data))
    if isinstance(step, str) or isinstance(again, str):
        assert step == again
        assert side.ended
        return
    assert step.frame == again.frame
    assert type(step.outcome) is type(again.outcome)
    if isinstance(step.outcome, Found):
        own = VIEWS[receiver].rows.between(0, len(VIEWS[receiver])).pairs()
        other = VIEWS[1 - receiver].rows.between(0, len(VIEWS[1 - receiver])).pairs()
        assert step.outcome.to_send.pairs() == sorted(set(own) - set(other))


def test_what_is_told_twice_or_not_lacking_ends_in_a_base_session() -> None:
    for change in ("twice", "another"):
        joined, receiver, frame = sent_until(Kind.TABLE)
        side = joined.sides[receiver]
        assert side._slices is not None
        filled = decode(frame, slices=len(side._slices))
        assert isinstance(filled, Filled)
        assert len(filled.told) > 2
        told = filled.told.copy()
        told[1] = told[0] if change == "twice" else told[1] ^ np.uint64(1)
        step = side.receive(encode(replace(filled, told=told)))
        assert isinstance(step.outcome, FallBack)


def test_prints_that_are_wrong_end_in_a_base_session() -> None:
    ids = sorted(sets_of(9, 9_000, 0, 0, 10**9)[0])
    lacking = [{ids[place] for place in places} for places in ((900, 4_000), (2_000, 7_000))]
    for lie in ("nothing", "another", "one of both sides"):
        views = [IndexView.of(SyncIds.of([i for i in ids if i not in own])) for own in lacking]
        joined = compact_pair(views[0], views[1])
        answer = joined.sides[1].receive(joined.sides[0].begin()).frame
        assert answer is not None
        frame = joined.sides[0].receive(answer).frame
        side = joined.sides[1]
        assert frame is not None
        assert side._slices is not None
        filled = decode(frame, slices=len(side._slices))
        assert isinstance(filled, Filled)
        assert filled.by_prints
        assert len(filled.told) == 4
        assert len(filled.cells) == 1
        told = filled.told.copy()
        if lie == "another":
            told[1] ^= np.uint64(1)
        elif lie == "one of both sides":
            own, places = side._by_prints(filled)
            held = side._keys.short.of_places(side._held.rows, *places)
            wanted = next(short for short in own.tolist() if short not in held)
            given = next(short for short in held.tolist() if short not in own)
            told ^= np.where(np.sort(own) == wanted, np.uint64(wanted ^ given), np.uint64(0))
        step = side.receive(encode(replace(filled, told=told)))
        assert isinstance(step.outcome, Found if lie == "nothing" else FallBack), lie


def test_lists_that_are_wrong_end_in_a_base_session() -> None:
    first, second = (sorted(ids) for ids in sets_of(9, 20_000, 0, 30, 10**9))
    views = [IndexView.of(SyncIds.of(own)) for own in (first[:9_000] + first[9_400:], second)]
    for lie in ("all", "more", "less"):
        joined = compact_pair(views[0], views[1])
        answer = joined.sides[1].receive(joined.sides[0].begin()).frame
        assert answer is not None
        frame = joined.sides[0].receive(answer).frame
        side = joined.sides[1]
        assert frame is not None
        assert side._slices is not None
        filled = decode(frame, slices=len(side._slices))
        assert isinstance(filled, Filled)
        assert filled.listed is not None
        assert len(filled.named)
        if lie == "all":
            filled = replace(filled, listed=np.ones_like(filled.listed))
        elif lie == "more":
            named = np.union1d(filled.named, np.array([77], np.uint64))
            filled = replace(filled, named=named)
        else:
            filled = replace(filled, named=filled.named[1:])
        step = side.receive(encode(filled))
        assert not isinstance(step.outcome, Found), lie
        assert (step.frame == head(Kind.AGAIN)) == (lie == "all")


def test_lists_are_of_no_more_than_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, receiver, frame = sent_until(Kind.TABLE)
    side = joined.sides[receiver]
    assert side._slices is not None
    filled = decode(frame, slices=len(side._slices))
    assert isinstance(filled, Filled)
    assert filled.explained is not None
    listed = np.ones(int((~filled.explained).sum()), np.bool_)
    data = encode(replace(filled, listed=listed, named=NONE))
    monkeypatch.setattr(session, "MAX_CELLS", 100)
    step = side.receive(data)
    assert step.outcome == FallBack("more is listed than can be told")


def test_who_was_told_of_an_id_may_not_want_it() -> None:
    joined, receiver, frame = sent_until(Kind.RESULT)
    result = decode(frame)
    assert isinstance(result, Decoded)
    told = joined.sides[0]._choice.told
    mask = np.uint64((1 << 8 * result.wanted_bytes) - 1)
    wanted = np.union1d(result.wanted, told[:1] & mask)
    step = joined.sides[receiver].receive(encode(replace(result, wanted=wanted)))
    assert isinstance(step.outcome, FallBack)


def test_tables_that_never_empty_end_in_a_base_session() -> None:
    joined, receiver, frame = sent_until(Kind.TABLE)
    side = joined.sides[receiver]
    rng = np.random.default_rng(3)
    shape = Shape(4, 2_000, 16)
    for number in range(limits.MAX_TABLES):
        cells = rng.integers(0, 2**64 - 1, shape.cells, np.uint64)
        step = side.receive(encode(Filled(None, shape, cells)))
        assert (step.outcome is None) == (number < limits.MAX_TABLES - 1)
        assert step.frame is not None
    assert isinstance(step.outcome, FallBack)
    assert step.frame == head(Kind.FAILED)
    assert frame[0] == Kind.TABLE


def test_an_initiator_asks_for_three_tables_at_most() -> None:
    joined, receiver, frame = sent_until(Kind.SLICES)
    side = joined.sides[receiver]
    step = side.receive(frame)
    for _ in range(limits.MAX_TABLES):
        assert step.outcome is None
        step = side.receive(head(Kind.AGAIN))
    assert isinstance(step.outcome, FallBack)


def test_a_failure_of_the_initiator_revokes_what_the_responder_found() -> None:
    joined = compact_pair(*VIEWS)
    joined.run()
    assert isinstance(joined.outcomes[1], Found)
    assert isinstance(joined.sides[1].receive(head(Kind.FAILED)).outcome, FallBack)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_out_of_turn_are_refused(kind: Kind) -> None:
    for data in (encode(frame) for frame in frames() if not isinstance(frame, Answered)):
        joined, receiver, expected = sent_until(kind)
        if data[0] in (expected[0], Kind.FAILED) or (kind is Kind.SLICES and data[0] <= Kind.LOOK):
            continue
        if kind is Kind.RESULT and data[0] == Kind.AGAIN:
            continue
        with pytest.raises((MalformedCompact, LimitExceeded)):
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
    responder = Responder(VIEWS[1], EVERYTHING, NONCES, claim)
    if offered:
        step = responder.receive(offering.begin())
    else:
        offering.await_slices()
        step = Step(responder.begin())
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
        assert data[0] == Kind.SLICES
    else:
        assert isinstance(step.outcome, FallBack)


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_slices_that_were_spoiled_are_refused_or_looked_into(rng: random.Random) -> None:
    answers = []
    spoiled = [rng.random() for _ in range(3)]
    for python in (False, True):
        joined = compact_pair(*VIEWS)
        joined.sides[0].await_slices()
        data = bytearray(joined.sides[1].begin())
        data[int(spoiled[0] * len(data))] ^= 1 << int(8 * spoiled[1])
        with kernel.python_only() if python else pytest.MonkeyPatch.context():
            answers.append(answer_to(joined.sides[0], bytes(data)))
    compiled, plain = answers
    if isinstance(compiled, str) or isinstance(plain, str):
        assert compiled == plain
    else:
        assert compiled.frame == plain.frame


def test_counts_that_lie_make_no_column_overflow() -> None:
    for count in (0, 1 << 40, (1 << 63) - 1):
        joined, receiver, frame = sent_until(Kind.SLICES)
        at = 1 + 32
        end = at + len(varint(joined.sides[1].held_count))
        step = joined.sides[receiver].receive(frame[:at] + varint(count) + frame[end:])
        assert not isinstance(step.outcome, Found)
