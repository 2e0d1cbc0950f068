"""The view over summaries answers as one over a list does, and takes little memory."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from reconcile.errors import AnswerTooLargeError, SummaryMismatchError
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import IndexView
from reconcile.limits import DEFAULT_SUMMARY_LIMITS, SummaryLimits
from reconcile.summaries.summary import (
    NeedBuckets,
    NeedHashes,
    NeedIds,
    SummaryView,
    proceed,
    reads_below,
)
from reconcile.view import Spans
from reconcile.view import ViewAnswer as Answer
from reconcile.view import ViewRead as Read
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
            read = random_read(rng, oracle, spans)
            if limits is SMALL and read.split is not None:
                read = Read(
                    read.measure, (spans, read.split[1].clip(0, 64)), read.items, read.probe
                )
            check_answer(oracle, read, answer(view, storage, read))


def test_whole_buckets_are_measured_without_loading() -> None:
    rng = random.Random(1)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(500))
    view = view_of(storage)
    edges = [(BASE + hour * HOUR, NO_HASH) for hour in range(-2, 27)]
    read = Read(measure=Spans.of(list(pairwise(edges))))
    check_answer(NaiveView(storage.ids), read, answer(view, storage, read))
    assert not storage.needs


def test_a_long_history_is_cut_along_edges_without_loading_ids() -> None:
    rng = random.Random(2)
    storage = NaiveStorage.of((BASE + rng.randrange(9 * DAY), hash_of(rng)) for _ in range(3_000))
    view = view_of(storage, LEVELS[1])
    wanted = np.array([100])
    parts = answer(view, storage, Read(split=(EVERYTHING, wanted))).parts
    assert parts is not None
    assert 90 <= len(parts.counts) <= 110
    assert parts.counts.max() <= 60
    assert not parts.upper[:-1].words.any()
    assert bool(np.all(parts.upper.timestamps[:-1] % MINUTE == 0))
    assert not any(isinstance(needs, NeedIds) for needs in storage.needs)


def test_one_read_needs_each_kind_once() -> None:
    rng = random.Random(3)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(3_500))
    bounds = sorted((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(301))
    read = Read(measure=Spans.of(list(pairwise(bounds))))
    check_answer(NaiveView(storage.ids), read, answer(view_of(storage), storage, read))
    assert [type(needs) for needs in storage.needs] == [NeedBuckets, NeedIds]


def test_of_few_ids_no_shorter_buckets_are_read() -> None:
    rng = random.Random(14)
    storage = NaiveStorage.of((BASE + rng.randrange(9 * DAY), hash_of(rng)) for _ in range(2_000))
    view, oracle = view_of(storage, LEVELS[1]), NaiveView(storage.ids)
    spans = random_spans(rng, storage.ids, 60)
    read = random_read(rng, oracle, spans)
    check_answer(oracle, read, answer(view, storage, read))
    assert {needs.length_ns for needs in storage.needs if isinstance(needs, NeedBuckets)} == {HOUR}


def test_what_was_loaded_serves_the_next_read_too() -> None:
    rng = random.Random(4)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(500))
    view, oracle = view_of(storage), NaiveView(storage.ids)
    spans = Spans.of([((BASE + 1, NO_HASH), (BASE + MINUTE - 1, NO_HASH))])
    read = Read(split=(spans, np.array([10])))
    parts = answer(view, storage, read).parts
    assert parts is not None
    loaded = len(storage.needs)
    bounds = [*spans.lower.pairs(), *parts.upper.pairs()]
    again = Read(measure=(pieces := Spans.of(list(pairwise(bounds)))), items=pieces)
    check_answer(oracle, again, answer(view, storage, again))
    assert len(storage.needs) == loaded


def test_items_are_read_and_nothing_else() -> None:
    rng = random.Random(5)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(2_000))
    bounds = [(timestamp, NO_HASH) for timestamp, _ in storage.ids[100:140]]
    read = Read(items=Spans.of(list(pairwise(bounds))[::2]))
    check_answer(NaiveView(storage.ids), read, answer(view_of(storage), storage, read))
    assert storage.loaded_ids == 20


@pytest.mark.parametrize("world", ["minutes", "one nanosecond", "clustered"])
def test_memory_is_bounded_however_much_is_read(world: str) -> None:
    rng = random.Random(6)
    limits = SummaryLimits(
        kept_ids=300, ids_at_once=100, kept_buckets=50, parents_at_once=3, few_ids=0
    )
    storage = NaiveStorage.of(WORLDS[world](rng, 3_000))
    view, oracle = view_of(storage, LEVELS[1], limits), NaiveView(storage.ids)
    edge = (BASE + 5, b"\7" + bytes(31))
    spans = Spans.of([(LOWEST, edge), (edge, END)])
    for read in (
        Read(measure=spans),
        Read(split=(spans, np.array([7, 40]))),
        Read(split=(EVERYTHING, np.array([3]))),
        Read(measure=spans),
    ):
        reading = view.reading(read)
        needs = proceed(reading)
        while not isinstance(needs, Answer):
            if isinstance(needs, NeedIds):
                assert needs.limit == 100
            if isinstance(needs, NeedBuckets):
                assert len(needs.parents) <= 3
            needs = proceed(reading, storage.load(needs))
            assert view.kept_ids <= 300 + 100
            assert view.kept_slices <= 50 + 3 * 60
        check_answer(oracle, read, needs)


@pytest.mark.parametrize("limits", [DEFAULT_SUMMARY_LIMITS, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("world", WORLDS)
def test_splitting_again_and_again_ends_with_single_ids(world: str, limits: SummaryLimits) -> None:
    rng = random.Random(7)
    storage = NaiveStorage.of(WORLDS[world](rng, 60))
    view = view_of(storage, LEVELS[1], limits)
    spans, rounds = EVERYTHING, 0
    while len(spans):
        parts = answer(view, storage, Read(split=(spans, np.full(len(spans), 2)))).parts
        assert parts is not None
        pieces = parts.spans(spans.lower)
        spans, rounds = pieces[parts.counts > 1], rounds + 1
        assert rounds <= 40


def test_a_hash_that_is_elsewhere_is_no_hit() -> None:
    rng = random.Random(8)
    storage = NaiveStorage.of((BASE + number, hash_of(rng)) for number in range(50))
    view = view_of(storage)
    spans = Spans.of([((BASE, NO_HASH), (BASE + 10, NO_HASH)), ((BASE + 10, NO_HASH), END)])
    words = SyncIds.of([storage.ids[20], storage.ids[20]]).words
    probed = answer(view, storage, Read(probe=(spans, words))).probed
    assert probed is not None
    assert probed.hit.tolist() == [False, True]
    assert probed.found.at(1) == storage.ids[20]
    assert [type(needs) for needs in storage.needs] == [NeedHashes]


def test_no_more_hashes_are_looked_for_than_allowed() -> None:
    rng = random.Random(9)
    storage = NaiveStorage.of((BASE + number, hash_of(rng)) for number in range(50))
    view = view_of(storage, limits=SummaryLimits(probes=30))
    bounds = [*((timestamp, NO_HASH) for timestamp, _ in storage.ids), END]
    words = SyncIds.of(storage.ids).words
    read = Read(probe=(Spans.of(list(pairwise(bounds))), words))
    probed = answer(view, storage, read).probed
    assert probed is not None
    assert probed.hit.tolist() == [True] * 30 + [False] * 20


def test_no_more_items_are_read_than_an_answer_may_hold() -> None:
    rng = random.Random(10)
    storage = NaiveStorage.of((BASE + number, hash_of(rng)) for number in range(50))
    view = view_of(storage, limits=SummaryLimits(answer_ids=49, ids_at_once=10))
    with pytest.raises(AnswerTooLargeError, match="49"):
        answer(view, storage, Read(items=EVERYTHING))
    check_answer(
        NaiveView(storage.ids),
        read := Read(measure=EVERYTHING),
        answer(view, storage, read),
    )


def test_minutes_that_contradict_their_hour_are_noticed() -> None:
    rng = random.Random(11)
    storage = NaiveStorage.of((BASE + rng.randrange(HOUR), hash_of(rng)) for _ in range(50))
    view = view_of(storage, limits=SummaryLimits(few_ids=0))
    del storage.ids[20]
    with pytest.raises(SummaryMismatchError, match=f"from {BASE} to {BASE + HOUR} ns") as raised:
        answer(view, storage, Read(split=(EVERYTHING, np.array([4]))))
    assert (raised.value.start_ns, raised.value.end_ns) == (BASE, BASE + HOUR)
    storage.ids.append((BASE + 5 * HOUR, hash_of(rng)))
    read = Read(measure=Spans.of([((BASE + 1, NO_HASH), END)]))
    with pytest.raises(SummaryMismatchError):
        answer(view, storage, read)


def test_ids_that_contradict_their_minute_are_noticed() -> None:
    rng = random.Random(12)
    storage = NaiveStorage.of((BASE + rng.randrange(MINUTE), hash_of(rng)) for _ in range(50))
    view = SummaryView(storage.buckets(MINUTE), ())
    storage.ids[20] = storage.ids[20][0], hash_of(rng)
    with pytest.raises(SummaryMismatchError):
        answer(view, storage, Read(split=(EVERYTHING, np.array([4]))))


def test_a_read_that_is_left_does_not_stand_in_the_way_of_others() -> None:
    rng = random.Random(13)
    storage = NaiveStorage.of((BASE + rng.randrange(HOUR), hash_of(rng)) for _ in range(50))
    view, oracle = view_of(storage), NaiveView(storage.ids)
    left = Read(items=EVERYTHING)
    assert isinstance(proceed(view.reading(left)), NeedIds | NeedBuckets)
    read = Read(measure=Spans.of([((BASE + 1, NO_HASH), END)]))
    check_answer(oracle, read, answer(view, storage, read))
    check_answer(oracle, left, answer(view, storage, left))


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
    read = random_read(rng, NaiveView(storage.ids), spans)
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
    rng = random.Random(2)
    storage = NaiveStorage.of((BASE + rng.randrange(DAY), hash_of(rng)) for _ in range(2_000))
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
