"""What the index of a simulated node is given of its database: IDs, commits, and their loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from reconcile.ids import SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import Loaded, Needs, SummaryView
from sim.database import Unavailable
from sim.dice import Dice
from sim.limits import MAX_COLD_VIEWS
from sim.marks import Mark
from sim.process import Process
from sim.snapshot import Snapshot
from store.domain.hub import CommitRow, Place
from store.domain.view import Newest, Times
from store.sync.index.hot import HotIndex

_PORTIONS: Final = 20
"""Into how many pieces a read is cut, about, of which one takes so much less than a whole."""

_RETRY_S: Final = 1.0


class SimIds:
    """The IDs of a simulated database: a `store.domain.view.StoredIds`."""

    def __init__(self, process: Process, dice: Dice | None = None) -> None:
        """``dice``: its chance, by default the run's."""
        self._process = process
        self._database = process.database
        self._dice = dice
        self._open = 0

    @asynccontextmanager
    async def open_cold(self) -> AsyncIterator[SimColdView]:
        """A view of everything that is held now."""
        self._open += 1
        try:
            look = self._database.look(self._database.snapshot, dice=self._dice)
            yield SimColdView(self._process, await look, self._dice)
        finally:
            self._open -= 1

    async def newest(self, seen: Place) -> Newest:
        """The newest commit now, and whether the database still has one that was seen."""
        return await self._database.look(partial(self._newest, seen), dice=self._dice)

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """The IDs that some commits have added and that are held."""
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

    def __init__(self, process: Process, snapshot: Snapshot, dice: Dice | None) -> None:
        lengths = process.scenario.lengths_ns
        self.view = SummaryView(snapshot.top(), lengths[1:], process.scenario.summary)
        self.snapshot = snapshot
        self.place = snapshot.place
        self.horizon_ns = snapshot.horizon_ns
        self._database = process.database
        self._outages = process.database.outages
        self._dice = dice

    async def load(self, needs: Needs) -> Loaded:
        """What the view needs."""
        load = partial(self.snapshot.load, needs)
        look = self._database.look(load, _PORTIONS, since=self._outages, dice=self._dice)
        return await look

    async def lattices(self, spans: Sequence[Times]) -> list[LatticeSum] | None:
        """Return the lattice sums of ranges of time."""
        load = partial(self.snapshot.lattices, spans)
        return await self._database.look(load, _PORTIONS, since=self._outages)

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view with their content digests."""
        load = partial(self.snapshot.contents, ids)
        return await self._database.look(load, _PORTIONS, since=self._outages)


class SimFeed:
    """Tells the index of commits, in their order, as they come."""

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
            except Unavailable:
                await asyncio.sleep(_RETRY_S)

    def _unfollow(self) -> None:
        del self._database.followers[self]

    async def _look_for(self, head: Place | None) -> Place:
        """Where to go on: at the head, unless it was lost."""
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
