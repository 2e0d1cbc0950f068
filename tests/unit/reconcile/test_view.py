"""Spans, and the naive view that all other views are compared with."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcile.codec import expressible
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.view import Spans, no_fingerprints
from reconcile.view import ViewRead as Read
from tests.support.naive_view import NaiveView, can_follow, fingerprint, steps_to

NO_HASH = bytes(32)


def at(timestamp: int, first: int = 0) -> SyncId:
    return timestamp, bytes([first]) + bytes(31)


def test_spans_are_columns_of_pairs() -> None:
    pairs = [(at(1), at(2)), (at(2), at(2, 5)), (at(7), END)]
    spans = Spans.of(pairs)
    assert len(spans) == 3
    assert spans.pairs() == pairs
    assert spans[1:].pairs() == pairs[1:]
    assert spans[np.array([0, 2])].pairs() == [pairs[0], pairs[2]]
    assert spans[np.array([True, False, True])].pairs() == [pairs[0], pairs[2]]
    assert Spans.empty().pairs() == []
    spans.check()


@pytest.mark.parametrize(
    "pairs",
    [
        [(at(2), at(2))],
        [(at(3), at(2))],
        [(at(2, 5), at(2, 5))],
        [(at(1), at(5)), (at(4), at(9))],
        [(at(4), at(9)), (at(1), at(2))],
    ],
)
def test_spans_that_are_empty_overlap_or_descend_are_found_out(
    pairs: list[tuple[SyncId, SyncId]],
) -> None:
    with pytest.raises(AssertionError):
        Spans.of(pairs).check()


def test_fingerprints_of_nothing() -> None:
    assert no_fingerprints(3).shape == (3, 4)
    assert not no_fingerprints(3).any()


def test_a_naive_view_on_paper() -> None:
    a, b, c = at(5, 0x0F), at(5, 0xF0), at(9, 0x01)
    view = NaiveView([c, a, b, a])
    spans = Spans.of([(LOWEST, at(5, 0xF0)), (at(6), END)])
    answer = view.answer(
        Read(
            measure=spans,
            split=(Spans.of([(LOWEST, END)]), np.array([3])),
            items=spans,
            probe=(spans, SyncIds.of([a, b]).words),
        )
    )
    assert answer.measured is not None
    assert answer.measured.counts.tolist() == [1, 1]
    assert answer.measured.fingerprints.tobytes() == a[1] + c[1]
    assert answer.items is not None
    assert answer.items.offsets.tolist() == [0, 1, 2]
    assert answer.items.ids.pairs() == [a, c]
    assert answer.parts is not None
    assert answer.parts.upper.pairs() == [at(5), at(5, 0xF0), at(9), END]
    assert answer.parts.counts.tolist() == [0, 1, 1, 1]
    assert answer.probed is not None
    assert answer.probed.hit.tolist() == [True, False]
    assert answer.probed.found.pairs()[0] == a
    assert fingerprint([a, b, c]) == b"\xfe" + bytes(31)
    empty = view.answer(Read())
    assert (empty.measured, empty.parts, empty.items, empty.probed) == (None, None, None, None)


bytes_ = st.sampled_from([0, 1, 2, 255])
drawn = st.tuples(
    st.integers(0, 2), st.tuples(bytes_, bytes_, bytes_).map(lambda head: bytes(head) + bytes(29))
)


@given(previous=drawn, target=drawn)
def test_steps_lead_there_and_the_codec_agrees(previous: SyncId, target: SyncId) -> None:
    can = bool(expressible(SyncIds.of([previous]), SyncIds.of([target]))[0])
    assert can == can_follow(previous, target)
    if target > previous:
        steps = [previous, *steps_to(previous, target)]
        assert steps[-1] == target
        assert all(can_follow(*pair) for pair in pairwise(steps))
        assert (len(steps) == 2) == can


@settings(deadline=None)
@given(ids=st.sets(drawn, max_size=40), wanted=st.integers(1, 20))
def test_naive_parts_tile_their_span_with_bounds_that_follow(ids: set[SyncId], wanted: int) -> None:
    view = NaiveView(ids)
    parts = view.answer(Read(split=(Spans.of([(LOWEST, END)]), np.array([wanted])))).parts
    assert parts is not None
    bounds = [LOWEST, *parts.upper.pairs()]
    assert bounds[-1] == END
    assert all(can_follow(*pair) for pair in pairwise(bounds[:-1]))
    assert int(parts.counts.sum()) == len(ids)
    if len(ids) > 1 and wanted > 1:
        assert int(parts.counts.max()) < len(ids)
