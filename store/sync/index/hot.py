"""The newest IDs in memory, as the commits of the database come by.

    warming ─ read from one snapshot, while new commits wait in line ─► following, commit by commit
       ▲                                                                      │
       └── commits were lost, too many wait, or something failed ◄────────────┘

Only while it follows does the index give views; at any other time everything is answered from the
database. It has everything from its *floor* on, and nothing below: the floor rises with time, with
the horizon, and where more IDs would be held than there is room for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from reconcile import kernel
from reconcile.ids import SyncId, SyncIds
from reconcile.index import Index, IndexView
from store.domain.environment import Environment
from store.domain.hub import START, CommitRow, Place, WrittenIds, at_most
from store.domain.ports import StoreUnavailable
from store.domain.view import StoredIds
from store.sync.index.warm_up import at, raised_floor, warm_up
from store.sync.limits import FLOOR_STEP_NS, FULL_SHARE, LONGEST_BACKOFF_S, IndexLimits
from storenode.common.backoff import Backoff


@dataclass(frozen=True, slots=True)
class HotView:
    """Everything from a floor on that is held in memory, fixed, up to a commit."""

    view: IndexView
    floor: SyncId
    place: Place


class HotIndex:
    """Keeps the index; ``commits`` and ``lost`` are told by the feed.

    It logs ``index_warm``, ``index_lost`` and ``index_failed``.
    """

    def __init__(
        self,
        stored: StoredIds,
        written_ids: WrittenIds,
        window_ns: int,
        environment: Environment,
        limits: IndexLimits | None = None,
    ) -> None:
        self._stored = stored
        self._written_ids = written_ids
        self._window_ns = window_ns
        self._now_ns = environment.now_ns
        self._log = environment.log
        self._limits = limits or IndexLimits()
        self._index: Index | None = None
        self._floor_ns = 0
        self._timely_floor_ns = 0
        self._place: Place = START
        self._waiting: deque[CommitRow] = deque()
        self._heard = 0
        self._lost = asyncio.Event()
        self._woken = asyncio.Event()
        self._hurried = asyncio.Event()
        self.moved = asyncio.Condition()
        """Told whenever `entries`, `floor_ns` or `place` may have changed."""
        self._changing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def entries(self) -> int:
        """IDs in memory; 0 while there is no index."""
        return 0 if self._index is None else len(self._index)

    @property
    def floor_ns(self) -> int:
        """From where on the index has everything; 0 while there is no index."""
        return 0 if self._index is None else self._floor_ns

    @property
    def place(self) -> Place:
        """The newest commit that is in the index; `START` while there is none."""
        return START if self._index is None else self._place

    def start(self) -> None:
        """Begin; every commit behind the feed's head must be told from now on."""
        self._task = asyncio.create_task(self._run(), name="hot index")

    async def stop(self) -> None:
        """End the work."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    # What the feed tells

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Hear of commits, in their order; those that were told before are passed over."""
        for commit in commits:
            if commit.place[0] > self._heard:
                self._heard = commit.place[0]
                self._waiting.append(commit)
        if len(self._waiting) > self._limits.waiting_commits:
            self.lost()
        elif 2 * len(self._waiting) > self._limits.waiting_commits:
            self._hurried.set()
        self._woken.set()

    def lost(self) -> None:
        """Commits were lost, or told no more: what is in the index may not be held."""
        self._waiting.clear()
        self._heard = 0
        self._lost.set()
        self._index = None
        self._woken.set()
        self._hurried.set()

    # What views ask

    async def view_at(self, place: Place, horizon_ns: int) -> HotView | None:
        """What is held, with everything up to a commit; None: there is no index that has it yet.

        The floor is not below the horizon.
        """
        if self._place[0] < place[0]:
            self._hurried.set()
        try:
            async with asyncio.timeout(self._limits.patience_s), self.moved:
                await self.moved.wait_for(lambda: self._index is None or self._place[0] >= place[0])
        except TimeoutError:
            return None
        async with self._changing:
            if self._index is None or self._place[0] < place[0]:
                return None
            self._raise_floor(self._index, horizon_ns)
            return HotView(self._index.view(), at(self._floor_ns), self._place)

    def check(self) -> None:
        """Verify the index and its bounds.

        Raises:
            AssertionError: one is broken.
        """
        assert len(self._waiting) <= self._limits.waiting_commits
        places = [commit.place[0] for commit in self._waiting]
        assert places == sorted(set(places)), "commits wait in another order than their own"
        if self._index is not None:
            self._index.check()
            full = self._changing.locked() or len(self._index) <= self._limits.entries
            assert full, f"the index has {len(self._index)} IDs"

    # The work

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
                self._log.warning("index_failed", reason=_reason(error), retry_s=backoff.pause_s)
                self._drop()
                await self._tell()
                await asyncio.sleep(backoff.take())

    async def _warm(self) -> None:
        self._lost.clear()
        floor_ns = self._wanted_floor()
        warm = await warm_up(self._stored, floor_ns, self._limits)
        if self._lost.is_set():
            return
        self._timely_floor_ns = floor_ns
        self._floor_ns, self._place = warm.floor_ns, warm.place
        self._index = warm.index
        self._log.info(
            "index_warm",
            entries=len(warm.index),
            floor_ns=warm.floor_ns,
            compiled=kernel.compiled is not None,
        )
        self._woken.set()

    async def _follow(self) -> None:
        """Take in what comes, until commits are lost."""
        while not self._lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.settle_s):
                    await self._woken.wait()
            self._woken.clear()
            if self._waiting:
                await self._gather()
            await self._take_in_all()
            await self._settle()
            await self._tell()

    async def _gather(self) -> None:
        """Let more commits come: to insert one costs about as much as to insert a hundred."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.gather_s):
                await self._hurried.wait()
        self._hurried.clear()

    async def _take_in_all(self) -> None:
        """Take in what waits; where the database is away, again until it is back."""
        while self._waiting and not self._lost.is_set():
            try:
                await self._take_in()
            except StoreUnavailable:
                await asyncio.sleep(self._limits.backoff_s)

    async def _settle(self) -> None:
        """Follow the clock."""
        floor_ns = self._wanted_floor()
        if floor_ns < self._timely_floor_ns - self._window_ns:
            # It was far ahead: what the index let go of then belongs into it again.
            self.lost()
            return
        async with self._changing:
            self._timely_floor_ns = max(self._timely_floor_ns, floor_ns)
            if self._index is not None:
                self._raise_floor(self._index, floor_ns)

    async def _take_in(self) -> None:
        """Insert the IDs of the commits that have waited longest."""
        some = at_most(self._waiting, self._limits.ids_at_once)
        ids = await self._ids_of([each for each in some if each.place[0] > self._place[0]])
        async with self._changing:
            index = self._index
            if self._lost.is_set() or index is None:
                return
            ids = ids[ids.timestamps >= self._floor_ns]
            if len(ids) <= self._limits.inline_ids:
                index.insert(ids)
            else:
                await asyncio.to_thread(index.insert, ids)
            if self._lost.is_set():
                return
            for _ in some:
                self._waiting.popleft()
            self._place = max(self._place, some[-1].place)
            self._make_room(index)
        await self._tell()

    async def _ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """From memory what this node wrote, what others did from the database."""
        found: list[SyncIds] = []
        others: list[CommitRow] = []
        for commit in commits:
            ids = self._written_ids.take(commit.place[1])
            if ids is None:
                others.append(commit)
            else:
                found.append(ids)
        if others:
            found.append(await self._stored.ids_of(others))
        return SyncIds.join(found)

    def _wanted_floor(self) -> int:
        floor_ns = max(0, self._now_ns() - self._window_ns)
        return floor_ns - floor_ns % FLOOR_STEP_NS

    def _raise_floor(self, index: Index, floor_ns: int) -> None:
        if floor_ns > self._floor_ns:
            self._floor_ns = floor_ns
            index.prune(at(floor_ns))

    def _make_room(self, index: Index) -> None:
        if len(index) > self._limits.entries:
            floor_ns = raised_floor(index, int(FULL_SHARE * self._limits.entries))
            if floor_ns is not None:
                self._raise_floor(index, floor_ns)

    def _drop(self) -> None:
        self._index = None
        self._waiting.clear()

    async def _tell(self) -> None:
        async with self.moved:
            self.moved.notify_all()


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or repr(error)
