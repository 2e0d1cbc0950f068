"""The commit feed as inputs of the machine, whichever node wrote what was committed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from store.domain.environment import EventLog
from store.domain.hub import CommitRow, at_most
from store.domain.ports import PUBLISHED
from store.domain.unread import OwnBatch
from store.gossip.driver.ports import DriverDatabase
from store.gossip.driver.requests import DATABASE_AWAY
from store.gossip.events import Committed, Input, Restored
from store.gossip.graph import graph_events

MAX_UNREAD_COMMITS: Final = 4_096
"""Commits of other nodes that wait to be read; the oldest beyond are left to reconciliation."""

MESSAGES_AT_ONCE: Final = 4_096
RETRY_S: Final = 1.0


class CommitReader:
    """Turns commits into inputs and passes them to ``take``.

    What this node wrote is in memory and is passed at once; what others wrote is read.
    """

    def __init__(
        self, database: DriverDatabase, log: EventLog, take: Callable[[Input], None]
    ) -> None:
        self._database = database
        self._log = log
        self._take = take
        self._position = 0
        self._awake = False
        self._foreign: deque[CommitRow] = deque(maxlen=MAX_UNREAD_COMMITS)
        self._arrived = asyncio.Event()

    def wake(self) -> None:
        """Turn what is committed from now on into inputs."""
        self._database.tracking.wake()
        self._awake = True

    def rest(self) -> None:
        """Ignore commits."""
        self._database.tracking.rest()
        self._awake = False
        self._foreign.clear()

    def add(self, commits: Sequence[CommitRow]) -> None:
        """Take commits in their order; some may be reported again."""
        for commit in commits if self._awake else ():
            if commit.place[0] <= self._position:
                continue
            self._position = commit.place[0]
            own = self._database.tracking.take(commit.place[1])
            if own is not None:
                self._take(self._input_of(own))
            else:
                if len(self._foreign) == MAX_UNREAD_COMMITS:
                    passed = self._foreign[0].place[0]
                    self._log.warning("gossip_commit_passed_over", position=passed)
                self._foreign.append(commit)
                self._arrived.set()

    def lost(self) -> None:
        """Accept lower positions again, after the database has lost commits."""
        self._position = 0

    async def run(self) -> None:
        """Read what other nodes write, until cancelled."""
        while True:
            await self._arrived.wait()
            try:
                await self._read_foreign()
            except DATABASE_AWAY:
                await asyncio.sleep(RETRY_S)

    def _input_of(self, own: OwnBatch) -> Committed:
        batch = own.batch
        self._database.messages.cache(batch, own.new, own.size_bytes)
        ids = [batch.hashes[place] for place in own.new]
        digests = [batch.content_digests[place] for place in own.new]
        is_published = own.source in PUBLISHED
        published = {digest: own.needed.get(digest, 0) for digest in ids} if is_published else {}
        events = graph_events(batch) if batch.sds else []
        if events and len(ids) < len(batch):
            new = set(ids)
            events = [event for event in events if event.id in new]
        return Committed(ids, events, content_digests=digests, published=published)

    async def _read_foreign(self) -> None:
        while self._foreign:
            some = at_most(self._foreign, MESSAGES_AT_ONCE)
            arrived = await self._database.messages.arrived(some)
            unread = await self._database.unread.of(arrived.ids)
            self._take(arrived)
            if unread:
                self._database.tracking.remember(event.message_hash for event in unread)
                self._take(Restored(unread))
            for commit in some:
                if self._foreign and self._foreign[0] is commit:
                    self._foreign.popleft()
        self._arrived.clear()
