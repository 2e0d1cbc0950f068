"""The IDs of the store in memory, kept up to date with the commits of the database.

    warming: read from one snapshot, while new commits wait ─► following, commit by commit
       ▲                                                              │
       └── commits were lost, too many wait, or something failed ◄────┘

The index holds all IDs from its *floor* on. The floor is 0, below everything, as long as there is
room for all IDs; otherwise it rises, and the database answers for what lies below it. Views show
the index only while it follows; at other times the database answers everything:

    open_view ─ newest commit, horizon ─► the index once it has that commit, from its floor on
         │                                      │ not in time, or there is no index
         │                                      ▼
         └─ the range begins below the floor ─► a cold view too

What lies above the floor never costs a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import numpy as np

from reconcile import kernel
from reconcile.ids import END, LOWEST, SyncId, SyncIds, rank
from reconcile.index import Index, IndexView
from reconcile.summaries.pieces import last_cut
from reconcile.view import NeedIds, Spans
from store.domain.environment import Environment
from store.domain.hub import START, CommitRow, OwnCommits, Place, at_most
from store.domain.ports import StoreBusyError, StoreUnavailableError
from store.domain.view import ColdView, StoredIds
from store.sync.index.views import StoredView, at, worked_through
from store.sync.limits import (
    FLOOR_STEP_NS,
    FRESH_NS,
    FULL_SHARE,
    LONGEST_BACKOFF_S,
    MAX_COLD_VIEWS,
    IndexLimits,
)
from storenode.common.backoff import Backoff
from storenode.message.limits import MAX_TIMESTAMP_NS, NS_PER_S

_PARTS_OF_ROOM: Final = 16

Memory = tuple[IndexView, SyncId, Place]
"""The IDs of the index from its floor on, fixed, up to a commit."""


class HotIndex:
    """Maintains the index, and opens views of the store.

    The feed calls ``commits`` after each read, and ``lost``. It logs ``index_warm``,
    ``index_lost`` and ``index_failed``.
    """

    def __init__(
        self,
        stored: StoredIds,
        own: OwnCommits,
        environment: Environment,
        limits: IndexLimits | None = None,
    ) -> None:
        self._stored = stored
        self._own = own
        self._steady_ns = environment.steady_ns
        self._log = environment.log
        self._limits = limits or IndexLimits()
        self._index: Index | None = None
        self._floor_ns = self._horizon_ns = 0
        self._place: Place = START
        self._waiting: deque[CommitRow] = deque()
        self._last_report_ns: int | None = None
        self._next_check_ns = 0
        self._lost = asyncio.Event()
        self._woken = asyncio.Event()
        self.moved = asyncio.Condition()
        """Notified whenever `entries`, `floor_ns` or `place` may have changed."""
        self._changing = asyncio.Lock()
        self._free = asyncio.Semaphore(MAX_COLD_VIEWS)
        self._task: asyncio.Task[None] | None = None

    @property
    def entries(self) -> int:
        """The number of IDs in memory; 0 while there is no index."""
        return 0 if self._index is None else len(self._index)

    @property
    def floor_ns(self) -> int:
        """The time from which on the index has everything."""
        return 0 if self._index is None else self._floor_ns

    @property
    def place(self) -> Place:
        """The newest commit that is in the index; `START` while there is none."""
        return START if self._index is None else self._place

    def start(self) -> None:
        """Begin; every commit behind the feed's head must be reported from now on."""
        self._task = asyncio.create_task(self._run(), name="hot index")

    async def stop(self) -> None:
        """End the work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._index = None
        self._waiting.clear()

    # Called by the feed

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Take all commits since the last call, in their order; repeated ones are ignored."""
        self._last_report_ns = self._steady_ns()
        self._own.is_doubtful = False
        if not commits:
            return
        for commit in commits:
            if commit.place[0] > self._own.reached:
                self._own.reached = commit.place[0]
                self._waiting.append(commit)
        if len(self._waiting) > self._limits.waiting_commits:
            self.lost()
        self._woken.set()

    def lost(self) -> None:
        """Drop the index: commits were lost, and what it has may not be stored."""
        self._waiting.clear()
        self._own.reached, self._own.newest = 0, START
        self._lost.set()
        self._index = self._last_report_ns = None
        self._woken.set()

    # Views

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

            def open_cold() -> Awaitable[ColdView]:
                return stack.enter_async_context(self._open_cold())

            memory, horizon_ns = await self._recent() if recent else (None, 0)
            if memory is None:
                memory, horizon_ns = await self._current()
            view = StoredView(open_cold, horizon_ns, *memory or ())
            if memory is None or lower < view.floor:
                await view.open_below(first=True)
            yield view

    @asynccontextmanager
    async def _open_cold(self) -> AsyncIterator[ColdView]:
        """Return a view of everything in the database; raises as `open_view`."""
        try:
            async with asyncio.timeout(self._limits.patience_s):
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

    async def _current(self) -> tuple[Memory | None, int]:
        """Return the index with the newest commit, None where it lacks it, and the horizon."""
        indexed = self.place
        newest = await self._stored.newest(indexed)
        if not newest.served and self.place[0] >= indexed[0]:
            # The database lost what the index has; the feed will notice, too.
            self.lost()
        memory = await self._memory_at(newest.place, newest.horizon_ns)
        if memory is not None and memory[2] != newest.place:
            # It has gone on meanwhile: with new commits, or with some that the database has lost.
            newest = await self._stored.newest(memory[2])
            if not newest.served:
                self.lost()
                memory = None
        return memory, newest.horizon_ns

    async def _memory_at(self, place: Place, horizon_ns: int) -> Memory | None:
        """Return the index with everything up to a commit; None: it does not have it in time.

        Nothing below the horizon is in it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.patience_s), self.moved:
                await self.moved.wait_for(lambda: self._index is None or self._place[0] >= place[0])
        async with self._changing:
            if self._index is None or self._place[0] < place[0]:
                return None
            self._raise_horizon(self._index, horizon_ns)
            return self._index.view(), at(self._floor_ns), self._place

    async def _recent(self) -> tuple[Memory | None, int]:
        """Return the index without a statement; None: it could lack messages, or has a floor.

        It has all that this node has acknowledged, and what other nodes of the store had committed
        `FRESH_NS` before.
        """
        async with self._changing:
            index, reported_ns = self._index, self._last_report_ns
            if index is None or reported_ns is None or self._floor_ns or self._waiting:
                return None, 0
            is_fresh = self._steady_ns() - reported_ns <= FRESH_NS
            if not is_fresh or self._own.is_doubtful or self._own.newest > self._place:
                return None, 0
            return (index.view(), LOWEST, self._place), self._horizon_ns

    def check(self) -> None:
        """Verify the index and its bounds.

        Raises:
            AssertionError: one is broken.
        """
        assert len(self._waiting) <= self._limits.waiting_commits
        positions = [commit.place[0] for commit in self._waiting]
        assert positions == sorted(set(positions)), "commits wait in another order than their own"
        if self._index is not None:
            self._index.check()
            full = self._changing.locked() or len(self._index) <= self._limits.entries
            assert full, f"the index has {len(self._index)} IDs"

    # The task

    async def _run(self) -> None:
        backoff = Backoff(self._limits.backoff_s, LONGEST_BACKOFF_S)
        while True:
            try:
                await self._warm()
                backoff.reset()
                await self._follow()
                self._log.warning("index_lost")
                await asyncio.sleep(backoff.pause_s)
            except Exception as error:  # noqa: BLE001 - whatever fails, the database still answers
                reason = str(error).strip().partition("\n")[0] or repr(error)
                self._log.warning("index_failed", reason=reason, retry_s=backoff.pause_s)
                self._index = None
                self._waiting.clear()
                await self._notify()
                await asyncio.sleep(backoff.take())

    async def _warm(self) -> None:
        self._lost.clear()
        index, floor_ns, cold = await warm_up(self._stored, self._limits)
        if self._lost.is_set():
            return
        self._floor_ns, self._place, self._horizon_ns = floor_ns, cold.place, cold.horizon_ns
        self._index, self._own.reached = index, max(self._own.reached, cold.place[0])
        has_kernel = kernel.compiled is not None
        self._log.info("index_warm", entries=len(index), floor_ns=floor_ns, compiled=has_kernel)
        self._woken.set()

    async def _follow(self) -> None:
        """Insert the IDs of commits until some are lost."""
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.settle_s):
                    await self._woken.wait()
            self._woken.clear()
            while self._waiting and not self._lost.is_set():
                try:
                    await self._insert()
                except StoreUnavailableError:
                    await asyncio.sleep(self._limits.backoff_s)
            await self._compare()
            await self._notify()

    async def _insert(self) -> None:
        """Insert the IDs of the commits that have waited longest."""
        some = at_most(self._waiting, self._limits.ids_at_once)
        ids = await self._ids_of(some)
        async with self._changing:
            index = self._index
            if self._lost.is_set() or index is None:
                return
            ids = ids[ids.timestamps >= max(self._floor_ns, self._horizon_ns)]
            if len(ids) <= self._limits.inline_ids:
                index.insert(ids)
            else:
                await asyncio.to_thread(index.insert, ids)
            if self._lost.is_set():
                return
            for _ in some:
                self._waiting.popleft()
            self._place = max(self._place, some[-1].place)
            if len(index) > self._limits.entries:
                floor_ns = _raised_floor(index, int(FULL_SHARE * self._limits.entries))
                self._floor_ns = max(self._floor_ns, floor_ns)
                index.prune(at(floor_ns))
        await self._notify()

    async def _ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return the IDs of commits: of this node's from memory, of others from the database."""
        found: list[SyncIds] = []
        others: list[CommitRow] = []
        for commit in commits:
            ids = self._own.ids(commit.place[1])
            if commit.place[0] <= self._place[0]:
                continue
            if ids is None:
                others.append(commit)
            else:
                found.append(ids)
        if others:
            found.append(await self._stored.ids_of(others))
        return SyncIds.join(found)

    async def _compare(self) -> None:
        """Compare the index with the database now and then, and learn the horizon."""
        now_ns = self._steady_ns()
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + int(self._limits.settle_s * NS_PER_S)
        try:
            newest = await self._stored.newest(self._place)
        except StoreUnavailableError:
            return
        async with self._changing:
            # A lower horizon is an operator's: what was restored below it may be missing here.
            is_lowered = newest.horizon_ns < self._horizon_ns
            if self._index is None or not newest.served or is_lowered:
                self.lost()
                return
            self._raise_horizon(self._index, newest.horizon_ns)

    def _raise_horizon(self, index: Index, horizon_ns: int) -> None:
        if horizon_ns > self._horizon_ns:
            self._horizon_ns = horizon_ns
            index.prune(at(horizon_ns))
            if self._floor_ns:
                self._floor_ns = max(self._floor_ns, horizon_ns)

    async def _notify(self) -> None:
        async with self.moved:
            self.moved.notify_all()


async def warm_up(stored: StoredIds, limits: IndexLimits) -> tuple[Index, int, ColdView]:
    """Read everything that is stored, or the newest IDs where that would be too much.

    Return the index, its floor in nanoseconds, and the view that it was read from, now closed.

    Raises:
        StoreUnavailableError: the database does not serve.
        SummaryMismatch: the summaries do not match the messages.
    """
    async with stored.open_cold() as cold:
        room = int(FULL_SHARE * limits.entries)
        floor_ns = await _lowest_floor(cold, room)
        index = Index(min_chunk_ids=limits.chunk_ids)
        lower = at(floor_ns)
        while True:
            needs = NeedIds(Spans.of([(lower, END)]), limits.warm_up_ids, contents=True)
            ids = await cold.load(needs)
            assert isinstance(ids, SyncIds)
            if len(ids) < limits.warm_up_ids:
                await asyncio.to_thread(index.insert, ids)
                return index, floor_ns, cold
            lower = last_cut(ids)
            await asyncio.to_thread(index.insert, ids[: rank(ids, lower)])


async def _lowest_floor(cold: ColdView, room: int) -> int:
    """Return about the lowest floor with no more IDs above it than there is room for."""
    spans = Spans.of([(at(0), END)])
    measured = await worked_through(cold.view.measure(spans), cold.load)
    count_above = int(measured.counts[0])
    if count_above <= room:
        return 0
    wanted = np.array([-(-count_above * _PARTS_OF_ROOM // room)])
    parts = await worked_through(cold.view.split(spans, wanted), cold.load)
    above = count_above - np.cumsum(parts.counts)
    for bound, count in zip(parts.upper.pairs()[:-1], above.tolist(), strict=False):
        if count <= room and bound[1] == LOWEST[1]:
            return max(bound[0], cold.horizon_ns)
    return MAX_TIMESTAMP_NS


def _raised_floor(index: Index, room: int) -> int:
    """Return the floor that leaves ``room`` IDs, fewer where many have one time."""
    rows = index.view()
    position = len(index) - room
    highest = int(rows.between(position - 1, position).timestamps[0])
    aligned = highest - highest % FLOOR_STEP_NS + FLOOR_STEP_NS
    if rows.rank(at(min(aligned, MAX_TIMESTAMP_NS))) < len(index):
        return aligned
    return min(highest + 1, MAX_TIMESTAMP_NS)
