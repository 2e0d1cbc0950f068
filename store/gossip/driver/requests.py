"""The requests of the machine to the database, and a queue of durable writes."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final

from store.domain.environment import Environment, EventLog
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import Confirmed
from store.gossip.driver.ports import DriverDatabase, UnreadTable
from store.gossip.events import (
    BatchPersisted,
    BodiesLoaded,
    Confirm,
    Expire,
    Failed,
    Known,
    LoadBodies,
    LookUp,
    PersistBatch,
    Waiting,
)
from storenode.message.rules import Reason

WRITE_RETRY_S: Final = 1.0
"""Pause before a write is tried again that the database did not take."""

MAX_WRITES_AT_ONCE: Final = 4_096

MAX_QUEUED_WRITES: Final = 65_536
"""Writes that wait for the database. The oldest beyond are dropped: their rows stay unread in the
table, from where the driver adopts them again, and what they said is learnt anew."""

Request = PersistBatch | LoadBodies | LookUp
Answer = BatchPersisted | BodiesLoaded | Known | Failed
Write = Confirm | Expire | Waiting

DATABASE_AWAY: Final = (StoreUnavailable, StoreBusy)


async def answer(database: DriverDatabase, environment: Environment, request: Request) -> Answer:
    """Run a request of the machine, and return its answer."""
    try:
        match request:
            case PersistBatch():
                new = await database.persist(request.batch, request.peer)
                conflicts = len(new.conflicts)
                rejected = {str(Reason.CONFLICT): conflicts} if conflicts else {}
                duplicate = new.count(False) - conflicts
                environment.counts.count_intake(Source.GOSSIP.value, duplicate, rejected)
                return BatchPersisted(request.token, new, new.conflicts)
            case LoadBodies():
                found = await database.messages.load(request.ids, request.max_bytes)
                return BodiesLoaded(request.token, found)
            case LookUp():
                digests = await database.messages.content_digests(request.ids)
                is_stored = [digest is not None for digest in digests]
                return Known(request.token, is_stored, [digest or b"" for digest in digests])
    except DATABASE_AWAY:
        return Failed(request.token)
    except Exception as error:
        environment.log.error(
            "gossip_request_failed", request=type(request).__name__, exc_info=error
        )
        return Failed(request.token)


class WriteBehind:
    """Writes to the table of unread events in order, and again until the database takes it."""

    def __init__(self, unread: UnreadTable, log: EventLog) -> None:
        self._unread = unread
        self._log = log
        self._queue: deque[Write] = deque()
        self._under_way: Sequence[Write] = ()
        self._dropped = 0
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """Count the writes that are not durable yet."""
        return len(self._queue) + len(self._under_way)

    def add(self, write: Write) -> None:
        """Queue a write."""
        self._queue.append(write)
        if len(self._queue) > MAX_QUEUED_WRITES:
            self._queue.popleft()
            self._dropped += 1
        self._arrived.set()

    async def run(self) -> None:
        """Write until cancelled; one kind at a time, as much of it as has come."""
        while True:
            await self._arrived.wait()
            self._under_way = self._under_way or self._take_first_of_a_kind()
            try:
                await self._write(self._under_way)
            except DATABASE_AWAY:
                await asyncio.sleep(WRITE_RETRY_S)
                continue
            self._under_way = ()
            if self._dropped:
                self._log.warning("gossip_writes_dropped", count=self._dropped)
                self._dropped = 0
            if not self._queue:
                self._arrived.clear()

    def _take_first_of_a_kind(self) -> list[Write]:
        kind = type(self._queue[0])
        same = itertools.takewhile(lambda write: type(write) is kind, self._queue)
        some = list(itertools.islice(same, MAX_WRITES_AT_ONCE))
        for _ in some:
            self._queue.popleft()
        return some

    async def _write(self, writes: Sequence[Write]) -> None:
        match writes[0]:
            case Confirm():
                await self._unread.confirm(
                    [
                        Confirmed(digest, write.store_id)
                        for write in writes
                        if isinstance(write, Confirm)
                        for digest in write.ids
                    ]
                )
            case Expire():
                expired = [write.ids for write in writes if isinstance(write, Expire)]
                await self._unread.expire(list(itertools.chain(*expired)))
            case Waiting():
                waiting = [write for write in writes if isinstance(write, Waiting)]
                await self._unread.wait_for({write.id: write.missing for write in waiting})
