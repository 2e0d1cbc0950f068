"""A store as one life of a node that gossips sees it: `store.gossip.driver.ports`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from sim.database import Database
from sim.process import Process
from sim.promise import Promise
from store.domain.hub import CommitRow
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import Confirmed, OwnBatch, UnreadEvent
from store.gossip.events import Committed
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from storenode.common.bounded import BoundedDict

if TYPE_CHECKING:
    from sim.node_world import NodeWorld

_T = TypeVar("_T")


class Session:
    """The messages of a store, and the transactions of one life of a node."""

    def __init__(self, world: NodeWorld, process: Process, database: Database) -> None:
        self.database = database
        self._world = world
        self.process = process
        self._own = BoundedDict[int, OwnBatch](world.gossip.kept_batches)
        self._keeps = False
        self._tracked: dict[bytes, None] = {}
        database.listeners[process] = self.note
        process.at_end.append(self._end)

    async def call(self, name: str, begin: Callable[[], Promise[_T]]) -> _T:
        """Call the store; report a refusal to the checker."""
        if not self.process.alive:
            raise asyncio.CancelledError
        try:
            self.database.admit_write()
            return await begin()
        except (StoreBusy, StoreUnavailable):
            if self.process.alive:
                self._world.gossip_checker.store_failed(self.process, name)
            raise

    def _end(self) -> None:
        del self.database.listeners[self.process]

    # Messages

    async def persist(self, batch: RecordBatch, peer: str) -> StoreResult:  # noqa: ARG002
        """Store what a peer has sent."""
        return StoreResult(await self.write(batch, Source.GOSSIP, 0))

    async def write(self, batch: RecordBatch, source: Source, asked: int) -> list[bool]:
        """Store a batch durably; per message True if it was new."""
        write = partial(self.database.write, self.process, batch, source, asked)
        return await self.call("write", write)

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Read messages."""
        return await self.look(
            "load", lambda: self.database.read(map(self.database.stored.get, hashes), max_bytes)
        )

    async def content_digests(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Read the content digest of each message; None: it is not stored."""
        stored, digests = self.database.stored, self.database.digests
        return await self.look(
            "held", lambda: [digests[each] if each in stored else None for each in hashes]
        )

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Read what commits have added."""
        added = self.database.ids_of
        return await self._messages("arrived", lambda: [each for _, each in added(commits).pairs()])

    async def newest(self, limit: int) -> Committed:
        """Read the newest messages."""
        most = min(limit, self._world.gossip.replayed)
        return await self._messages("newest", lambda: self.database.log[-most:])

    def cache(self, batch: RecordBatch, places: Sequence[int], size_bytes: int) -> None:
        """Ignore messages: reading takes no time here."""

    async def _messages(self, name: str, find: Callable[[], list[bytes]]) -> Committed:
        def read() -> Committed:
            ids = [digest for digest in find() if digest in self.database.stored]
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
        """Pop a batch of this life when its commit is reported."""
        return self._own.pop(token, None)

    def is_tracked(self, digest: bytes) -> bool:
        """Return True if a message became unread in this life."""
        return digest in self._tracked

    def remember(self, hashes: Iterable[bytes]) -> None:
        """Remember unread messages."""
        self._tracked.update(dict.fromkeys(hashes))

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Forget messages that are confirmed."""
        for digest in hashes:
            self._tracked.pop(digest, None)

    def note(self, token: int, batch: RecordBatch, new: Sequence[bool], source: Source) -> None:
        """Note a batch that this life has committed."""
        rows = self.database.unread
        needed = {digest: rows[digest].needed for digest in batch.hashes if digest in rows}
        self.remember(needed)
        places = [place for place, is_new in enumerate(new) if is_new]
        if self._keeps and places:
            self._own[token] = OwnBatch(batch, places, source, needed, 1)


class UnreadSession:
    """The table of unread events of one life of a node; ``confirmed`` is called with pairs."""

    def __init__(self, session: Session, confirmed: Callable[[Confirmed], None]) -> None:
        self._session = session
        self._database = session.database
        self._confirmed = confirmed

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """Read the newest unread events."""
        rows = self._database.unread
        return await self._read(
            "unread.newest",
            lambda: islice((each for each in reversed(rows) if not rows[each].expired), limit),
        )

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Read the unread events of some messages."""
        rows = self._database.unread
        return await self._read("unread.of", lambda: (each for each in hashes if each in rows))

    async def is_shared(self) -> bool:
        """Return True if another node shares the database."""
        database = self._database
        return await self._session.look("unread.is_shared", lambda: len(database.listeners) > 1)

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations."""

        def note() -> None:
            for each in confirmed:
                self._confirmed(each)
                self._database.confirmed.setdefault(each.message_hash, {})[each.store_id] = None
                if each.message_hash in self._database.unread:
                    self._database.unread[each.message_hash].stores[each.store_id] = None

        await self._change("confirm", note)

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Expire unread events."""

        def note() -> None:
            for digest in self._database.unread.keys() & set(hashes):
                self._database.unread[digest].expired = True

        await self._change("expire", note)

    async def sweep(self) -> object:
        """Return 0: no event grows old enough in a run."""
        return 0

    async def _read(self, name: str, find: Callable[[], Iterable[bytes]]) -> Sequence[UnreadEvent]:
        def read() -> list[UnreadEvent]:
            now_ns = self._session.process.timeline.now_ns
            return [self._database.unread[each].event(each, now_ns) for each in find()]

        return await self._session.look(name, read)

    async def _change(self, name: str, work: Callable[[], None]) -> None:
        def change() -> None:
            work()
            rows = self._database.unread
            for digest in [digest for digest, row in rows.items() if row.is_done]:
                del rows[digest]

        process = self._session.process
        await self._session.call(name, lambda: self._database.change(process, change))
