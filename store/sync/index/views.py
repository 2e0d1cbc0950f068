"""Views of a store for reconciliation: the index in memory over the summaries of the database.

    open_view ─ newest commit, horizon ─► the index once it has that commit: its view, its floor
         │                                      │ not in time, or there is no index
         │                                      ▼
         └─ the range begins below the floor ─► a cold view too

What lies above the floor never costs a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np

from reconcile.errors import SummaryMismatchError as SummaryMismatch
from reconcile.ids import END, SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, Measured, NeedIds, Needs, Spans, View
from store.domain.hub import Place
from store.domain.ports import StoreBusyError, StoreUnavailableError
from store.domain.view import ColdView, Span, StoredIds
from store.sync.index.hot import HotIndex, HotView, at
from store.sync.index.view_reads import in_thread_if, worked_through
from store.sync.limits import MAX_COLD_VIEWS, THREADED_ROWS, IndexLimits
from storenode.message.limits import MAX_TIMESTAMP_NS


class IndexedReconcilable:
    """Opens views."""

    def __init__(self, stored: StoredIds, hot: HotIndex, limits: IndexLimits | None = None) -> None:
        self._stored = stored
        self.index = hot
        self._patience_s = (limits or IndexLimits()).patience_s
        self._free = asyncio.Semaphore(MAX_COLD_VIEWS)

    @asynccontextmanager
    async def open_view(
        self,
        lower: SyncId,
        upper: SyncId,  # noqa: ARG002 - what lies above costs nothing
        *,
        recent: bool = False,
    ) -> AsyncIterator[StoredView]:
        """Open a view of a half-open range, with everything that was acknowledged.

        ``recent``: what other nodes of the store took in the last seconds may be missing.

        Raises:
            StoreUnavailableError: the database does not serve.
            StoreBusyError: too many views read from the database already.
        """
        async with AsyncExitStack() as stack:
            hot = await self.index.recent_view() if recent else None
            horizon_ns = 0 if hot is None else hot.horizon_ns
            cold = None
            if hot is None:
                hot, horizon_ns = await self._hot_view()
            if hot is None or lower < hot.floor:
                cold = await stack.enter_async_context(self.open_cold())
                horizon_ns = cold.horizon_ns
            yield StoredView(self, stack, at(horizon_ns), hot, cold)

    @asynccontextmanager
    async def open_cold(self) -> AsyncIterator[ColdView]:
        """Return a view of everything in the database; raises as `open_view`."""
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError:
            raise StoreBusyError(
                f"{MAX_COLD_VIEWS} reconciliations read from the database already; retry later"
            ) from None
        try:
            async with self._stored.open_cold() as cold:
                yield cold
        finally:
            self._free.release()

    async def _hot_view(self) -> tuple[HotView | None, int]:
        indexed = self.index.place
        newest = await self._stored.newest(indexed)
        if not newest.served and self.index.place[0] >= indexed[0]:
            # The database lost what the index has; the feed will notice, too.
            self.index.lost()
        hot = await self.index.view_at(newest.place, newest.horizon_ns)
        if hot is not None and hot.place != newest.place:
            # It has gone on meanwhile: with new commits, or with some that the database has lost.
            newest = await self._stored.newest(hot.place)
            if not newest.served:
                self.index.lost()
                hot = None
        return hot, newest.horizon_ns


class StoredView:
    """The IDs of a store at one moment: those of the index in memory over summaries."""

    def __init__(
        self,
        opener: IndexedReconcilable,
        stack: AsyncExitStack,
        horizon: SyncId,
        hot: HotView | None,
        cold: ColdView | None,
    ) -> None:
        self._opener = opener
        self._stack = stack
        self.horizon = horizon
        """Below it nothing is held, or kept."""
        self._hot = hot
        self._cold = cold
        self.ids: View
        """The IDs of the range that was opened; `load` reads what they need."""
        if hot is not None:
            self.ids = MemoryView(hot.view, hot.floor)
        if cold is not None:
            self.ids = self._covered(cold)

    @property
    def memory_start(self) -> SyncId | None:
        """The bound from which on every ID is in memory; None: none is."""
        return None if self._hot is None else self._hot.floor

    @property
    def places(self) -> list[Place]:
        """The newest commits of the index and of the summaries, as far as they were opened."""
        return [each.place for each in (self._hot, self._cold) if each is not None]

    @property
    def indexed(self) -> IndexView | None:
        """The index in memory."""
        return None if self._hot is None else self._hot.view

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the sums of disjoint, ascending ranges (see `ColdView.lattices`)."""
        hot, floor_ns = self._hot, self._floor_ns
        below = [(low, min(high, floor_ns)) for low, high in spans if low < floor_ns]
        above = [(max(low, floor_ns), high) for low, high in spans if high > floor_ns]
        sums = [LatticeSum() for _ in spans]
        if below:
            cold = await self._opened_cold()
            found = await cold.lattices(below)
            if found is None:
                return None
            sums[: len(below)] = found
        if above:
            assert hot is not None
            large = len(hot.view) >= THREADED_ROWS
            found_above = await in_thread_if(large, hot.view.lattices, above)
            if found_above is None:
                return None
            for place, total in enumerate(found_above, len(spans) - len(above)):
                sums[place] += total
        return sums

    async def listed(self, span: Span, limit: int) -> SyncIds | None:
        """Return the IDs of a range of time with their content digests; None: more than limit."""
        low, high = span
        parts: list[SyncIds] = []
        if low < self._floor_ns:
            cold = await self._opened_cold()
            spans = Spans.of([(at(low), at(min(high, self._floor_ns)))])
            loaded = await cold.load(NeedIds(spans, limit + 1, contents=True))
            assert isinstance(loaded, SyncIds)
            parts.append(loaded)
        if self._hot is not None and high > self._floor_ns:
            rows = self._hot.view
            first, end = rows.rank(at(max(low, self._floor_ns))), rows.rank(at(high))
            parts.append(rows.between(first, min(end, first + limit + 1)))
        found = SyncIds.join(parts)
        return None if len(found) > limit else found

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view, which ascend, with their content digests."""
        first = int(np.searchsorted(ids.timestamps, self._floor_ns))
        parts = [await (await self._opened_cold()).contents(ids[:first])] if first else []
        if first < len(ids) and self._hot is not None:
            rows = self._hot.view
            above = ids[first:]
            parts.append(SyncIds(above.timestamps, above.hashes, rows.digests(rows.ranks(above))))
        return SyncIds.join(parts)

    @property
    def _floor_ns(self) -> int:
        """The time from which on every ID is in memory."""
        return MAX_TIMESTAMP_NS if self._hot is None else self._hot.floor[0]

    async def load(self, needs: Needs) -> Loaded:
        """Read what the view lacks; raises as `measure`."""
        return await (await self._opened_cold()).load(needs)

    async def measure(self, spans: Spans) -> Measured:
        """Return counts and fingerprints of spans.

        Raises:
            StoreUnavailableError: the database does not serve, the view was open for too long, or
                the summaries are wrong.
            StoreBusyError: too many views read from the database already.
        """
        if len(spans) and spans.lower.at(0) < (self.memory_start or END):
            await self._opened_cold()
        large = len(spans) >= THREADED_ROWS
        try:
            return await worked_through(self.ids.measure(spans), self.load, large=large)
        except SummaryMismatch as error:
            raise StoreUnavailableError(str(error)) from error

    async def _opened_cold(self) -> ColdView:
        if self._cold is None:
            cold = self._cold = await self._stack.enter_async_context(self._opener.open_cold())
            if at(cold.horizon_ns) != self.horizon:
                raise StoreUnavailableError(
                    "messages were dropped since the view was opened; try again"
                )
            self.ids = self._covered(cold)
        return self._cold

    def _covered(self, cold: ColdView) -> SummaryView:
        """Return the summaries, which answer from memory what is above its floor."""
        if self._hot is not None:
            cold.view.cover_above(self._hot.floor, self._hot.view)
        return cold.view
