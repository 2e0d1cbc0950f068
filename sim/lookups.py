"""Lookups of SDS messages by ID: those of a node at its peers, and clients that ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sim.database import Database
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Process
from sim.rng import happens
from sim.store import SimSds
from store.domain.ports import HistoryEntry, PeerAddress, SdsLookup
from store.sync.fetch import FetchDone, Fetcher, FetchWork
from storenode.sds.codec import encode, sds_key

if TYPE_CHECKING:
    from sim.world import World

CHANNEL: Final = "channel"

_PARENTS: Final = 3
_HEADS: Final = 3
_GENERATIONS: Final = 4
_RECENT: Final = 12
_PATIENCE_NS: Final = 120 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Spoken:
    """An SDS message of a client."""

    message_id: bytes
    digest: bytes
    parents: tuple[HistoryEntry, ...]


class Channel:
    """A channel of clients: each message names some of the last ones as its parents.

    Attributes:
        spoken: all of it by message ID, in its order.
    """

    def __init__(self, world: World) -> None:
        self.spoken: dict[bytes, Spoken] = {}
        self._world = world

    def parents(self) -> tuple[HistoryEntry, ...]:
        """Draw some of the last messages, with and without hints, and perhaps one of no store."""
        rng = self._world.rng
        last = list(self.spoken.values())[-_PARENTS:]
        found = [
            HistoryEntry(each.message_id, each.digest if rng.random() < 0.5 else None)
            for each in last
        ]
        gossip = self._world.scenario.gossip
        if gossip is not None and happens(rng, gossip.strange):
            found.append(HistoryEntry(b"unknown", rng.randbytes(32)))
        return tuple(found)

    @staticmethod
    def payload(message_id: bytes, parents: Sequence[HistoryEntry], content: bytes) -> bytes:
        """Encode an SDS message."""
        history = [(each.message_id.decode(), each.retrieval_hint) for each in parents]
        return encode(CHANNEL, message_id.decode(), parents=history, content=content)

    def recent(self) -> tuple[HistoryEntry, ...]:
        """Draw some of the latest messages."""
        last = list(self.spoken.values())[-_RECENT:]
        some = self._world.rng.sample(last, min(_HEADS, len(last)))
        return tuple(HistoryEntry(each.message_id, each.digest) for each in some)


_StoredEntries = dict[HistoryEntry, tuple[int, bytes]]
"""Entries that a database holds, and what is stored of each."""


class JudgedFetcher(Fetcher):
    """The shipped lookup, which reports its results to the judge."""

    def __init__(
        self,
        process: Process,
        work: FetchWork,
        asked: dict[asyncio.Task[Any] | None, Sequence[HistoryEntry]],
    ) -> None:
        super().__init__(work, SimSds(process))
        self._process = process
        self._asked = asked

    async def fetch(self, peer: PeerAddress, request: SdsLookup) -> FetchDone:
        """Fetch messages of one peer, once."""
        process, judge = self._process, self._process.judge
        own, other = process.database, process.node.world.database_at(peer.host)
        here, there = self._stored(own, request), self._stored(other, request)
        lies, began_ns = judge.lies[peer.host], process.timeline.now_ns
        try:
            done = await super().fetch(peer, request)
        finally:
            asked = self._asked.pop(asyncio.current_task(), ())
            kept_ids = _still(here, self._stored(own, request)).intersection(asked)
            judge.demand(
                not kept_ids, f"{process.name} asks for {len(kept_ids)} SDS messages that it holds"
            )
        honest = lies == judge.lies[peer.host]
        judge.fetched(
            process.database,
            request.entries,
            done,
            had=_still(there, self._stored(other, request)) if honest else set(),
            taken={each for each, digest in self._claimed(own, request) if own.had(digest)},
        )
        waited_ns = process.timeline.now_ns - began_ns
        judge.demand(waited_ns <= _PATIENCE_NS, f"{process.name} has waited {waited_ns} ns")
        for mark, entries in (
            (Mark.LOOKED_UP, done.found),
            (Mark.NOT_FOUND, done.missing),
            (Mark.LOOKUP_REFUSED, done.refused),
            (Mark.LOOKUP_FAILED, done.error),
        ):
            if entries:
                process.mark(mark)
        return done

    def _stored(self, database: Database, request: SdsLookup) -> _StoredEntries:
        claimed = self._claimed(database, request)
        stored = database.stored
        return {each: stored[digest] for each, digest in claimed if digest in stored}

    @staticmethod
    def _claimed(database: Database, request: SdsLookup) -> Iterator[tuple[HistoryEntry, bytes]]:
        """Yield entries that a database has or had, and the hash of the message of each."""
        for each in request.entries:
            for claim in database.claims.get(sds_key(request.channel_id, each.message_id), ()):
                yield each, claim[2]


async def seek(world: World) -> None:
    """Look up messages at a node, and then their parents."""
    node, entries = world.rng.choice(world.nodes), world.channel.recent()
    for _ in range(_GENERATIONS):
        for peer in world.rng.sample(node.peers, len(node.peers)):
            if entries and node.peering is not None:
                await asyncio.wait({node.peering.fetch(peer, entries)})
        spoken = [world.channel.spoken[each.message_id] for each in entries]
        entries = tuple(dict.fromkeys(one for each in spoken for one in each.parents))


def _still(before: _StoredEntries, now: _StoredEntries) -> set[HistoryEntry]:
    """Return what was stored all the time: a message that was lost and came again is not."""
    return {each for each, stored in before.items() if now.get(each) is stored}
