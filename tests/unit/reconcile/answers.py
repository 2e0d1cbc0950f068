"""Checks of a view's answers, whichever bounds it chooses for parts."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from reconcile import kernel
from reconcile.view import SpanParts as Parts
from reconcile.view import Spans
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
from tests.support.naive_view import NaiveView, can_follow

Result = TypeVar("Result")


def on_both(work: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what compiled code gives, if it is there, and what arrays give."""
    first = work()
    with kernel.python_only():
        return first, work()


def random_read(rng: random.Random, oracle: NaiveView, spans: Spans) -> Read:
    """Ask everything about some spans."""
    wanted = np.array(rng.choices((0, 1, 2, 3, 8, 64, 10_000), k=len(spans)), np.int64)
    hashes = []
    for span in spans.pairs():
        inside = oracle.within(*span)
        known = rng.choice(inside or oracle.ids or [(0, bytes(32))])
        hashes.append(rng.choice((known[1], rng.choice(oracle.ids or [known])[1], b"x" * 32)))
    words = np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 4)
    return Read(measure=spans, split=(spans, wanted), items=spans, probe=(spans, words))


def check_answer(oracle: NaiveView, read: Read, answer: Answer) -> None:
    """Compare an answer with the oracle's, and parts with the rules of `Parts`."""
    expected = oracle.answer(replace(read, split=None))
    if read.measure is not None:
        assert answer.measured is not None
        assert expected.measured is not None
        assert answer.measured.counts.tolist() == expected.measured.counts.tolist()
        assert np.array_equal(answer.measured.fingerprints, expected.measured.fingerprints)
    if read.items is not None:
        assert answer.items is not None
        assert expected.items is not None
        assert answer.items.offsets.tolist() == expected.items.offsets.tolist()
        assert answer.items.ids == expected.items.ids
    if read.probe is not None:
        assert answer.probed is not None
        assert expected.probed is not None
        assert answer.probed.hit.tolist() == expected.probed.hit.tolist()
        hit = answer.probed.hit
        assert answer.probed.found[hit] == expected.probed.found[hit]
    if read.split is not None:
        assert answer.parts is not None
        check_parts(oracle, *read.split, answer.parts)


def check_parts(oracle: NaiveView, spans: Spans, wanted: np.ndarray, parts: Parts) -> None:
    """Check that parts tile the span, have expressible bounds and true sums, and make progress."""
    assert len(parts.offsets) == len(spans) + 1
    assert parts.offsets[0] == 0
    assert len(parts.upper) == len(parts.counts) == len(parts.fingerprints) == parts.offsets[-1]
    pieces = []
    for number, (lower, upper) in enumerate(spans.pairs()):
        first, end = int(parts.offsets[number]), int(parts.offsets[number + 1])
        assert first < end
        bounds = parts.upper[first:end].pairs()
        assert bounds[-1] == upper
        previous = lower
        for bound in bounds[:-1]:
            assert can_follow(previous, bound), (previous, bound)
            previous = bound
        assert previous < upper
        pieces += list(zip([lower, *bounds[:-1]], bounds, strict=True))
        counts = parts.counts[first:end]
        if wanted[number] >= 2 and counts.sum() >= 2:
            assert np.count_nonzero(counts) >= 2
            most = int(counts.sum()) / min(int(wanted[number]), int(counts.sum()))
            assert counts.max() <= 3 * most + 1, (counts.tolist(), most)
        elif wanted[number] <= 1:
            assert len(counts) == 1
    measured = oracle.answer(Read(measure=Spans.of(pieces))).measured
    assert measured is not None
    assert parts.counts.tolist() == measured.counts.tolist()
    assert np.array_equal(parts.fingerprints, measured.fingerprints)
