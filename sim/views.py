"""What a reconciliation sees of a store: the index over a snapshot, fixed for as long as it lasts.

The two are taken one after the other, and commits may come between; whatever was durable when the
view was asked for is in it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from reconcile.ids import END, LOWEST, SyncId
from reconcile.index import IndexView
from reconcile.summaries.layered import LayeredView, reads_below
from reconcile.summaries.loading import LoadingView
from reconcile.summaries.summary import SummaryView
from reconcile.view import Answer, Read, Spans
from sim.hot import HotIndex, HotView
from sim.limits import MAX_COLD_VIEWS
from sim.marks import Mark
from sim.process import Process
from sim.snapshot import Snapshot
from sim.tasks import Steps

NO_HASH: Final = bytes(32)

_PORTIONS: Final = 20
"""Into how many pieces a read is cut, about, of which one takes so much less than a whole."""


class OpenView:
    """A view under way, to be closed.

    Attributes:
        horizon: below it nothing is compared.
        shown: everything that the view shows from its lower bound on, for the judge.
    """

    def __init__(
        self,
        views: Views,
        horizon: SyncId,
        hot: HotView | None,
        cold: tuple[Snapshot, LoadingView] | None,
    ) -> None:
        self.horizon = horizon
        self.shown: list[SyncId] = []
        self._views = views
        self._hot = hot
        self._cold = cold

    def answer(self, read: Read) -> Steps[Answer]:
        """Answer a batch of questions.

        Raises:
            Unavailable: the database does not answer.
        """
        process = self._views.process
        if self._cold is None or (self._hot and not reads_below(read, self._hot.floor)):
            assert self._hot is not None
            return self._hot.view.answer(read)
        snapshot, view = self._cold
        while (needs := view.needs(read)) is not None:
            loaded = yield from process.database.look(
                partial(snapshot.load, needs), _PORTIONS
            ).wait()
            view.load(loaded)
        return view.answer(read)

    def close(self) -> None:
        """It is not needed any more."""
        self._views.open -= 1


class Views:
    """Opens views of one process.

    Attributes:
        open: how many are.
    """

    def __init__(self, process: Process, index: HotIndex) -> None:
        self.process = process
        self.open = 0
        self._index = index

    def open_view(self, lower: SyncId, upper: SyncId) -> Steps[OpenView]:
        """Fix what is held in a half-open range.

        Raises:
            Unavailable: the database does not answer.
        """
        process, database = self.process, self.process.database
        durable = [each for each in database.ids if lower <= each < upper]
        place = yield from database.look(lambda: (database.position, database.horizon_ns)).wait()
        position, dropped_ns = place
        hot = yield from self._index.view_at(position, dropped_ns)
        cold = None
        if hot is None or lower < hot.floor:
            snapshot = yield from database.look(database.snapshot).wait()
            cold = snapshot, self._cold_view(hot, snapshot)
        process.mark(Mark.HOT if cold is None else Mark.LAYERED if hot else Mark.COLD)
        refused_ns = process.policy().horizon_ns or 0
        view = OpenView(self, (max(dropped_ns, refused_ns), NO_HASH), hot, cold)
        view.shown = _shown(hot, cold[0] if cold else None, lower, upper)
        process.judge.opened(view.shown, durable, database, max(lower, view.horizon))
        self.open += 1
        return view

    def check(self) -> None:
        """Verify the bound on open views.

        Raises:
            AssertionError: it is passed.
        """
        assert 0 <= self.open <= MAX_COLD_VIEWS, f"{self.open} views are open"

    def _cold_view(self, hot: HotView | None, snapshot: Snapshot) -> LoadingView:
        process = self.process
        lengths = process.scenario.lengths_ns
        summary = SummaryView(snapshot.top(), lengths[1:], process.scenario.summary)
        if hot is None:
            return summary
        return LayeredView(hot.view, hot.floor, summary)


def _shown(
    hot: HotView | None, cold: Snapshot | None, lower: SyncId, upper: SyncId
) -> list[SyncId]:
    floor = LOWEST if hot is None else hot.floor
    shown: list[SyncId] = []
    if cold is not None:
        shown += cold.between(lower, upper if hot is None else min(upper, floor))
    start = max(lower, floor)
    if hot is not None and start < upper:
        shown += _items(hot.view, start, min(upper, END))
    return shown


def _items(view: IndexView, lower: SyncId, upper: SyncId) -> list[SyncId]:
    items = view.answer(Read(items=Spans.of([(lower, upper)]))).items
    assert items is not None
    return items.ids.pairs()
