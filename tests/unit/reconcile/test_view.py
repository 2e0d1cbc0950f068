"""Spans, and the naive view that all other views are compared with."""

import numpy as np
import pytest

from reconcile.ids import END, SyncId
from reconcile.view import Spans


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
