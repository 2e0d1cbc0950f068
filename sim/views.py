"""The views of a simulated node: the shipped ones, and a judge who looks at what they show."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from reconcile.ids import END, SyncId
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from sim.index import SimColdView, SimIds
from sim.marks import Mark
from sim.process import Process
from store.sync.index.hot import HotIndex
from store.sync.index.views import IndexedReconcilable, StoredView
from store.sync.limits import FRESH_NS


class JudgedView(StoredView):
    """A view, with everything that it shows of the range that it was opened for.

    ``asked_ns``: the node's clock before it was opened.
    """

    def __init__(self, view: StoredView, lower: SyncId, upper: SyncId, asked_ns: int) -> None:
        super().__init__(view._opener, view._stack, view.horizon, view._hot, view._cold)
        self.asked_ns = asked_ns
        self.shown = _shown(view, lower, upper)


class JudgedViews(IndexedReconcilable):
    """Opens views; the judge is told of each."""

    def __init__(self, process: Process, stored: SimIds, hot: HotIndex) -> None:
        super().__init__(stored, hot, process.scenario.index)
        self._process = process

    @asynccontextmanager
    async def open_view(
        self, lower: SyncId, upper: SyncId, *, recent: bool = False
    ) -> AsyncIterator[JudgedView]:
        """Fix what is held in a range."""
        process, database = self._process, self._process.database
        asked_ns = process.clock.unix_ns()
        new = database.added_by_others(process, FRESH_NS) if recent else set()
        durable = [each for each in database.ids if lower <= each < upper and each not in new]
        async with super().open_view(lower, upper, recent=recent) as opened:
            mark = Mark.LAYERED if opened._hot else Mark.COLD
            process.mark(Mark.HOT if opened._cold is None else mark)
            view = JudgedView(opened, lower, upper, asked_ns)
            process.judge.opened(view.shown, durable, database, max(lower, view.horizon))
            yield view


def _shown(view: StoredView, lower: SyncId, upper: SyncId) -> list[SyncId]:
    floor = view._hot.floor if view._hot is not None else upper
    shown: list[SyncId] = []
    if isinstance(view._cold, SimColdView):
        shown += view._cold.snapshot.between(lower, min(upper, floor))
    start = max(lower, floor)
    if view._hot is not None and start < upper:
        spans = Spans.of([(start, min(upper, END))])
        items = view._hot.view.answer(Read(items=spans)).items
        assert items is not None
        shown += items.ids.pairs()
    return shown
