"""Lookups of SDS messages by ID: the selection of a store, the service of a node, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sim.database import Database
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Process
from sim.rng import happens
from sim.streams import EndStream
from store.domain.claims import Claim, ClaimAnswer, ClaimQuery, Hinted, Lookup
from store.domain.ports import HistoryEntry, PeerAddress, SdsLookup
from store.messages.transfer import transferred
from store.sync.fetch import FetchDone, Fetcher, FetchWork
from store.sync.session.reconciliation import in_time
from storenode.sds.codec import encode, sds_key

if TYPE_CHECKING:
    from sim.node_world import NodeWorld

LOOKUP: Final = "GetSdsMessages"
CHANNEL: Final = "channel"

_PAGE_MESSAGES: Final = 1
_PARENTS: Final = 3
_HEADS: Final = 3
_GENERATIONS: Final = 4
_RECENT: Final = 12
_PATIENCE_NS: Final = 120 * NS_PER_S
_LIES: Final = (b"\xff", b"", None)


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

    def __init__(self, world: NodeWorld) -> None:
        self.spoken: dict[bytes, Spoken] = {}
        self._world = world

    def parents(self) -> tuple[HistoryEntry, ...]:
        """Draw some of the last messages, with and without hints."""
        rng = self._world.rng
        last = list(self.spoken.values())[-_PARENTS:]
        return tuple(
            HistoryEntry(each.message_id, each.digest if rng.random() < 0.5 else None)
            for each in last
        )

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


def selected(database: Database, request: SdsLookup) -> Lookup:
    """Select SDS messages of a database by the shipped rules."""
    lookup = Lookup(request)
    answer = None
    while (read := lookup.step(answer)) is not None:
        answer = claims_for(database, read, request.claimants)
    return lookup


def claims_for(database: Database, read: ClaimQuery, claimants: int) -> ClaimAnswer:
    """Return the claims that a step reads, with one claimant too many where there are more."""
    found = [claim for key in read.keys for claim in _stored(database, key)[: claimants + 1]]
    hinted = {
        (query.key, query.hash): next(
            (Hinted(each, True) for each in _stored(database, query.key) if each[2] == query.hash),
            None,
        )
        for query in read.hints
    }
    return ClaimAnswer(read.keys, found, hinted)


def _stored(database: Database, key: bytes) -> list[Claim]:
    return [each for each in database.claims.get(key, ()) if each[2] in database.stored]


class SimSds:
    """The SDS messages of a node: a `store.domain.ports.SdsLookups`."""

    def __init__(self, process: Process) -> None:
        self._database = process.database

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Return the entries that are missing or not proven; proven claims are preferred."""
        assert request.prefer_proven
        found = await self._database.look(partial(selected, self._database, request))
        return found.missing, found.unproven


async def serve_lookup(process: Process, stream: EndStream) -> None:
    """Serve a peer; while there are faults, some nodes break the rules."""
    silence_s = process.scenario.silence_ns / NS_PER_S
    request: SdsLookup = await in_time(stream.read(), silence_s)
    database = process.database

    def read() -> list[bytes]:
        found = selected(database, request).messages
        return [transferred(database.stored[digest][1]) for _, _, digest, *_ in found]

    messages = await database.look(read)
    if process.node.world.faulty and happens(process.rng, process.scenario.faults.lies):
        messages = _lie(process, messages)
    for start in range(0, len(messages), _PAGE_MESSAGES):
        await in_time(stream.write(messages[start : start + _PAGE_MESSAGES]), silence_s)


def _lie(process: Process, messages: list[bytes]) -> list[bytes]:
    """Leave something out, or send what is no message or was not asked for."""
    process.judge.lies[process.name] += 1
    process.mark(Mark.LIED)
    lie = process.rng.choice(_LIES)
    others = list(process.database.stored.values())
    if lie is None:
        return messages[1:]
    if lie or not others:
        return [*messages, b"\xff"]
    return [*messages, transferred(process.rng.choice(others)[1])]


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
            judge.asked(process.name, _still(here, self._stored(own, request)).intersection(asked))
        honest = lies == judge.lies[peer.host]
        judge.fetched(
            process.database,
            request.entries,
            done,
            had=_still(there, self._stored(other, request)) if honest else set(),
            taken={each for each, digest in self._claimed(own, request) if own.had(digest)},
        )
        judge.waited(process.name, process.timeline.now_ns - began_ns, _PATIENCE_NS)
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


async def seek(world: NodeWorld) -> None:
    """Look up messages at nodes, and then their parents."""
    while True:
        await asyncio.sleep(world.rng.uniform(0, 2) * world.scenario.seek_every_ns / NS_PER_S)
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
