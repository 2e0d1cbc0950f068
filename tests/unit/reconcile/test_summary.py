"""The view over summaries answers as one over a list does, and takes little memory."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from reconcile.errors import AnswerTooLargeError, SummaryMismatchError
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, NeedBuckets, NeedIds, Needs, SpanParts, Spans, proceed
from tests.support.naive_view import NaiveStorage, NaiveView, run
from tests.unit.reconcile.answers import Asked, check_answers
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

LEVELS = [(HOUR, MINUTE), (DAY, HOUR, MINUTE), (MINUTE,)]
SMALL = SummaryLimits(
    kept_ids=40,
    ids_at_once=7,
    kept_buckets=30,
    parents_at_once=2,
    few_ids=0,
    spans_at_once=5,
    parts_at_once=64,
    probes=1_000,
)
EVERYTHING = Spans.of([(LOWEST, END)])


def view_of(
    storage: NaiveStorage,
    levels: Sequence[int] = LEVELS[0],
    limits: SummaryLimits = DEFAULT_SUMMARY_LIMITS,
) -> SummaryView:
    return SummaryView(storage.buckets(levels[0]), levels[1:], limits)


def check(view: SummaryView, storage: NaiveStorage, asked: Asked) -> None:
    """Compare all answers with those of a list."""
    answers = [run(work, storage.load) for work in asked.of(view)]
    check_answers(NaiveView(storage.ids), asked, answers)


def check_sums(view: SummaryView, storage: NaiveStorage, spans: Spans) -> None:
    """Compare counts and fingerprints with those of a list."""
    found = run(view.measure(spans), storage.load)
    expected = NaiveView(storage.ids).measured(spans.pairs())
    assert found.counts.tolist() == expected.counts.tolist()
    assert np.array_equal(found.fingerprints, expected.fingerprints)


def split(
    view: SummaryView, storage: NaiveStorage, parts: int, spans: Spans = EVERYTHING
) -> SpanParts:
    """Cut spans, by default all of time, into parts."""
    return run(view.split(spans, np.full(len(spans), parts)), storage.load)


@pytest.mark.parametrize("limits", [DEFAULT_SUMMARY_LIMITS, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("world", WORLDS)
def test_every_answer_is_that_of_a_list(world: str, limits: SummaryLimits) -> None:
    for seed in range(6):
        levels = LEVELS[seed // 2]
        rng = random.Random(f"{world} {seed}")
        storage = NaiveStorage.of(WORLDS[world](rng, rng.choice((1, 3, 40, 300))))
        view, oracle = view_of(storage, levels, limits), NaiveView(storage.ids)
        if seed % 2:
            floor = random_bound(rng, storage.ids)[0], NO_HASH
            memory = IndexView.of(SyncIds.of(each for each in storage.ids if each >= floor))
            view.cover_above(floor, memory)
        for _ in range(3):
            spans = random_spans(rng, storage.ids, rng.choice((1, 2, 10, 40)))
            most = 64 if limits is SMALL else 10_000
            check(view, storage, Asked.random(rng, oracle, spans, most))


def test_whole_buckets_are_measured_without_loading() -> None:
    rng = random.Random(1)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(500))
    view = view_of(storage)
    edges = [(BASE + hour * HOUR, NO_HASH) for hour in range(-2, 27)]
    check_sums(view, storage, Spans.of(list(pairwise(edges))))
    assert not storage.needs


def test_a_long_history_is_cut_along_edges_without_loading_ids() -> None:
    rng = random.Random(2)
    storage = NaiveStorage.of((BASE + rng.randrange(9 * DAY), hash_of(rng)) for _ in range(3_000))
    view = view_of(storage, LEVELS[1])
    parts = split(view, storage, 100)
    assert 90 <= len(parts.counts) <= 110
    assert parts.counts.max() <= 60
    assert not parts.upper[:-1].words.any()
    assert bool(np.all(parts.upper.timestamps[:-1] % MINUTE == 0))
    assert not any(isinstance(needs, NeedIds) for needs in storage.needs)


def test_one_read_needs_each_kind_once() -> None:
    rng = random.Random(3)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(3_500))
    bounds = sorted((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(301))
    check_sums(view_of(storage), storage, Spans.of(list(pairwise(bounds))))
    assert [type(needs) for needs in storage.needs] == [NeedBuckets, NeedIds]


def test_of_few_ids_no_shorter_buckets_are_read() -> None:
    rng = random.Random(14)
    storage = NaiveStorage.of((BASE + rng.randrange(9 * DAY), hash_of(rng)) for _ in range(2_000))
    view, oracle = view_of(storage, LEVELS[1]), NaiveView(storage.ids)
    spans = random_spans(rng, storage.ids, 60)
    check(view, storage, Asked.random(rng, oracle, spans))
    assert {needs.length_ns for needs in storage.needs if isinstance(needs, NeedBuckets)} == {HOUR}


def test_what_was_loaded_serves_the_next_read_too() -> None:
    rng = random.Random(4)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(500))
    view = view_of(storage)
    spans = Spans.of([((BASE + 1, NO_HASH), (BASE + MINUTE - 1, NO_HASH))])
    parts = split(view, storage, 10, spans)
    loaded = len(storage.needs)
    pieces = parts.spans(spans.lower)
    check_sums(view, storage, pieces)
    assert len(run(view.items(pieces), storage.load).ids) == parts.counts.sum()
    assert len(storage.needs) == loaded


def test_items_are_read_and_nothing_else() -> None:
    rng = random.Random(5)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(2_000))
    bounds = [(timestamp, NO_HASH) for timestamp, _ in storage.ids[100:140]]
    spans = Spans.of(list(pairwise(bounds))[::2])
    found = run(view_of(storage).items(spans), storage.load)
    assert found.ids == run(NaiveView(storage.ids).items(spans)).ids
    assert storage.loaded_ids == 20


@pytest.mark.parametrize("world", ["minutes", "one nanosecond", "clustered"])
def test_memory_is_bounded_however_much_is_read(world: str) -> None:
    rng = random.Random(6)
    limits = SummaryLimits(
        kept_ids=300, ids_at_once=100, kept_buckets=50, parents_at_once=3, few_ids=0
    )
    storage = NaiveStorage.of(WORLDS[world](rng, 3_000))
    view = view_of(storage, LEVELS[1], limits)
    edge = (BASE + 5, b"\7" + bytes(31))
    spans = Spans.of([(LOWEST, edge), (edge, END)])

    def load(needs: Needs) -> Loaded:
        if isinstance(needs, NeedIds):
            assert needs.limit == 100
        if isinstance(needs, NeedBuckets):
            assert len(needs.parents) <= 3
        assert view.kept_ids <= 300 + 100
        assert view.kept_slices <= 50 + 3 * 60
        return storage.load(needs)

    oracle = NaiveView(storage.ids)
    asked = Asked(spans, np.array([7, 40]), SyncIds.of(rng.choices(storage.ids, k=2)).words)
    for _ in range(2):
        check_answers(oracle, asked, [run(work, load) for work in asked.of(view)])
        run(view.split(EVERYTHING, np.array([3])), load)


def test_no_more_hashes_are_looked_for_than_allowed() -> None:
    rng = random.Random(9)
    storage = NaiveStorage.of((BASE + number, hash_of(rng)) for number in range(50))
    view = view_of(storage, limits=SummaryLimits(probes=30))
    bounds = [*((timestamp, NO_HASH) for timestamp, _ in storage.ids), END]
    words = SyncIds.of(storage.ids).words
    probed = run(view.probe(Spans.of(list(pairwise(bounds))), words), storage.load)
    assert probed.hit.tolist() == [True] * 30 + [False] * 20


def test_no_more_items_are_read_than_an_answer_may_hold() -> None:
    rng = random.Random(10)
    storage = NaiveStorage.of((BASE + number, hash_of(rng)) for number in range(50))
    view = view_of(storage, limits=SummaryLimits(answer_ids=49, ids_at_once=10))
    with pytest.raises(AnswerTooLargeError, match="49"):
        run(view.items(EVERYTHING), storage.load)
    check_sums(view, storage, EVERYTHING)


def test_minutes_that_contradict_their_hour_are_noticed() -> None:
    rng = random.Random(11)
    storage = NaiveStorage.of((BASE + rng.randrange(HOUR), hash_of(rng)) for _ in range(50))
    view = view_of(storage, limits=SummaryLimits(few_ids=0))
    del storage.ids[20]
    with pytest.raises(SummaryMismatchError, match=f"from {BASE} to {BASE + HOUR} ns") as raised:
        split(view, storage, 4)
    assert (raised.value.start_ns, raised.value.end_ns) == (BASE, BASE + HOUR)
    storage.ids.append((BASE + 5 * HOUR, hash_of(rng)))
    with pytest.raises(SummaryMismatchError):
        check_sums(view, storage, Spans.of([((BASE + 1, NO_HASH), END)]))


def test_ids_that_contradict_their_minute_are_noticed() -> None:
    rng = random.Random(12)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(50))
    view = SummaryView(storage.buckets(MINUTE), ())
    storage.ids[20] = storage.ids[20][0], hash_of(rng)
    with pytest.raises(SummaryMismatchError):
        split(view, storage, 4)


def test_a_read_that_is_left_does_not_stand_in_the_way_of_others() -> None:
    rng = random.Random(13)
    storage = NaiveStorage.of((BASE + rng.randrange(HOUR), hash_of(rng)) for _ in range(50))
    view = view_of(storage)
    assert isinstance(proceed(view.items(EVERYTHING)), NeedIds | NeedBuckets)
    check_sums(view, storage, Spans.of([((BASE + 1, NO_HASH), END)]))
    assert run(view.items(EVERYTHING), storage.load).ids.pairs() == storage.ids


# IDs in memory above a floor


def layered(
    storage: NaiveStorage, floor: SyncId, limits: SummaryLimits = DEFAULT_SUMMARY_LIMITS
) -> SummaryView:
    hot = IndexView.of(SyncIds.of(each for each in storage.ids if each >= floor))
    view = view_of(storage, limits=limits)
    view.cover_above(floor, hot)
    return view


def test_a_range_above_the_floor_needs_nothing() -> None:
    rng = random.Random(1)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(100))
    floor = (BASE + 7 * HOUR + 1, NO_HASH)
    view = layered(storage, floor)
    spans = Spans.of([(floor, (BASE + 8 * HOUR, NO_HASH)), ((BASE + 9 * HOUR + 3, NO_HASH), END)])
    check(view, storage, Asked.random(rng, NaiveView(storage.ids), spans))
    assert not storage.needs


def test_a_view_of_memory_alone_answers_nothing_below_its_floor() -> None:
    floor = (BASE, NO_HASH)
    view = MemoryView(IndexView.of(SyncIds.of([(BASE + 1, NO_HASH)])), floor)
    assert run(view.measure(Spans.of([(floor, END)]))).counts.tolist() == [1]
    with pytest.raises(AssertionError, match="below the floor"):
        run(view.measure(Spans.of([((BASE - 1, NO_HASH), END)])))


def test_a_floor_inside_a_nanosecond_is_refused() -> None:
    storage = NaiveStorage.of([(BASE, NO_HASH)])
    with pytest.raises(ValueError, match="inside a nanosecond"):
        layered(storage, (BASE, b"\1" * 32))
