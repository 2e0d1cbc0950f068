"""What gossip wants of the database: answers to the machine, and notes that must last."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from store.db.commits.gossip_reads import GossipReads
from store.db.writing.tracking import Tracking
from store.db.writing.unread import UnreadEvents
from store.domain.ports import Source, StoreBusy, StoreUnavailable, Writer
from store.domain.unread import Confirmed
from store.gossip.events import (
    Confirm,
    Expire,
    Failed,
    Known,
    Load,
    Loaded,
    LookUp,
    Persist,
    Persisted,
    Waiting,
)
from store.observe.logging import get_logger
from store.observe.metrics import Metrics

if TYPE_CHECKING:
    from store.observe.tracing import Tracing

_LOG = get_logger("store.runtime.gossip")

NOTE_RETRY_S: Final = 1.0
"""Pause before notes are written again that the database did not take."""

MAX_NOTES_AT_ONCE: Final = 4_096

Request = Persist | Load | LookUp
Answer = Persisted | Loaded | Known | Failed
Note = Confirm | Expire | Waiting

_AWAY: Final = (StoreUnavailable, StoreBusy)


@dataclass(frozen=True, slots=True)
class GossipWork:
    """What the gossip of a node works on."""

    reads: GossipReads
    tracking: Tracking
    unread: UnreadEvents
    writer: Writer
    metrics: Metrics
    tracing: Tracing | None = None

    async def answer(self, request: Request) -> Answer:
        """Do what the machine asks the database for."""
        try:
            match request:
                case Persist():
                    return await self._persist(request)
                case Load():
                    found = await self.reads.load(request.ids, request.max_bytes)
                    if self.tracing is not None:
                        self.tracing.bodies(request.ids, found)
                    return Loaded(request.token, found)
                case LookUp():
                    return Known(request.token, await self.reads.held(request.ids))
        except _AWAY:
            return Failed(request.token)
        except Exception:  # noqa: BLE001 - a fault of ours; the machine asks again
            _LOG.exception("gossip_request_failed", request=type(request).__name__)
            return Failed(request.token)

    async def _persist(self, request: Persist) -> Persisted:
        if self.tracing is None:
            new = await self.writer.store(request.batch, Source.GOSSIP)
        else:
            with self.tracing.receiving(request.batch.hashes, request.peer):
                new = await self.writer.store(request.batch, Source.GOSSIP)
        stored = sum(new)
        self.metrics.count_intake(Source.GOSSIP.value, stored, len(new) - stored, {})
        return Persisted(request.token, new)


class Notes:
    """Writes what must last, in its order, until the database takes it."""

    def __init__(self, unread: UnreadEvents) -> None:
        self._unread = unread
        self._queue: deque[Note] = deque()
        self._arrived = asyncio.Event()

    def add(self, note: Note) -> None:
        """Have something written."""
        self._queue.append(note)
        self._arrived.set()

    async def run(self) -> None:
        """Write until cancelled; one kind at a time, as much of it as has come."""
        while True:
            await self._arrived.wait()
            some = list(self._first_of_a_kind())
            try:
                await self._write(some)
            except _AWAY:
                await asyncio.sleep(NOTE_RETRY_S)
                continue
            for _ in some:
                self._queue.popleft()
            if not self._queue:
                self._arrived.clear()

    def _first_of_a_kind(self) -> Iterable[Note]:
        kind = type(self._queue[0])
        same = itertools.takewhile(lambda note: type(note) is kind, self._queue)
        return itertools.islice(same, MAX_NOTES_AT_ONCE)

    async def _write(self, notes: Sequence[Note]) -> None:
        match notes[0]:
            case Confirm():
                await self._unread.confirm(
                    [
                        Confirmed(digest, note.store_id)
                        for note in notes
                        if isinstance(note, Confirm)
                        for digest in note.ids
                    ]
                )
            case Expire():
                expired = [note.ids for note in notes if isinstance(note, Expire)]
                await self._unread.expire(list(itertools.chain(*expired)))
            case Waiting():
                waiting = [note for note in notes if isinstance(note, Waiting)]
                await self._unread.wait_for({note.id: note.missing for note in waiting})
