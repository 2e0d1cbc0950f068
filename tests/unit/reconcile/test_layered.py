"""An index over summaries answers as one view of everything does, wherever the floor is."""

import random

import numpy as np
import pytest

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.layered import LayeredView, reads_below
from reconcile.summaries.summary import SummaryView
from reconcile.view import Read, Spans
from tests.support.naive_storage import NaiveStorage, answer
from tests.support.naive_view import NaiveView
from tests.unit.reconcile.answers import check_answer, random_read
from tests.unit.reconcile.worlds import (
    BASE,
    DAY,
    HOUR,
    MINUTE,
    NO_HASH,
    WORLDS,
    hash_of,
    random_bound,
    random_spans,
)

SMALL = SummaryLimits(kept_ids=40, ids_at_once=7, kept_buckets=30, parents_at_once=2, few_ids=0)
EVERYTHING = Spans.of([(LOWEST, END)])


def layered(
    storage: NaiveStorage, floor: SyncId, limits: SummaryLimits = DEFAULT_SUMMARY_LIMITS
) -> LayeredView:
    hot = IndexView.of(SyncIds.of(each for each in storage.ids if each >= floor))
    return LayeredView(hot, floor, SummaryView(storage.buckets(HOUR), (MINUTE,), limits))


@pytest.mark.parametrize("limits", [DEFAULT_SUMMARY_LIMITS, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_answer_is_that_of_a_list(world: str, limits: SummaryLimits) -> None:
    for seed in range(6):
        dice = random.Random(f"layers {world} {seed}")
        storage = NaiveStorage.of(WORLDS[world](dice, dice.choice((1, 3, 40, 200))))
        oracle = NaiveView(storage.ids)
        view = layered(storage, (random_bound(dice, storage.ids)[0], NO_HASH), limits)
        for _ in range(3):
            spans = random_spans(dice, storage.ids, dice.choice((1, 2, 10, 40)))
            read = random_read(dice, oracle, spans)
            check_answer(oracle, read, answer(view, storage, read))


def test_a_range_above_the_floor_needs_nothing() -> None:
    dice = random.Random(1)
    storage = NaiveStorage.of((BASE + dice.randrange(DAY), hash_of(dice)) for _ in range(100))
    floor = (BASE + 7 * HOUR + 1, NO_HASH)
    view = layered(storage, floor)
    spans = Spans.of([(floor, (BASE + 8 * HOUR, NO_HASH)), ((BASE + 9 * HOUR + 3, NO_HASH), END)])
    read = random_read(dice, NaiveView(storage.ids), spans)
    assert not reads_below(read, floor)
    check_answer(NaiveView(storage.ids), read, answer(view, storage, read))
    assert not storage.needs


def test_what_is_asked_below_the_floor_is_noticed() -> None:
    floor = (BASE, NO_HASH)
    below, above = Spans.of([((BASE - 1, NO_HASH), END)]), Spans.of([(floor, END)])
    one, words = np.array([1]), np.zeros((1, 4), np.uint64)
    assert reads_below(Read(measure=below), floor)
    assert reads_below(Read(measure=above, split=(below, one)), floor)
    assert reads_below(Read(items=below), floor)
    assert reads_below(Read(probe=(below, words)), floor)
    assert not reads_below(Read(above, (above, one), above, (above, words)), floor)
    assert not reads_below(Read(measure=Spans.empty()), floor)


def test_parts_are_even_over_the_floor() -> None:
    dice = random.Random(2)
    storage = NaiveStorage.of((BASE + dice.randrange(DAY), hash_of(dice)) for _ in range(2_000))
    for hour in (1, 12, 23):
        view = layered(storage, (BASE + hour * HOUR, NO_HASH))
        parts = answer(view, storage, Read(split=(EVERYTHING, np.array([10])))).parts
        assert parts is not None
        assert 8 <= len(parts.counts) <= 12
        assert 100 <= parts.counts.min() <= parts.counts.max() <= 320


def test_what_is_not_wanted_in_parts_is_one_part_over_the_floor() -> None:
    storage = NaiveStorage.of([(BASE, NO_HASH), (BASE + DAY, NO_HASH)])
    view = layered(storage, (BASE + HOUR, NO_HASH))
    parts = answer(view, storage, Read(split=(EVERYTHING, np.array([1])))).parts
    assert parts is not None
    assert parts.counts.tolist() == [2]


def test_a_floor_inside_a_nanosecond_is_refused() -> None:
    storage = NaiveStorage.of([(BASE, NO_HASH)])
    with pytest.raises(ValueError, match="inside a nanosecond"):
        layered(storage, (BASE, b"\1" * 32))
