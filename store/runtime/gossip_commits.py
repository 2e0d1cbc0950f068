"""Commits as they come by, for the gossip of a node: whoever wrote them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from store.domain.commits import CommitRow, at_most
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import UnreadEvent
from store.gossip.commits import OwnBatch
from store.gossip.events import Committed, Input, Publishing, Restored
from store.gossip.events import UnreadEvent as GossipUnread
from store.gossip.graph import graph_events
from store.observe.logging import get_logger
from store.runtime.gossip_work import GossipWork

_LOG = get_logger("store.runtime.gossip")

MAX_WAITING_COMMITS: Final = 4_096
"""Commits of others that wait to be read; beyond, the oldest are left to reconciliation."""

MESSAGES_AT_ONCE: Final = 4_096
RETRY_S: Final = 1.0


class Commits:
    """Turns commits into inputs, which ``take`` is called with.

    What this node wrote is in memory and goes at once; what others wrote is read.
    """

    def __init__(self, work: GossipWork, take: Callable[[Input], None]) -> None:
        self._work = work
        self._take = take
        self._heard = 0
        self._hears = False
        self._others: deque[CommitRow] = deque(maxlen=MAX_WAITING_COMMITS)
        self._arrived = asyncio.Event()

    def wake(self) -> None:
        """Turn what is committed from now on into inputs."""
        self._work.tracking.wake()
        self._hears = True

    def rest(self) -> None:
        """Pass commits over."""
        self._work.tracking.rest()
        self._hears = False
        self._others.clear()

    def hear(self, commits: Sequence[CommitRow]) -> None:
        """Commits in their order; some may be told again."""
        for commit in commits if self._hears else ():
            if commit.place[0] <= self._heard:
                continue
            self._heard = commit.place[0]
            kept = self._work.tracking.take(commit.batch)
            if kept is not None:
                for given in self._written_here(kept):
                    self._take(given)
            else:
                if len(self._others) == MAX_WAITING_COMMITS:
                    _LOG.warning("gossip_commit_passed_over", position=self._others[0].place[0])
                self._others.append(commit)
                self._arrived.set()

    def lost(self) -> None:
        """Commits were lost: positions begin anew somewhere before."""
        self._heard = 0

    async def run(self) -> None:
        """Read what others write, until cancelled."""
        while True:
            await self._arrived.wait()
            try:
                await self._read_others()
            except (StoreUnavailable, StoreBusy):
                await asyncio.sleep(RETRY_S)

    def _written_here(self, kept: OwnBatch) -> Iterator[Input]:
        batch = kept.batch
        self._work.reads.recent.add(batch, kept.new, kept.size_bytes)
        ids = [batch.hashes[place] for place in kept.new]
        if kept.source is Source.CLIENT:
            by_needed: dict[int, list[bytes]] = {}
            for digest in ids:
                by_needed.setdefault(kept.needed.get(digest, 0), []).append(digest)
            for needed, some in by_needed.items():
                yield Publishing(some, needed)
        events = graph_events(batch) if batch.sds else []
        if events and len(ids) < len(batch):
            new = set(ids)
            events = [event for event in events if event.id in new]
        yield Committed(ids, events)

    async def _read_others(self) -> None:
        while self._others:
            some = at_most(self._others, MESSAGES_AT_ONCE)
            arrived = await self._work.reads.arrived(some)
            unread = await self._work.unread.of(arrived.ids)
            self._take(Committed(arrived.ids, arrived.events))
            if unread:
                self._work.tracking.remember(event.message_hash for event in unread)
                self._take(Restored([restored(event) for event in unread]))
            for commit in some:
                if self._others and self._others[0] is commit:
                    self._others.popleft()
        self._arrived.clear()


def restored(event: UnreadEvent) -> GossipUnread:
    """An unread event of the database, as the machine takes it."""
    return GossipUnread(event.message_hash, event.needed, event.age_ns, event.stores, event.missing)
