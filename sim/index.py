"""The index and the views of a simulated node: IDs, commits and their loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from reconcile.ids import END, SyncId, SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, Needs, Spans
from sim.database import DatabaseUnavailableError, Snapshot
from sim.limits import MAX_COLD_VIEWS
from sim.marks import Mark
from sim.process import Process
from store.domain.hub import CommitRow, Place
from store.domain.view import Newest, Span
from store.sync.index.hot import HotIndex
from store.sync.index.views import StoredView
from store.sync.limits import FRESH_NS

_T = TypeVar("_T")

_PORTIONS: Final = 20
"""Into how many pieces a read is cut, about, of which one takes so much less than a whole."""

_RETRY_S: Final = 1.0


class SimIds:
    """The IDs of a simulated database: a `store.domain.view.StoredIds`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._database = process.database
        self._open = 0

    @asynccontextmanager
    async def open_cold(self) -> AsyncIterator[SimColdView]:
        """Open a view of everything that is stored now."""
        self._open += 1
        try:
            snapshot = await self._database.look(self._database.snapshot)
            yield SimColdView(self._process, snapshot)
        finally:
            self._open -= 1

    async def newest(self, seen: Place) -> Newest:
        """Return the newest commit, and whether the database still has one that was seen."""
        return await self._database.look(partial(self._newest, seen))

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return the IDs that some commits have added and that are stored."""
        return await self._database.look(partial(self._database.ids_of, commits))

    def check(self) -> None:
        """Verify the bound on open views.

        Raises:
            AssertionError: it is passed.
        """
        assert self._open <= MAX_COLD_VIEWS, f"{self._open} views are open"

    def _newest(self, seen: Place) -> Newest:
        database = self._database
        return Newest(database.place, database.horizon_ns, database.is_served(seen))


class SimColdView:
    """A snapshot, which is lost when its database goes away."""

    def __init__(self, process: Process, snapshot: Snapshot) -> None:
        lengths = process.scenario.lengths_ns
        self.view = SummaryView(snapshot.top(), lengths[1:], process.scenario.summary)
        self.snapshot = snapshot
        self.place = snapshot.place
        self.horizon_ns = snapshot.horizon_ns
        self._database = process.database
        self._outages = process.database.outages

    async def load(self, needs: Needs) -> Loaded:
        """Load what the view needs."""
        return await self._look(partial(self.snapshot.load, needs))

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the lattice sums of ranges of time."""
        return await self._look(partial(self.snapshot.lattices, spans))

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view with their content digests."""
        return await self._look(partial(self.snapshot.contents, ids))

    async def _look(self, load: Callable[[], _T]) -> _T:
        return await self._database.look(load, _PORTIONS, since=self._outages)


class SimFeed:
    """A feed that reports commits to the index, in their order, as they come."""

    def __init__(self, process: Process, hot: HotIndex) -> None:
        self._process = process
        self._database = process.database
        self._hot = hot
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Begin with the index at the newest commit, and go on from there."""
        self._database.followers[self] = self._woken.set
        self._process.at_end.append(self._unfollow)
        head: Place | None = None
        while True:
            try:
                outages = self._database.outages
                head = await self._look_for(head)
                while True:
                    commits = await self._commits_after(head, outages)
                    self._hot.commits(commits)
                    head = commits[-1].place if commits else head
                    await self._woken.wait()
                    self._woken.clear()
            except DatabaseUnavailableError:
                await asyncio.sleep(_RETRY_S)

    def _unfollow(self) -> None:
        del self._database.followers[self]

    async def _look_for(self, head: Place | None) -> Place:
        database = self._database
        place, served = await database.look(
            lambda: (database.place, head is None or database.is_served(head))
        )
        if head is None:
            self._hot.start()
            return place
        if not served:
            self._process.mark(Mark.COMMITS_LOST)
            self._hot.lost()
            assert not self._hot.entries, "the index keeps what its database has lost"
            return place
        return head

    async def _commits_after(self, head: Place, outages: int) -> list[CommitRow]:
        database = self._database
        return await database.look(lambda: database.commits_after(head), since=outages)


class JudgedView(StoredView):
    """A view, with everything that it shows of the range that it was opened for.

    ``asked_ns``: the node's clock before it was opened.
    """

    def __init__(self, view: StoredView, lower: SyncId, upper: SyncId, asked_ns: int) -> None:
        vars(self).update(vars(view))
        self.asked_ns = asked_ns
        self.shown = _shown(view, lower, upper)


class JudgedIndex(HotIndex):
    """The index of a node, whose views the judge checks."""

    def __init__(self, process: Process, stored: SimIds) -> None:
        super().__init__(stored, process.own, process.world_env, process.scenario.index)
        self._process = process

    @asynccontextmanager
    async def open_view(
        self, lower: SyncId, upper: SyncId, *, recent: bool = False
    ) -> AsyncIterator[JudgedView]:
        """Open a view of a range."""
        process, database = self._process, self._process.database
        asked_ns = process.clock.unix_ns()
        new = database.added_by_others(process, FRESH_NS) if recent else set()
        durable = [each for each in database.ids if lower <= each < upper and each not in new]
        async with super().open_view(lower, upper, recent=recent) as opened:
            mark = Mark.LAYERED if opened.rows is not None else Mark.COLD
            process.mark(Mark.HOT if opened.cold is None else mark)
            view = JudgedView(opened, lower, upper, asked_ns)
            process.judge.opened(view.shown, durable, database, max(lower, view.horizon))
            yield view


def _shown(view: StoredView, lower: SyncId, upper: SyncId) -> list[SyncId]:
    floor = view.floor if view.rows is not None else upper
    shown: list[SyncId] = []
    if isinstance(view.cold, SimColdView):
        shown += view.cold.snapshot.between(lower, min(upper, floor))
    start = max(lower, floor)
    if view.rows is not None and start < upper:
        spans = Spans.of([(start, min(upper, END))])
        shown += view.rows.items(spans).ids.pairs()
    return shown
