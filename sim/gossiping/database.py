"""A store of nodes that gossip: its commits in order, and its table of unread events.

`Session` is what one life of a node sees of it: the protocols of `store.gossip.driver.ports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from sim.database import Client, Database
from sim.dice import Dice, happens
from sim.limits import NS_PER_S
from sim.process import Process
from sim.promise import Promise
from store.domain.hub import CommitRow
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import Confirmed, OwnBatch, UnreadEvent
from store.gossip.events import Committed, GraphEvent
from store.gossip.graph import graph_events
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from storenode.common.bounded import BoundedDict

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

MAX_NEEDED: Final = 64
_PAUSE_NS: Final = 3 * NS_PER_S
_T = TypeVar("_T")


@dataclass(slots=True)
class Row:
    """An unread event, or one that waits for parents."""

    needed: int
    began_ns: int
    stores: dict[str, None] = field(default_factory=dict)
    missing: tuple[bytes, ...] = ()
    expired: bool = False

    @property
    def is_done(self) -> bool:
        """Is nothing waited for?"""
        return len(self.stores) >= self.needed and not self.missing

    def event(self, digest: bytes, now_ns: int) -> UnreadEvent:
        """As it is read."""
        age_ns = now_ns - self.began_ns
        stores = tuple(self.stores)
        return UnreadEvent(digest, b"", self.needed, stores, self.missing, age_ns, self.expired)


class GossipDatabase(Database):
    """What the nodes of one store share.

    Attributes:
        pauses: share of what it does that takes seconds.
        log: messages in the order of their commits; ``graph``: the events among them.
        rows: unread events. ``confirmed``: every pair that was ever confirmed.
        sessions: of lives of nodes, which are told what they have written.
    """

    def __init__(self, world: GossipWorld, number: int) -> None:
        lengths_ns = list(world.scenario.lengths_ns)
        super().__init__(f"store-{number}", world.timeline, world.dice, world.judge, lengths_ns)
        self.weather.delay_ns = world.scenario.disk_delay_ns
        self.pauses = 0.0
        self.log: list[bytes] = []
        self.graph: dict[bytes, GraphEvent] = {}
        self.rows: dict[bytes, Row] = {}
        self.confirmed: dict[bytes, dict[str, None]] = {}
        self.sessions: dict[Client, Session] = {}
        self._world = world

    def add(self, batch: RecordBatch, clock_ns: int) -> list[bool]:
        """Commit a batch now."""
        new = super().add(batch, clock_ns)
        self.graph.update((event.id, event) for event in graph_events(batch))
        added = [digest for digest, is_new in zip(batch.hashes, new, strict=True) if is_new]
        self.log += added
        self._world.committed(added)
        return new

    def write(
        self, client: Client, batch: RecordBatch, also: Callable[[list[bool]], None] | None = None
    ) -> Promise[list[bool]]:
        """Store what a peer has transferred."""
        del also
        return self.write_of(client, batch, Source.TRANSFER, 0)

    def write_of(
        self, client: Client, batch: RecordBatch, source: Source, asked: int
    ) -> Promise[list[bool]]:
        """Store a batch; ``asked``: so many other stores must confirm it."""

        def note(new: list[bool]) -> None:
            for digest, is_new in zip(batch.hashes, new, strict=True):
                self._need(digest, asked, is_new=is_new)
            if client in self.sessions:
                token = self.commits[-1].place[1] if any(new) else 0
                self.sessions[client].note(token, batch, new, source)

        return super().write(client, batch, note)

    def _need(self, digest: bytes, asked: int, *, is_new: bool) -> None:
        usual = self._world.gossip.config.max_confirms if is_new else 0
        needed = min(max(asked, usual), MAX_NEEDED)
        if needed:
            row = self.rows.setdefault(digest, Row(needed, self._world.timeline.now_ns))
            row.needed = max(row.needed, needed)

    def _later(
        self, action: Callable[[], None], portions: int = 1, dice: Dice | None = None
    ) -> None:
        if happens(self._dice, self.pauses):
            pause_ns = int(self._dice.uniform(0, _PAUSE_NS))
            self._timeline.after(pause_ns, lambda: Database._later(self, action, portions, dice))
        else:
            super()._later(action, portions, dice)


class Session:
    """The messages of a store, and what one life of a node knows of its own transactions."""

    def __init__(self, world: GossipWorld, process: Process, database: GossipDatabase) -> None:
        self.database = database
        self._world = world
        self.process = process
        self._own = BoundedDict[int, OwnBatch](world.gossip.kept_batches)
        self._keeps = False
        self._tracked: dict[bytes, None] = {}
        database.sessions[process] = self
        process.at_end.append(self._end)

    async def call(self, name: str, begin: Callable[[], Promise[_T]]) -> _T:
        """Have the store do something; the judge is told when it is refused."""
        if not self.process.alive:
            raise asyncio.CancelledError
        try:
            self.database.admit_write()
            return await begin()
        except (StoreBusy, StoreUnavailable):
            if self.process.alive:
                self._world.judge.store_failed(self.process, name)
            raise

    def _end(self) -> None:
        del self.database.sessions[self.process]

    # Messages

    async def persist(self, batch: RecordBatch, peer: str) -> StoreResult:  # noqa: ARG002
        """Store what a peer has sent."""
        return StoreResult(await self.write(batch, Source.GOSSIP, 0))

    async def write(self, batch: RecordBatch, source: Source, asked: int) -> list[bool]:
        """Store a batch durably; per message True if it was new."""
        write = partial(self.database.write_of, self.process, batch, source, asked)
        return await self.call("write", write)

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Read messages."""
        return await self.look("load", lambda: self.database.read(hashes, max_bytes))

    async def content_digests(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Look messages up; their content digests are not simulated."""
        known = self.database.held
        return await self.look("held", lambda: [b"" if each in known else None for each in hashes])

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Read what commits have added."""
        added = self.database.ids_of
        return await self._messages("arrived", lambda: [each for _, each in added(commits).pairs()])

    async def newest(self, limit: int) -> Committed:
        """Read the newest messages."""
        most = min(limit, self._world.gossip.replayed)
        return await self._messages("newest", lambda: self.database.log[-most:])

    def cache(self, batch: RecordBatch, places: Sequence[int], size_bytes: int) -> None:
        """Reading takes no longer here."""

    async def _messages(self, name: str, find: Callable[[], list[bytes]]) -> Committed:
        def read() -> Committed:
            ids = [digest for digest in find() if digest in self.database.held]
            graph = self.database.graph
            return Committed(ids, [graph[each] for each in ids if each in graph])

        return await self.look(name, read)

    async def look(self, name: str, work: Callable[[], _T]) -> _T:
        """Read something, all of it at one moment."""
        return await self.call(name, lambda: self.database.look(work))

    # Tracking

    def wake(self) -> None:
        """Keep batches from now on."""
        self._keeps = True

    def rest(self) -> None:
        """Keep none any more."""
        self._keeps = False
        self._own.clear()

    def take(self, token: int) -> OwnBatch | None:
        """A batch of this life, when its commit is reported."""
        return self._own.pop(token, None)

    def is_tracked(self, digest: bytes) -> bool:
        """Is it known to have become unread?"""
        return digest in self._tracked

    def remember(self, hashes: Iterable[bytes]) -> None:
        """These are unread."""
        self._tracked.update(dict.fromkeys(hashes))

    def forget(self, hashes: Iterable[bytes]) -> None:
        """These are read."""
        for digest in hashes:
            self._tracked.pop(digest, None)

    def note(self, token: int, batch: RecordBatch, new: Sequence[bool], source: Source) -> None:
        """This life has committed a batch."""
        rows = self.database.rows
        needed = {digest: rows[digest].needed for digest in batch.hashes if digest in rows}
        self.remember(needed)
        places = [place for place, is_new in enumerate(new) if is_new]
        if self._keeps and places:
            self._own[token] = OwnBatch(batch, places, source, needed, 1)


class UnreadSession:
    """The table of unread events as one life of a node sees it; ``confirmed`` is told of pairs."""

    def __init__(self, session: Session, confirmed: Callable[[Confirmed], None]) -> None:
        self._session = session
        self._database = session.database
        self._confirmed = confirmed

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """The newest unread events."""
        rows = self._database.rows
        return await self._read(
            "unread.newest",
            lambda: islice((each for each in reversed(rows) if not rows[each].expired), limit),
        )

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Those of some messages."""
        rows = self._database.rows
        return await self._read("unread.of", lambda: (each for each in hashes if each in rows))

    async def is_shared(self) -> bool:
        """Does another node work on the database?"""
        database = self._database
        return await self._session.look("unread.is_shared", lambda: len(database.sessions) > 1)

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations."""

        def note() -> None:
            for each in confirmed:
                self._confirmed(each)
                self._database.confirmed.setdefault(each.message_hash, {})[each.store_id] = None
                if each.message_hash in self._database.rows:
                    self._database.rows[each.message_hash].stores[each.store_id] = None

        await self._change("confirm", note)

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Give some up."""

        def note() -> None:
            for digest in self._database.rows.keys() & set(hashes):
                self._database.rows[digest].expired = True

        await self._change("expire", note)

    async def wait_for(self, parents: Mapping[bytes, Sequence[bytes]]) -> None:
        """Note missing parents."""

        def note() -> None:
            rows, now_ns = self._database.rows, self._session.process.timeline.now_ns
            for digest, missing in parents.items():
                if digest in rows or (missing and digest in self._database.held):
                    rows.setdefault(digest, Row(0, now_ns)).missing = tuple(missing)

        await self._change("wait_for", note)

    async def sweep(self) -> object:
        """Nothing grows old enough in a run."""
        return 0

    async def _read(self, name: str, find: Callable[[], Iterable[bytes]]) -> Sequence[UnreadEvent]:
        def read() -> list[UnreadEvent]:
            now_ns = self._session.process.timeline.now_ns
            return [self._database.rows[each].event(each, now_ns) for each in find()]

        return await self._session.look(name, read)

    async def _change(self, name: str, work: Callable[[], None]) -> None:
        def change() -> None:
            work()
            rows = self._database.rows
            for digest in [digest for digest, row in rows.items() if row.is_done]:
                del rows[digest]

        process = self._session.process
        await self._session.call(name, lambda: self._database.change(process, change))
