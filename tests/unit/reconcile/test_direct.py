"""A payload answered by one compiled call: the same as a turn, and only what is usual.

Without a kernel every payload is answered by a turn, and both sides of a comparison are the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from reconcile import kernel
from reconcile.ids import SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.limits import CodecLimits, SessionLimits
from reconcile.session import Result
from reconcile.summaries.summary import SummaryView
from reconcile.view import Spans
from tests.support.naive_view import NaiveStorage, NaiveView, run
from tests.support.reconcile_pair import Node, initiator, join, responder
from tests.unit.reconcile.answers import Asked, check_answers, on_both
from tests.unit.reconcile.worlds import WORLDS, chunked, random_spans

YEAR = 10**16
HEAD = 4  # bytes of a payload in front of its ranges


def stored(ids: list[SyncId]) -> MemoryView:
    return MemoryView(chunked(sorted(ids), 300))


def differing(seed: int, count: int, apart: int) -> list[list[SyncId]]:
    """Return what two sides have, at a time each."""
    rng = random.Random(seed)
    ids = [(time_ns, rng.randbytes(32)) for time_ns in rng.sample(range(YEAR), count + apart)]
    return [sorted(ids[apart // 2 :]), sorted(ids[: apart // 2] + ids[apart:])]


def said(nodes: tuple[Node, Node]) -> tuple[list[bytes], list[Result]]:
    results = join(*nodes)
    return nodes[0].payloads + nodes[1].payloads, list(results)


@pytest.mark.parametrize("apart", [0, 1, 2, 30, 500, 4_000])
@pytest.mark.parametrize("horizon", [0, YEAR // 3])
def test_what_is_usual_takes_one_call(
    monkeypatch: pytest.MonkeyPatch, apart: int, horizon: int
) -> None:
    sets = differing(apart + horizon, 6_000, apart)
    bound = (horizon, bytes(32))

    def nodes() -> tuple[Node, Node]:
        return initiator(stored(sets[0])), responder(stored(sets[1]), horizon=bound)

    read: list[Spans] = []
    above = MemoryView._above

    def watched(view: MemoryView, spans: Spans) -> IndexView:
        read.append(spans)
        return above(view, spans)

    monkeypatch.setattr(MemoryView, "_above", watched)
    usual = said(nodes())
    # The initiator measures its window; each payload is answered by one call.
    assert len(read) == 1 or kernel.compiled is None
    with kernel.python_only():
        assert said(nodes()) == usual


@pytest.mark.parametrize("world", WORLDS)
def test_in_any_world_both_find_the_same(world: str) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        ids = sorted(set(WORLDS[world](rng, rng.choice((2, 60, 900)))))
        sets = [[each for each in ids if rng.random() < share] for share in (0.9, 0.97)]
        limits = SessionLimits(
            payload=CodecLimits(
                max_payload_bytes=rng.choice((9_000, 10**6)),
                max_ranges=rng.choice((70, 10**5)),
                max_elements=rng.choice((50, 10**5)),
            ),
            max_rounds=1_000,
            max_differences=rng.choice((20, 10**5)),
        )

        def nodes(sets: list[list[SyncId]], limits: SessionLimits) -> tuple[Node, Node]:
            first, second = stored(sets[0]), stored(sets[1])
            return initiator(first, limits=limits), responder(second, limits=limits)

        compiled = said(nodes(sets, limits))
        with kernel.python_only():
            assert said(nodes(sets, limits)) == compiled


def test_an_index_does_not_answer_for_what_it_lacks() -> None:
    sets = differing(5, 2_000, 40)
    lower = sets[0][10]
    for start_ns, answers in ((lower[0], True), (lower[0] + 1, False)):
        storage = NaiveStorage(sets[1])
        layered = SummaryView(storage.buckets(10**13), ())
        floor = (start_ns, bytes(32))
        layered.cover_above(floor, IndexView.of(SyncIds.of(i for i in sets[1] if i >= floor)))
        window = ((lower[0], bytes(32)), (2**63 - 1, bytes(32)))
        second = responder(layered)
        second.load = storage.load
        whole = said((initiator(stored(sets[0]), window=window), second))
        assert not storage.needs or not answers
        assert second.session._usual == answers
        plain = said((initiator(stored(sets[0]), window=window), responder(NaiveView(sets[1]))))
        assert whole[1][0].to_send == plain[1][0].to_send
        assert whole[1][0].to_receive == plain[1][0].to_receive


def test_a_planner_that_gives_something_else_is_refused() -> None:
    if kernel.compiled is None:
        return
    own = kernel.compiled
    view, peer = chunked(differing(1, 50, 0)[0], 300), initiator(stored(differing(2, 50, 0)[0]))
    sent = peer.begin()
    assert sent is not None
    payload = sent.payload
    numbers = np.array([10**6, 10**6, 10**6, 10**6, 0, 2**63 - 1, 0])
    whole = np.zeros(2, np.int64).tobytes()
    answers = [(None, whole), (b"", whole), (b"\0", None), (b"\0", whole[1:])]
    answers += [(b"\0", np.array(pair).tobytes()) for pair in ((-1, 0), (0, -1))]
    for searched, parts in answers:
        planner = Mock(search=Mock(return_value=searched), parts=Mock(return_value=parts))
        with pytest.raises(ValueError, match="fit"):
            own.reply(view.handle, payload, HEAD, numbers, planner)
    with pytest.raises(AttributeError):
        own.reply(view.handle, payload, HEAD, numbers, None)


# Compiled code and arrays come to the same, on everything and byte for byte


def whole_times(spans: Spans) -> Spans:
    """Return spans whose bounds have no hashes, those of them that are not empty."""
    pairs = [((low, bytes(32)), (up, bytes(32))) for (low, _), (up, _) in spans.pairs()]
    return Spans.of([(lower, upper) for lower, upper in pairs if lower < upper])


# Asking the index


@pytest.mark.parametrize("world", WORLDS)
def test_an_index_answers_alike(world: str) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        ids = sorted(set(WORLDS[world](rng, rng.choice((0, 1, 40, 400)))))
        for view in (IndexView.of(SyncIds.of(ids)), chunked(ids, 32)):
            spans = random_spans(rng, ids, rng.choice((1, 9, 90)))
            for asked in (spans, whole_times(spans)):
                oracle = NaiveView(ids)
                questions = Asked.random(rng, oracle, asked)
                for answers in on_both(partial(answered, view, questions)):
                    check_answers(oracle, questions, answers)


def answered(view: IndexView, asked: Asked) -> list[Any]:
    return [run(work) for work in asked.of(MemoryView(view))]


# What holds of compiled code alone


def test_columns_that_do_not_fit_are_refused() -> None:
    ids = SyncIds.of([(1, bytes(32)), (2, bytes(32))])
    handle = IndexView.of(ids).handle
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    hashes, far = np.zeros((2, 32), np.uint8), np.array([0, 3])
    frozen = np.zeros(2, np.int64)
    frozen.flags.writeable = False
    seven, none, flags = np.zeros(7, np.int64), np.zeros(0, np.int64), np.zeros(2, np.bool_)

    def no_plan(_stored: int, _sample: bytes) -> tuple[kernel.Column, ...]:
        return ()

    own = kernel.compiled
    if own is None:
        return
    refused: list[Callable[[], object]] = [
        partial(own.survey_slices, handle, *(two,) * 3, far, two, flags, none, none, two, flags),
        partial(own.parse, b"\1\0", 3, 1, 1),
        partial(own.parse, b"\1\0", 0, -1, 1),
        partial(own.probe, handle, two, far, hashes, two, hashes, flags),
        partial(own.probe, handle, far, two, hashes, two, hashes, flags),
        partial(own.probe, handle, two, one, hashes, two, hashes, flags),
        partial(
            own.probe,
            (handle[0], handle[1], two, handle[3]),
            *(two, two, hashes, two, hashes, flags),
        ),
        partial(own.encode, b"", two, hashes, one, hashes, one, one, two, hashes),
        partial(own.reply, handle, b"\1\0", 2, one, no_plan),
        partial(own.reply, handle, b"\1\0", 3, seven, no_plan),
        partial(own.reply, handle, b"\1\0", 2, seven - 1, no_plan),
        partial(own.reply, (handle[0], handle[1], one, handle[3]), b"\1\0", 2, seven + 1, no_plan),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=r"fit|whole rows|negative"):
            call()
    with pytest.raises((ValueError, BufferError), match=r"read-only|not writable|writeable"):
        own.probe(handle, two, two, hashes, frozen, hashes, flags)
