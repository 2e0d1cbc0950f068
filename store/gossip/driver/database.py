"""The database of the machine: its requests, its durable writes, and what is committed."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from store.domain.environment import Environment, EventLog
from store.domain.hub import CommitRow, at_most
from store.domain.ports import PUBLISHED, NotServingError, Source
from store.domain.unread import Confirmed, OwnBatch, UnreadEvent
from store.gossip.driver.ports import DriverDatabase, UnreadTable
from store.gossip.events import Committed, Confirm, Expire, LoadBodies, LookUp, PersistBatch
from store.gossip.graph import graph_events
from store.gossip.machine import Gossip
from storenode.message.rules import Reason

MAX_UNREAD_COMMITS: Final = 4_096
"""Commits of other nodes that wait to be read; the oldest beyond are left to reconciliation."""

MESSAGES_AT_ONCE: Final = 4_096
RETRY_S: Final = 1.0
"""Pause before the database is asked again that did not serve."""

MAX_QUEUED_WRITES: Final = 65_536
"""Writes that wait for the database. The oldest beyond are dropped: their rows stay unread in the
table, from where the driver adopts them again, and their content is received again."""

Request = PersistBatch | LoadBodies | LookUp
Answer = Callable[[Gossip], None]
"""A method of the machine, with its arguments."""

Write = Confirm | Expire

_T = TypeVar("_T")


async def answer(database: DriverDatabase, environment: Environment, request: Request) -> Answer:
    """Run a request of the machine, and return its answer."""
    try:
        match request:
            case PersistBatch():
                new = await database.persist(request.batch)
                conflicts = len(new.conflicts)
                rejected = {str(Reason.CONFLICT): conflicts} if conflicts else {}
                duplicate = new.count(False) - conflicts
                environment.count_intake(Source.GOSSIP.value, duplicate, rejected)
                return lambda machine: machine.persisted(request.token, new, new.conflicts)
            case LoadBodies():
                found = await database.messages.load(request.ids, request.max_bytes)
                return lambda machine: machine.loaded(request.token, found)
            case LookUp():
                digests = await database.messages.content_digests(request.ids)
                is_stored = [digest is not None for digest in digests]
                known = [digest or b"" for digest in digests]
                return lambda machine: machine.looked_up(request.token, is_stored, known)
    except NotServingError:
        pass
    except Exception as error:
        name = type(request).__name__
        environment.log.error("gossip_request_failed", request=name, exc_info=error)
    return lambda machine: machine.failed(request.token)


class WriteBehind:
    """Writes to the table of unread events in order, and again until the database takes it."""

    def __init__(self, unread: UnreadTable, log: EventLog) -> None:
        self._unread = unread
        self._log = log
        self._queue: deque[Write] = deque()
        self._dropped = 0
        self._arrived = asyncio.Event()

    def add(self, write: Write) -> None:
        """Queue a write."""
        self._queue.append(write)
        if len(self._queue) > MAX_QUEUED_WRITES:
            self._queue.popleft()
            self._dropped += 1
        self._arrived.set()

    async def run(self) -> None:
        """Write until cancelled, as much as has come."""
        while True:
            await self._arrived.wait()
            some = list(itertools.islice(self._queue, MESSAGES_AT_ONCE))
            try:
                await self._write(some)
            except NotServingError:
                await asyncio.sleep(RETRY_S)
                continue
            _remove_first(self._queue, some)
            if self._dropped:
                self._log.warning("gossip_writes_dropped", count=self._dropped)
                self._dropped = 0
            if not self._queue:
                self._arrived.clear()

    async def _write(self, some: Sequence[Write]) -> None:
        """Write confirmations first: a message that they complete need not expire."""
        confirms = [each for each in some if isinstance(each, Confirm)]
        expired = [digest for each in some if isinstance(each, Expire) for digest in each.ids]
        if confirms:
            await self._unread.confirm(
                [Confirmed(digest, each.store_id) for each in confirms for digest in each.ids]
            )
        if expired:
            await self._unread.expire(expired)


class CommitReader:
    """Passes what is committed to ``commit``, and unread events that come with it to ``restore``.

    What this node wrote is in memory and is passed at once; what others wrote is read.
    """

    def __init__(
        self,
        database: DriverDatabase,
        log: EventLog,
        commit: Callable[[Committed], None],
        restore: Callable[[Sequence[UnreadEvent]], None],
    ) -> None:
        self._database = database
        self._log = log
        self._commit = commit
        self._restore = restore
        self._position = 0
        self._awake = False
        self._foreign: deque[CommitRow] = deque(maxlen=MAX_UNREAD_COMMITS)
        self._arrived = asyncio.Event()

    def wake(self) -> None:
        """Pass on what is committed from now on."""
        self._database.own.wake()
        self._awake = True

    def rest(self) -> None:
        """Ignore commits."""
        self._database.own.rest()
        self._awake, self._position = False, 0  # which the database may lose
        self._foreign = deque(maxlen=MAX_UNREAD_COMMITS)
        self._arrived.clear()

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Take commits in their order; some may be reported again."""
        for commit in commits if self._awake else ():
            if commit.place[0] <= self._position:
                continue
            self._position = commit.place[0]
            own = self._database.own.take(commit.place[1])
            if own is not None:
                self._commit(self._describe(own))
            else:
                if len(self._foreign) == MAX_UNREAD_COMMITS:
                    passed = self._foreign[0].place[0]
                    self._log.warning("gossip_commit_passed_over", position=passed)
                self._foreign.append(commit)
                self._arrived.set()

    async def run(self) -> None:
        """Read what other nodes write, until cancelled."""
        while True:
            await self._arrived.wait()
            foreign = self._foreign
            some = at_most(foreign, MESSAGES_AT_ONCE)
            try:
                arrived = await self._database.messages.arrived(some)
                unread = await self._database.unread.of(arrived.ids)
            except NotServingError:
                await asyncio.sleep(RETRY_S)
                continue
            if foreign is not self._foreign:  # it has rested: what was read may be lost
                continue
            self._commit(arrived)
            if unread:
                self._restore(unread)
            _remove_first(self._foreign, some)
            if not self._foreign:
                self._arrived.clear()

    def _describe(self, own: OwnBatch) -> Committed:
        batch = own.batch
        ids, is_published = batch.hashes, own.source in PUBLISHED
        published = {digest: own.needed.get(digest, 0) for digest in ids} if is_published else {}
        events = graph_events(batch) if batch.sds else []
        return Committed(ids, events, content_digests=batch.content_digests, published=published)


def _remove_first(queue: deque[_T], some: Iterable[_T]) -> None:
    """Remove the first elements of a queue, as far as they were not dropped meanwhile."""
    for each in some:
        if queue and queue[0] is each:
            queue.popleft()
