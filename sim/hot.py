"""The newest IDs of a node in memory, as the commits of its database come by.

As on the edge: while it warms up, and whenever commits may have been lost, there is no index and
everything is answered from the database; a view is given only once the index has come up to the
commit that the view must show.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from reconcile.ids import SyncId, SyncIds
from reconcile.index import Index, IndexView
from sim.database import Unavailable
from sim.limits import MAX_WAITING_COMMITS, NS_PER_MS, NS_PER_S
from sim.marks import Mark
from sim.process import Handler, Process
from sim.snapshot import Snapshot
from sim.tasks import Promise, Steps, within

NO_HASH: Final = bytes(32)
_PATIENCE_NS: Final = 2 * NS_PER_S
_RETRY_NS: Final = NS_PER_S


@dataclass(frozen=True, slots=True)
class HotView:
    """Everything from a floor on, fixed."""

    view: IndexView
    floor: SyncId


class HotIndex:
    """The index of one process; a `sim.process.Service`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._index: Index | None = None
        self._floor_ns = 0
        self._position = 0
        self._heard = 0
        self._waiting: deque[tuple[int, list[SyncId]]] = deque()
        self._woken: Promise[None] = Promise()
        self._watchers: list[tuple[int, Promise[None]]] = []
        self._lost = False

    def methods(self) -> Mapping[str, Handler]:
        """None."""
        return {}

    def letters(self) -> Mapping[type, Callable[[str, Any], None]]:
        """None."""
        return {}

    def start(self) -> None:
        """Follow the database."""
        process = self._process
        followers = process.database.followers
        followers.append(self._hear)
        process.at_end.append(lambda: followers.remove(self._hear))
        process.spawn("index", self._run())

    def check(self) -> None:
        """Verify the index and its bounds."""
        assert len(self._waiting) <= MAX_WAITING_COMMITS
        if self._index is not None:
            self._index.check()
            assert len(self._index) <= self._process.scenario.index_entries

    def lose(self) -> None:
        """Commits were lost, or told no more."""
        self._waiting.clear()
        self._index = None
        self._lost = True
        self._woken.keep(None)

    def view_at(self, position: int, horizon_ns: int) -> Steps[HotView | None]:
        """What is held, with everything up to a commit; None: no index has that in time."""
        if self._index is not None and self._position < position:
            moved: Promise[None] = Promise()
            self._watchers.append((position, moved))
            late = Unavailable("the index is behind")
            try:
                yield from within(self._process.timeline, moved, _PATIENCE_NS, late)
            except Unavailable:
                return None
        if self._index is None or self._position < position:
            return None
        self._raise_floor(self._index, horizon_ns)
        return HotView(self._index.view(), (self._floor_ns, NO_HASH))

    def _hear(self, position: int, ids: list[SyncId]) -> None:
        process = self._process
        self._waiting.append((position, ids))
        if len(self._waiting) > MAX_WAITING_COMMITS:
            self.lose()
        delay_ns = int(process.dice.random() * 20 * NS_PER_MS)
        process.timeline.after(delay_ns, self._wake)

    def _wake(self) -> None:
        self._woken.keep(None)

    def _run(self) -> Steps[None]:
        process = self._process
        while True:
            self._lost = False
            try:
                position, snapshot = yield from process.database.look(self._read).wait()
            except Unavailable:
                yield from process.sleep(_RETRY_NS)
                continue
            if not self._lost:
                self._warm(position, snapshot)
                yield from self._follow()
            process.note("index lost")
            process.mark(Mark.INDEX_LOST)
            yield from process.sleep(_RETRY_NS)

    def _read(self) -> tuple[int, Snapshot]:
        database = self._process.database
        return database.position, database.snapshot()

    def _warm(self, position: int, snapshot: Snapshot) -> None:
        process = self._process
        floor_ns = max(process.database.horizon_ns, self._wanted_floor())
        ids = [each for each in snapshot.ids if each[0] >= floor_ns]
        room = process.scenario.index_entries * 9 // 10
        if len(ids) > room:
            floor_ns = ids[-room - 1][0] + 1
            ids = [each for each in ids if each[0] >= floor_ns]
        self._floor_ns, self._position = floor_ns, position
        self._index = Index(min_chunk_ids=16)
        self._index.load(SyncIds.of(ids))
        process.note(f"index warm with {len(ids)}")

    def _follow(self) -> Steps[None]:
        while not self._lost:
            self._woken = Promise()
            if not self._waiting:
                yield from self._woken.wait()
            self._take_in()
            self._tell()

    def _take_in(self) -> None:
        index = self._index
        while self._waiting and index is not None and not self._lost:
            position, ids = self._waiting.popleft()
            if position > self._position:
                index.insert(SyncIds.of(each for each in ids if each[0] >= self._floor_ns))
                self._position = position
            self._raise_floor(index, self._wanted_floor())
            self._make_room(index)

    def _tell(self) -> None:
        waiting, self._watchers = self._watchers, []
        for position, moved in waiting:
            if self._index is None or self._position >= position:
                moved.keep(None)
            elif not moved.settled:
                self._watchers.append((position, moved))

    def _wanted_floor(self) -> int:
        process = self._process
        return max(0, process.clock.unix_ns() - process.scenario.index_window_ns)

    def _raise_floor(self, index: Index, floor_ns: int) -> None:
        if floor_ns > self._floor_ns:
            self._floor_ns = floor_ns
            index.prune((floor_ns, NO_HASH))

    def _make_room(self, index: Index) -> None:
        entries = self._process.scenario.index_entries
        if len(index) > entries:
            rows = index.view().rows
            place = len(index) - entries * 9 // 10
            self._raise_floor(index, rows.between(place - 1, place).at(0)[0] + 1)
