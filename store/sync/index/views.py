"""Views of a store for reconciliation: the index in memory over the summaries of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

import numpy as np

from reconcile.errors import SummaryMismatchError as SummaryMismatch
from reconcile.ids import LOWEST, SyncId, SyncIds
from reconcile.index import IndexView, MemoryView
from reconcile.lattice import LatticeSum
from reconcile.view import Loaded, Loading, Measured, NeedIds, Needs, Spans, View, proceed
from store.domain.hub import Place
from store.domain.ports import StoreUnavailableError
from store.domain.view import ColdView, Span
from store.sync.limits import THREADED_ROWS
from storenode.message.limits import MAX_TIMESTAMP_NS

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def at(time_ns: int) -> SyncId:
    """Return the bound before everything that has this time."""
    return time_ns, LOWEST[1]


NO_FLOOR: Final = at(MAX_TIMESTAMP_NS)


class StoredView:
    """The IDs of a store at one moment: those of the index in memory over summaries.

    Attributes:
        horizon: below it nothing is held, or kept.
        rows: the index in memory; None: there is none.
        floor: the bound from which on every ID is in memory.
        cold: the summaries of the database, once they were opened.
        ids: the IDs of the range that was opened; `load` reads what they need.
        places: the newest commits of the index and of the summaries, as far as they were opened.
    """

    ids: View

    def __init__(
        self,
        open_cold: Callable[[], Awaitable[ColdView]],
        horizon_ns: int,
        rows: IndexView | None = None,
        floor: SyncId = NO_FLOOR,
        *places: Place,
    ) -> None:
        """Take the index, if there is one, with the newest commit in it.

        ``open_cold`` opens what lies below the floor, at most once.
        """
        self._open_cold = open_cold
        self.horizon = at(horizon_ns)
        self.rows = rows
        self.floor = floor
        self.places = list(places)
        self.cold: ColdView | None = None
        if rows is not None:
            self.ids = MemoryView(rows, floor)

    async def open_below(self, *, first: bool = False) -> ColdView:
        """Return the summaries, which answer from memory what is above its floor.

        ``first``: nothing of the view was used yet, so that it may get another horizon.

        Raises:
            StoreUnavailableError: the database does not serve.
            StoreBusyError: too many views read from the database already.
        """
        if self.cold is None:
            cold = self.cold = await self._open_cold()
            horizon = at(cold.horizon_ns)
            if not first and horizon != self.horizon:
                raise StoreUnavailableError(
                    "messages were dropped since the view was opened; try again"
                )
            self.horizon = horizon
            self.places.append(cold.place)
            if self.rows is not None:
                cold.view.cover_above(self.floor, self.rows)
            self.ids = cold.view
        return self.cold

    async def lattices(self, spans: Sequence[Span]) -> list[LatticeSum] | None:
        """Return the sums of disjoint, ascending ranges (see `ColdView.lattices`)."""
        floor_ns = self.floor[0]
        below = [(low, min(high, floor_ns)) for low, high in spans if low < floor_ns]
        above = [(max(low, floor_ns), high) for low, high in spans if high > floor_ns]
        sums = [LatticeSum() for _ in spans]
        if below:
            found = await (await self.open_below()).lattices(below)
            if found is None:
                return None
            sums[: len(below)] = found
        if above:
            assert self.rows is not None
            large = len(self.rows) >= THREADED_ROWS
            found_above = await in_thread_if(large, self.rows.lattices, above)
            if found_above is None:
                return None
            for place, total in enumerate(found_above, len(spans) - len(above)):
                sums[place] += total
        return sums

    async def listed(self, span: Span, limit: int) -> SyncIds | None:
        """Return the IDs of a range of time with their content digests; None: more than limit."""
        (low, high), floor_ns, rows = span, self.floor[0], self.rows
        parts: list[SyncIds] = []
        if low < floor_ns:
            spans = Spans.of([(at(low), at(min(high, floor_ns)))])
            loaded = await self.load(NeedIds(spans, limit + 1, contents=True))
            assert isinstance(loaded, SyncIds)
            parts.append(loaded)
        if rows is not None and high > floor_ns:
            first, end = rows.rank(at(max(low, floor_ns))), rows.rank(at(high))
            parts.append(rows.between(first, min(end, first + limit + 1)))
        found = SyncIds.join(parts)
        return None if len(found) > limit else found

    async def contents(self, ids: SyncIds) -> SyncIds:
        """Return IDs of this view, which ascend, with their content digests."""
        first, rows = int(np.searchsorted(ids.timestamps, self.floor[0])), self.rows
        parts = [await (await self.open_below()).contents(ids[:first])] if first else []
        if first < len(ids) and rows is not None:
            above = ids[first:]
            parts.append(SyncIds(above.timestamps, above.hashes, rows.digests(rows.ranks(above))))
        return SyncIds.join(parts)

    async def load(self, needs: Needs) -> Loaded:
        """Read what the view lacks; raises as `measure`."""
        return await (await self.open_below()).load(needs)

    async def measure(self, spans: Spans) -> Measured:
        """Return counts and fingerprints of spans of time.

        Raises:
            StoreUnavailableError: the database does not serve, the view was open for too long, or
                the summaries are wrong.
            StoreBusyError: too many views read from the database already.
        """
        if self.rows is not None and spans.lower.at(0) >= self.floor:
            bounds = spans.lower.timestamps, spans.upper.timestamps
            low, high = (self.rows.time_ranks(times, "left") for times in bounds)
            return Measured(high - low, self.rows.fingerprints(low, high))
        await self.open_below()
        large = len(spans) >= THREADED_ROWS
        try:
            return await worked_through(self.ids.measure(spans), self.load, large=large)
        except SummaryMismatch as error:
            raise StoreUnavailableError(str(error)) from error


async def worked_through(
    work: Loading[_Result],
    load: Callable[[Needs], Awaitable[Loaded]] | None,
    *,
    large: bool = False,
) -> _Result:
    """Return the result of a computation that reads a view, which may have to load IDs.

    A large step, such as a ``large`` first one, runs in a thread. Without ``load`` it must not
    need anything.

    Raises:
        SummaryMismatchError: what was loaded contradicts itself.
        StoreUnavailableError: ``load`` failed.
    """
    found = await in_thread_if(large, proceed, work)
    while isinstance(found, Needs):
        assert load is not None, found
        loaded = await load(found)
        found = await in_thread_if(len(loaded) >= THREADED_ROWS, proceed, work, loaded)
    return found


async def in_thread_if(
    large: bool, work: Callable[_Given, _Result], *given: _Given.args, **named: _Given.kwargs
) -> _Result:
    """Return the result of work that is done here, or in a thread when it is large.

    A cancellation waits for the thread, so that the work of peers that leave does not pile up.
    """
    if not large:
        return work(*given, **named)
    waiting, ended = [work], list[bool]()

    def run() -> _Result:
        try:
            return waiting.pop()(*given, **named)
        finally:
            ended.append(True)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with suppress(IndexError):
            waiting.pop()  # it has not begun, and cannot any more
            ended.append(True)
        while not ended:
            with suppress(asyncio.CancelledError):  # once more
                await asyncio.sleep(0.01)
        raise
