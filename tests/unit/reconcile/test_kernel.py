"""Compiled code and arrays come to the same, on everything and byte for byte.

Where the kernel could not be built both are the arrays, and hold as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from reconcile import kernel
from reconcile.ids import SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.view import Spans
from tests.support.naive_view import NaiveView, run
from tests.unit.reconcile.answers import Asked, check_answers, on_both
from tests.unit.reconcile.worlds import WORLDS, chunked, random_spans


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
