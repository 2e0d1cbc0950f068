"""Checks of a view's answers, whichever bounds it chooses for parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from reconcile import kernel
from reconcile.ids import Ints, Words
from reconcile.view import Loading, SpanParts, Spans, View
from tests.support.naive_view import NaiveView, run
from tests.support.spec_peer import expressible

Result = TypeVar("Result")


def on_both(work: Callable[[], Result]) -> tuple[Result, Result]:
    """Return what compiled code gives, if it is there, and what arrays give."""
    first = work()
    with kernel.python_only():
        return first, work()


@dataclass(frozen=True)
class Asked:
    """Questions about spans: parts that are wanted of each, and hashes that may be in them."""

    spans: Spans
    wanted: Ints
    words: Words

    @classmethod
    def random(
        cls, rng: random.Random, oracle: NaiveView, spans: Spans, most: int = 10_000
    ) -> Asked:
        """Ask everything about some spans."""
        wanted = np.array(rng.choices((0, 1, 2, 3, 8, 64, most), k=len(spans)), np.int64)
        hashes = []
        for span in spans.pairs():
            inside = oracle.within(*span)
            known = rng.choice(inside or oracle.ids or [(0, bytes(32))])
            hashes.append(rng.choice((known[1], rng.choice(oracle.ids or [known])[1], b"x" * 32)))
        return cls(spans, wanted, np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 4))

    def of(self, view: View) -> list[Loading[Any]]:
        """Return the computations of all answers, about spans that no view has seen."""
        spans = Spans(self.spans.lower, self.spans.upper)
        return [
            view.measure(spans),
            view.split(spans, self.wanted),
            view.items(spans),
            view.probe(spans, self.words),
        ]


def check_answers(oracle: NaiveView, asked: Asked, answers: Sequence[Any]) -> None:
    """Compare answers with the oracle's, and parts with the rules of `SpanParts`."""
    measured, parts, items, probed = answers
    wanted, _, wanted_items, wanted_probed = (run(work) for work in asked.of(oracle))
    assert measured.counts.tolist() == wanted.counts.tolist()
    assert np.array_equal(measured.fingerprints, wanted.fingerprints)
    check_parts(oracle, asked.spans, asked.wanted, parts)
    assert items.offsets.tolist() == wanted_items.offsets.tolist()
    assert items.ids == wanted_items.ids
    assert probed.hit.tolist() == wanted_probed.hit.tolist()
    assert probed.found[probed.hit] == wanted_probed.found[probed.hit]


def check_parts(
    oracle: NaiveView,
    spans: Spans,
    wanted: np.ndarray,
    parts: SpanParts,
    largest: tuple[int, int] = (3, 1),
) -> None:
    """Check that parts tile the span, have expressible bounds and true sums, and make progress.

    ``largest``: the bound of a part's IDs: a factor of an even part's, and a number beside it.
    """
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
            assert expressible(previous, bound), (previous, bound)
            previous = bound
        assert previous < upper
        pieces += list(zip([lower, *bounds[:-1]], bounds, strict=True))
        counts = parts.counts[first:end]
        even = int(counts.sum()) / max(1, min(int(wanted[number]), int(counts.sum())))
        assert counts.max() <= largest[0] * even + largest[1], (counts.tolist(), even)
        if wanted[number] >= 2 and counts.sum() >= 2:
            assert np.count_nonzero(counts) >= 2
        elif wanted[number] <= 1:
            assert len(counts) == 1
    measured = oracle.measured(pieces)
    assert parts.counts.tolist() == measured.counts.tolist()
    assert np.array_equal(parts.fingerprints, measured.fingerprints)
