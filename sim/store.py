"""The ports of a store as one life of a node has them, on a simulated database.

They answer as those on Postgres do (`tests.ports`). A call of a life that has ended is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from reconcile.ids import END, SyncId, SyncIds
from reconcile.lattice import LatticeSum
from reconcile.summaries.summary import SummaryView
from reconcile.view import Loaded, Needs, Spans
from sim.bridge import Promise
from sim.database import DatabaseUnavailableError, Snapshot
from sim.limits import MAX_COLD_VIEWS
from sim.marks import Mark
from sim.process import Process
from sim.service import selected
from store.domain.coverage import Interval, Statement, Sums, overlapping, replaced
from store.domain.hub import CommitRow, Place
from store.domain.ports import HistoryEntry, NotServingError, SdsLookup, Source
from store.domain.unread import Confirmed, UnreadEvent
from store.domain.view import Newest, Span
from store.gossip.events import Committed
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.sync.coverage import Measured, StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.index.views import StoredView
from store.sync.limits import FRESH_NS
from store.sync.session.report import SessionReport
from storenode.common.bounded_dict import BoundedDict

if TYPE_CHECKING:
    from sim.gossip import Gossiping

_T = TypeVar("_T")

_PORTIONS: Final = 20
"""The approximate number of pieces of a read, each of which takes that much less than the whole."""

_RETRY_S: Final = 1.0
ENDED: Final = ContextVar("ended", default="")
"""The session of this task that has ended, about which it may state something."""

FEED: Final = "feed"
"""The name of the task of a feed."""


class _Port:
    """Calls of the database by one life; the checker sees those that fail, by their names."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.database = process.database

    async def look(self, work: Callable[[], _T], name: str = "") -> _T:
        """Read something, all of it at one moment."""
        return await self._call(partial(self.database.look, work), name)

    async def change(self, work: Callable[[], _T], name: str = "") -> _T:
        """Change something in one transaction."""
        self.database.admit_write()
        return await self._call(partial(self.database.change, self.process, work), name)

    async def _call(self, begin: Callable[[], Promise[_T]], name: str) -> _T:
        if not self.process.alive:
            raise asyncio.CancelledError
        try:
            return await begin()
        except NotServingError:
            if name and self.process.alive:
                self.process.node.world.gossip_checker.store_failed(self.process, name)
            raise


class SimStore(_Port):
    """Writes, reads by ID, and the time at which the store was last online.

    Attributes:
        unread_hashes: what this life has written that has unread rows.
        expected: what a resume must store, and ``refused`` what policy refuses of it.
        scanned: what a scan that came to its end has shown.
        resuming: whether this life resumes.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.refused: set[bytes] = set()
        self.expected: list[SyncId] = []
        self.scanned: list[SyncId] | None = None
        self.resuming = False
        hashes = self.unread_hashes = BoundedDict[bytes, None](10**6)
        listeners = self.database.listeners
        listeners[process] = lambda unread: hashes.update(dict.fromkeys(unread))
        process.at_end.append(lambda: listeners.pop(process, None))

    async def store(
        self, batch: RecordBatch, source: Source = Source.GOSSIP, min_confirms: int = 0
    ) -> StoreResult:
        """Store a batch durably; per record True if it is new."""
        self.database.admit_write()
        if not len(batch):
            return StoreResult()
        database = self.database
        return await self._call(
            lambda: database.write(self.process, batch, source, min_confirms), ""
        )

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return encoded messages of the first IDs, as many as fit, at least one."""
        database = self.database
        return await self.look(lambda: database.read(database.stored_at(ids.pairs()), max_bytes))

    async def are_stored(self, ids: SyncIds) -> list[bool]:
        """Return for each ID whether the message is stored."""
        stored_at = self.database.stored_at
        return await self.look(lambda: [each is not None for each in stored_at(ids.pairs())])

    async def last(self) -> int:
        """Return when the store was last online."""
        return await self.look(lambda: self.database.last_online_ns)

    async def note(self, online_ns: int, now_ns: int, interval: Interval | None = None) -> None:
        """Persist that nothing up to ``online_ns`` was missed; the judge sees the interval."""
        del interval
        database = self.database
        if self.resuming and online_ns:
            self.process.judge.advanced(database, self.expected, online_ns, self.refused)
        await self.look(lambda: database.note_online(online_ns, now_ns))


class SimMessages(_Port):
    """The messages of a store as gossip reads them."""

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Read messages."""
        database = self.database
        return await self.look(lambda: database.read(map(database.stored.get, hashes), max_bytes))

    async def content_digests(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Read the content digest of each message; None: it is not stored."""
        stored, digests = self.database.stored, self.database.digests
        return await self.look(
            lambda: [digests[each] if each in stored else None for each in hashes]
        )

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Read what commits have added."""
        added = self.database.ids_of
        return await self._messages("arrived", lambda: [each for _, each in added(commits).pairs()])

    async def newest(self, limit: int) -> Committed:
        """Read the newest messages."""
        return await self._messages("newest", lambda: self.database.log[-limit:])

    async def _messages(self, name: str, find: Callable[[], list[bytes]]) -> Committed:
        def read() -> Committed:
            ids = [digest for digest in find() if digest in self.database.stored]
            graph, digests = self.database.graph, self.database.digests
            events = [graph[each] for each in ids if each in graph]
            return Committed(ids, events, content_digests=[digests[each] for each in ids])

        return await self.look(read, name)


class SimUnread(_Port):
    """The table of unread events; ``confirmed`` is called with the pairs that are noted."""

    def __init__(self, process: Process, confirmed: Callable[[Confirmed], None]) -> None:
        super().__init__(process)
        self._confirmed = confirmed

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """Read the newest unread events."""

        def find() -> Iterable[bytes]:
            rows = reversed(self.database.unread.items())
            return islice((digest for digest, row in rows if not row.expired), limit)

        return await self._read("unread.newest", find)

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Read the unread events of some messages."""
        return await self._read(
            "", lambda: (each for each in hashes if each in self.database.unread)
        )

    async def is_shared(self) -> bool:
        """Return True if another node shares the database."""
        return await self.look(lambda: len(self.database.listeners) > 1)

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations, and drop the events that wait for nothing more."""

        def note() -> None:
            rows = self.database.unread
            for each in confirmed:
                known = self.database.confirmed.setdefault(each.message_hash, {})
                if each.store_id not in known:  # and not reported again after a crash
                    self._confirmed(each)
                known[each.store_id] = None
                row = rows.get(each.message_hash)
                if row is not None and each.store_id not in row.stores:
                    rows[row.message_hash] = replace(row, stores=(*row.stores, each.store_id))
            for row in [row for row in rows.values() if len(row.stores) >= row.needed]:
                del rows[row.message_hash]

        await self.change(note, "confirm")

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Expire unread events."""

        def note() -> None:
            rows = self.database.unread
            for digest in rows.keys() & set(hashes):
                rows[digest] = replace(rows[digest], expired=True)

        await self.change(note)

    async def _read(self, name: str, find: Callable[[], Iterable[bytes]]) -> Sequence[UnreadEvent]:
        def read() -> list[UnreadEvent]:
            now_ns, rows = self.process.timeline.now_ns, self.database.unread
            return [
                replace(row, age_ns=now_ns + row.age_ns) for row in map(rows.__getitem__, find())
            ]

        return await self.look(read, name)


class SimSds(_Port):
    """The SDS messages of a node: a `store.domain.ports.SdsLookups`."""

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Return the entries that are missing or not proven; proven claims are preferred."""
        assert request.prefer_proven
        found = await self.look(partial(selected, self.database, request))
        return found.missing, found.unproven


class SimStatements(_Port):
    """`store.domain.coverage.Statements` of a database."""

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Keep statements, ascending, in place of older ones about the same time."""
        process = self.process
        await process.database.change(process, lambda: self._replace(store_id, statements, now_ns))

    def _replace(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        stated, horizon_ns = self.database.stated, self.database.horizon_ns
        for store, found in stated.items():
            stated[store] = [each for each in found if each.end_ns > horizon_ns]
        stated[store_id] = replaced(stated.get(store_id, ()), statements, now_ns)

    async def between(self, start_ns: int, end_ns: int) -> Mapping[str, Sequence[Statement]]:
        """Return by store the statements that overlap a range, ascending."""

        def read() -> dict[str, list[Statement]]:
            stated = self.database.stated
            about = ((each, overlapping(stated[each], (start_ns, end_ns))) for each in stated)
            return {store: found for store, found in about if found}

        return await self.look(read)


class JudgedStatements(StatementBuffer):
    """The shipped buffer of statements, of which the judge checks each."""

    def __init__(self, process: Process) -> None:
        super().__init__(SimStatements(process))
        self._process = process

    async def take(self, report: SessionReport, measured: Measured, now_ns: int) -> None:
        """Take what a session has measured, also for statements that are made later."""
        (found, sums, finding), ended = measured, ENDED.get()

        async def read() -> Sums:
            ENDED.set(ended)
            return await sums() if callable(sums) else sums

        await super().take(report, (found, read, finding), now_ns)

    async def note(self, store_id: str, statements: Sequence[Statement], now_ns: int) -> None:
        """Take the statements of a session."""
        process = self._process
        if statements:
            process.judge.stated(ENDED.get(), process.database, store_id, statements)
            process.mark(Mark.STATED)
        await super().note(store_id, statements, now_ns)


class SimIds(_Port):
    """The IDs of a simulated database: a `store.domain.view.StoredIds`."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._open = 0

    @asynccontextmanager
    async def open_cold(self) -> AsyncIterator[SimColdView]:
        """Open a view of everything that is stored now."""
        self._open += 1
        try:
            yield SimColdView(self.process, await self.look(self.database.snapshot))
        finally:
            self._open -= 1

    async def newest(self, seen: Place) -> Newest:
        """Return the newest commit, and whether the database still has one that was seen."""
        database = self.database
        return await self.look(
            lambda: Newest(database.place, database.horizon_ns, database.is_served(seen))
        )

    async def ids_of(self, commits: Sequence[CommitRow]) -> SyncIds:
        """Return the IDs that some commits have added and that are stored."""
        return await self.look(partial(self.database.ids_of, commits))

    def check(self) -> None:
        """Verify the bound on open views.

        Raises:
            AssertionError: it is passed.
        """
        assert self._open <= MAX_COLD_VIEWS, f"{self._open} views are open"


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


class SimFeed(_Port):
    """A feed that reports commits to its listeners, in their order, as they come."""

    def __init__(self, process: Process, listeners: Sequence[Gossiping | HotIndex]) -> None:
        super().__init__(process)
        self._listeners = listeners
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Begin at the newest commit, start the listeners, and continue from there."""
        followers = self.database.followers
        followers[self] = self._woken.set
        self.process.at_end.append(lambda: followers.pop(self, None))
        head: Place | None = None
        while True:
            try:
                outages = self.database.outages
                head = await self._look_for(head)
                while True:
                    read = partial(self.database.commits_after, head)
                    commits = await self.database.look(read, since=outages)
                    for each in self._listeners:
                        each.commits(commits)
                    head = commits[-1].place if commits else head
                    await self._woken.wait()
                    self._woken.clear()
            except DatabaseUnavailableError:
                await asyncio.sleep(_RETRY_S)

    async def _look_for(self, head: Place | None) -> Place:
        database = self.database
        place, is_served = await self.look(
            lambda: (database.place, head is None or database.is_served(head))
        )
        if head is None:
            for each in self._listeners:
                each.start()
            return place
        if is_served:
            return head
        self.process.mark(Mark.COMMITS_LOST)
        for each in self._listeners:
            each.lost()
        return place


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
