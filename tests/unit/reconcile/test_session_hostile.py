"""Peers that are mistaken, odd or hostile: a correct result, or an error that says what it is."""

from __future__ import annotations

import random

import pytest

from reconcile.codec import MalformedPayloadError, PayloadLimitError
from reconcile.errors import SessionLimitError
from reconcile.ids import LOWEST, SyncId
from reconcile.limits import CodecLimits, SessionLimits
from reconcile.session import PayloadFrame as Received
from reconcile.session import Result
from reconcile.view import Items, Loading, Spans
from tests.support.naive_view import NaiveView
from tests.support.reconcile_pair import EVERYTHING, Node, initiator, join, responder, some_ids
from tests.support.spec_peer import FINGERPRINT, ITEM_SET, SKIP, Range, SpecPeer, read, xor

A: SyncId = (10, b"\x0a" * 32)
B: SyncId = (20, b"\x0b" * 32)
C: SyncId = (30, b"\x0c" * 32)
END = EVERYTHING[1]
ANY_XOR = b"\x55" * 32
HEAD = bytes([1, 2, 0, 3])


def at(time: int) -> SyncId:
    return time, bytes(32)


def payload(*ranges: Range) -> bytes:
    return SpecPeer([]).encode(list(ranges))


def begun(*ids: SyncId, window: tuple[SyncId, SyncId] = EVERYTHING) -> Node:
    """Return an initiator that waits for its first answer."""
    node = initiator(NaiveView(ids), window=window)
    node.begin()
    return node


def ended(node: Node) -> Result:
    """Return the result once the peer has nothing more to say."""
    if not node.session.ended:
        node.give(Received(b""))
    return node.result


def test_sets_that_were_not_asked_for_are_compared_all_the_same() -> None:
    node = begun(A, B)
    sent = node.give(
        Received(
            payload(
                Range(at(15), ITEM_SET, items=[]),
                Range(at(25), ITEM_SET, items=[B], reconciled=True),
                Range(END, ITEM_SET, items=[C], reconciled=True),
            )
        )
    )
    assert sent is not None
    shown = [item for item in read(sent.payload)[2] if item.kind != SKIP]
    assert [(item.items, item.reconciled) for item in shown] == [([A], True)]
    assert ended(node).to_send.pairs() == [A]
    assert node.result.to_receive.pairs() == [C]


def test_nothing_outside_the_window_is_compared() -> None:
    node = begun(A, B, C, window=(at(15), at(25)))
    sent = node.give(
        Received(
            payload(
                Range(at(12), ITEM_SET, items=[]),
                Range(at(18), ITEM_SET, items=[(13, ANY_XOR), (16, ANY_XOR)]),
                Range(at(22), ITEM_SET, items=[]),
                Range(at(28), FINGERPRINT, ANY_XOR),
                Range(END, FINGERPRINT, ANY_XOR),
            )
        )
    )
    assert sent is not None
    ranges = read(sent.payload)[2]
    assert ranges[0].kind == SKIP
    assert ranges[0].upper >= at(15)
    assert ranges[-1].upper == at(25)
    assert all(at(15) < item.upper <= at(25) for item in ranges)
    assert ended(node).to_send.pairs() == [B]
    assert node.result.to_receive.pairs() == [(16, ANY_XOR)]


def test_what_the_responder_was_first_asked_about_stays_its_window() -> None:
    node = responder(NaiveView([A, B, C]))
    node.give(Received(payload(Range(at(15), SKIP), Range(at(25), FINGERPRINT, ANY_XOR))))
    node.give(
        Received(
            payload(
                Range(at(12), ITEM_SET, items=[], reconciled=True),
                Range(END, ITEM_SET, items=[], reconciled=True),
            )
        )
    )
    assert ended(node).window == (at(15), at(25))
    assert node.result.to_send.pairs() == [B]


def test_only_skips_are_an_end() -> None:
    for node in (begun(A), responder(NaiveView([A]))):
        sent = node.give(Received(payload(Range(at(5), SKIP), Range(END, SKIP))))
        assert sent is not None
        assert sent.payload == b""
        assert node.result.to_send.pairs() == []


def test_an_empty_first_payload_is_an_end() -> None:
    node = responder(NaiveView([A]))
    assert node.give(Received(b"")) is None
    assert node.result.window == (LOWEST, LOWEST)
    assert node.result.own_count is None


def test_sets_that_contradict_each_other_are_each_reported_once() -> None:
    node = begun(A, B)
    without, with_b = (payload(Range(END, ITEM_SET, items=items)) for items in ([A, C], [B, C]))
    node.give(Received(without))
    node.give(Received(with_b))
    node.give(Received(without))
    assert ended(node).to_send.pairs() == [A, B]
    assert node.result.to_receive.pairs() == [C]


@pytest.mark.parametrize("side", ["initiator", "responder"])
@pytest.mark.parametrize("kind", [ITEM_SET, FINGERPRINT])
def test_what_never_agrees_ends_by_the_limit_on_rounds(side: str, kind: int) -> None:
    rng = random.Random(1)
    stored = some_ids(rng, 2_000, 10**6)
    node = begun(*stored) if side == "initiator" else responder(NaiveView(stored))

    def frame() -> Received:
        content = Range(END, FINGERPRINT, rng.randbytes(32))
        return Received(payload(Range(END, kind, items=[C]) if kind == ITEM_SET else content))

    for _ in range(63 if side == "initiator" else 64):
        node.give(frame())
    with pytest.raises(SessionLimitError, match="64 rounds"):
        node.give(frame())


def test_a_fingerprint_of_zero_over_what_is_stored() -> None:
    stored = sorted(some_ids(random.Random(2), 300, 10**6))
    node = responder(NaiveView(stored))
    sent = node.give(Received(payload(Range(END, FINGERPRINT, bytes(32)))))
    assert sent is not None
    items = [item for part in read(sent.payload)[2] for item in part.items]
    assert items == stored


def test_a_forged_difference_misleads_no_further_than_its_range() -> None:
    # The fingerprint pretends that the peer lacks A alone; in truth it lacks everything.
    node = responder(NaiveView([A, B, C]))
    forged = bytes(b ^ c for b, c in zip(B[1], C[1], strict=True))
    sent = node.give(Received(payload(Range(END, FINGERPRINT, forged))))
    assert sent is not None
    (skip, shown) = read(sent.payload)[2]
    assert (skip.kind, shown.kind, shown.items) == (SKIP, ITEM_SET, [A])
    assert ended(node).to_send.pairs() == [A]


@pytest.mark.parametrize("prefix", [b"\x4a\x35", b"\x4a\x35\x00\x01", b"\x01" * 32])
def test_bounds_that_an_encoder_would_not_write(prefix: bytes) -> None:
    # A decoder takes any prefix that gives a greater bound; the answer has to go around it.
    stored = [(5, bytes([first]) + b"\x01" * 31) for first in range(0, 250, 5)]
    for kind in (b"\x01" + ANY_XOR, b"\x02\x00\x00"):
        node = responder(NaiveView(stored))
        bound = b"\x05\x00" + b"\x00" + bytes([len(prefix)]) + prefix
        sent = node.give(Received(HEAD + bound + kind))
        assert sent is not None
        peer = SpecPeer([])
        peer.answer(sent.payload)
        node.give(Received(peer.answer(sent.payload)))
        inside = [item for item in stored if item < (5, prefix.ljust(32, b"\0"))]
        assert ended(node).to_send.pairs() == sorted(inside)
        assert peer.to_receive == set(inside)


def test_too_many_bounds_that_an_encoder_would_not_write() -> None:
    node = initiator(NaiveView([A]), limits=SessionLimits(max_cut_ranges=100))
    node.begin()
    body = b"\x05\x00"
    for step in range(20):
        body += b"\x00" + bytes([20]) + bytes([step + 1]) * 20 + b"\x01" + ANY_XOR
    with pytest.raises(PayloadLimitError, match="cut ranges"):
        node.give(Received(HEAD + body))


def test_random_changes_of_real_payloads_end_well_or_by_an_error() -> None:
    rng = random.Random(3)
    ids = some_ids(rng, 600, 300)
    first, second = initiator(NaiveView(ids[40:])), responder(NaiveView(ids[:-40]))
    join(first, second)
    for turn, frame in enumerate(first.payloads[:-1]):
        for _ in range(60):
            node = responder(NaiveView(ids[:-40]))
            for earlier in first.payloads[:turn]:
                node.give(Received(earlier))
            changed = bytearray(frame)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            try:
                node.give(Received(bytes(changed)))
                stored = set(ids[:-40])
                assert set(ended(node).to_send) <= stored
                assert not set(node.result.to_receive) & stored
            except (MalformedPayloadError, PayloadLimitError):
                pass


@pytest.mark.parametrize(
    "limits",
    [
        CodecLimits(max_payload_bytes=16_384),
        CodecLimits(max_ranges=200),
        CodecLimits(max_elements=60),
        CodecLimits(max_payload_bytes=16_384, max_ranges=400, max_elements=200),
    ],
)
@pytest.mark.parametrize("moments", [1, 40, 10**6])
@pytest.mark.parametrize("shape", ["mixed", "one has nothing", "all differ"])
def test_answers_keep_to_small_limits(limits: CodecLimits, moments: int, shape: str) -> None:
    rng = random.Random(7)
    ids = some_ids(rng, 1_200, moments)
    ours, theirs = {
        "mixed": (ids[100:], ids[:-100]),
        "one has nothing": ([], ids),
        "all differ": (ids[:600], ids[600:]),
    }[shape]
    several = SessionLimits(payload=limits, max_rounds=200)
    for mine, yours in ((ours, theirs), (theirs, ours)):
        first = initiator(NaiveView(mine), limits=several)
        second = responder(NaiveView(yours), limits=several)
        results = join(first, second)
        assert set(results[0].to_send) == set(results[1].to_receive) == set(mine) - set(yours)
        assert set(results[0].to_receive) == set(results[1].to_send) == set(yours) - set(mine)
        for data in first.payloads + second.payloads:
            assert len(data) <= limits.max_payload_bytes
            ranges = read(data)[2] if data else []
            assert len(ranges) <= limits.max_ranges
            assert sum(len(item.items) for item in ranges) <= limits.max_elements


def test_a_set_over_what_was_skipped_at_first_is_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is stored between the ranges of a first payload was not counted.
    stored = sorted(some_ids(random.Random(9), 3_000, 10**6))
    limits = SessionLimits(payload=CodecLimits(max_elements=100), max_differences=100)
    node = responder(NaiveView(stored), limits=limits)
    early, late = (stored[20][0], bytes(32)), (stored[-20][0], bytes(32))
    print_of = SpecPeer(stored).within
    first = [
        Range(early, FINGERPRINT, xor(print_of(LOWEST, early))),
        Range(late, SKIP),
        Range(END, FINGERPRINT, ANY_XOR),
    ]
    node.give(Received(payload(*first)))
    read: list[int] = []

    unwatched = node.view.items

    def watched(spans: Spans) -> Loading[Items]:
        items = yield from unwatched(spans)
        read.append(len(items.ids))
        return items

    monkeypatch.setattr(node.view, "items", watched)
    node.give(Received(payload(Range(early, SKIP), Range(late, ITEM_SET, items=[]))))
    assert 0 < max(read) <= 200


@pytest.mark.parametrize("limits", [{"max_ranges": 10}, {"max_payload_bytes": 100}])
def test_limits_that_no_session_could_keep_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="allow"):
        SessionLimits(payload=CodecLimits(**limits))
