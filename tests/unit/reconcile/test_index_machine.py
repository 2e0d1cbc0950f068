"""Random life of an index against a set, with views that stay open beside it."""

from itertools import pairwise

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import Index, IndexView, MemoryView
from reconcile.view import Spans
from tests.support.naive_view import NaiveView, run
from tests.unit.reconcile.answers import Asked, check_answers

# Few values, so that IDs meet again, share a time and share the beginning of a hash.
bytes_ = st.sampled_from([0, 1, 255])
hashes = st.tuples(bytes_, bytes_, bytes_).map(
    lambda chosen: bytes([chosen[0], chosen[1], *bytes(29), chosen[2]])
)
times = st.one_of(st.integers(0, 6), st.integers(0, 60), st.sampled_from([2**62, 2**63 - 1]))
ids = st.tuples(times, hashes)
batches = st.lists(ids, max_size=40)
appended = st.lists(st.tuples(st.integers(0, 2), hashes), min_size=1, max_size=20)


def spans_between(bounds: list[SyncId]) -> Spans:
    """Return two of every three stretches between bounds: some touch, and some do not."""
    pairs = pairwise(sorted(set(bounds)))
    return Spans.of([pair for at, pair in enumerate(pairs) if at % 3 < 2])


def assert_same_answers(view: IndexView, naive: NaiveView, spans: Spans) -> None:
    wanted = np.zeros((len(spans), 4), np.uint64)
    for at, span in enumerate(spans.pairs()):
        inside = naive.within(*span)
        if inside:
            wanted[at] = np.frombuffer(inside[at % len(inside)][1], np.uint64)
    asked = Asked(spans, np.ones(len(spans), np.int64), wanted)
    ours = MemoryView(view)
    check_answers(naive, asked, [run(work) for work in asked.of(ours)])
    measured = naive.measured(spans.pairs())
    for at, (lower, upper) in enumerate(spans.pairs()):
        count, fingerprint = view.fingerprint(lower, upper)
        assert count == measured.counts[at]
        assert np.array_equal(fingerprint, measured.fingerprints[at])


class IndexLife(RuleBasedStateMachine):
    views: Bundle[tuple[IndexView, NaiveView]] = Bundle("views")

    def __init__(self) -> None:
        super().__init__()
        self.index = Index(min_chunk_ids=4)
        self.stored: set[SyncId] = set()

    @rule(batch=batches)
    def load(self, batch: list[SyncId]) -> None:
        self.index.load(SyncIds.of(batch))
        self.stored = set(batch)

    @rule(batch=batches)
    def insert(self, batch: list[SyncId]) -> None:
        self._insert(batch)

    def _insert(self, batch: list[SyncId]) -> None:
        new = set(batch) - self.stored
        assert self.index.insert(SyncIds.of(batch)) == len(new)
        self.stored |= new

    @rule(steps=appended)
    def append(self, steps: list[tuple[int, bytes]]) -> None:
        last = max((timestamp for timestamp, _ in self.stored if timestamp < 2**61), default=0)
        batch = []
        for step, hash_ in steps:
            last += step
            batch.append((last, hash_))
        self._insert(batch)

    @rule(before=ids)
    def prune(self, before: SyncId) -> None:
        kept = {stored for stored in self.stored if stored >= before}
        assert self.index.prune(before) == len(self.stored) - len(kept)
        self.stored = kept

    @rule(target=views)
    def open_view(
        self,
    ) -> tuple[IndexView, NaiveView] | MultipleResults[tuple[IndexView, NaiveView]]:
        if len(self.stored) > 300:
            return multiple()
        return self.index.view(), NaiveView(self.stored)

    @rule(opened=views, bounds=st.lists(ids, min_size=2, max_size=12))
    def read(self, opened: tuple[IndexView, NaiveView], bounds: list[SyncId]) -> None:
        view, naive = opened
        assert len(view) == len(naive.ids)
        assert_same_answers(view, naive, spans_between([LOWEST, *bounds, END]))

    @rule(opened=views, bounds=st.lists(ids, min_size=1, max_size=12))
    def rank(self, opened: tuple[IndexView, NaiveView], bounds: list[SyncId]) -> None:
        view, naive = opened
        for bound in bounds:
            assert view.rank(bound) == len(naive.within(LOWEST, bound))

    @rule(opened=consumes(views))
    def close_view(self, opened: tuple[IndexView, NaiveView]) -> None:
        view, naive = opened
        assert view.items(Spans.of([(LOWEST, END)])).ids.pairs() == [
            stored for stored in naive.ids if stored < END
        ]

    @invariant()
    def holds(self) -> None:
        self.index.check()
        assert len(self.index) == len(self.stored)
        everything = self.index.view()
        assert set(everything.between(0, len(everything)).pairs()) == self.stored


IndexLife.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestIndexLife = IndexLife.TestCase
