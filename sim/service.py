"""The calls that a node serves to clients, to participants of a channel, and to peers.

The shipped rules of admission, claims and causal histories decide what is stored and found. While
there are faults, some nodes break the rules of what they serve.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from sim.database import Database
from sim.limits import NS_PER_S
from sim.marks import Mark
from sim.process import Process
from sim.rng import happens
from sim.streams import EndStream, Handler
from store.domain.admission import Admission, Verdict
from store.domain.causal import CausalWalk
from store.domain.claims import Claim, ClaimAnswer, ClaimQuery, Hinted, Lookup
from store.domain.hub import at_most
from store.domain.ports import (
    CausalRequest,
    CursorOutOfRangeError,
    SdsLookup,
    Source,
    StoreUnavailableError,
)
from store.messages.cursor import ScanCursor
from store.messages.transfer import transferred
from store.sync.session.reconciliation import in_time

PUBLISH: Final = "Publish"
FOLLOW: Final = "Follow"
SCAN: Final = "Scan"
QUERY: Final = "Query"
LOOKUP: Final = "GetSdsMessages"
HISTORY: Final = "GetCausalHistory"

NO_HASH: Final = bytes(32)
_STORED: Final = (Verdict.ACCEPTED, Verdict.DUPLICATE)
_LOST_PLACE: Final = 0.3
"""Share of scans from a cursor that a node does not serve, while there are faults."""

_LIES: Final = (b"\xff", b"", None)

Entry: TypeAlias = tuple[int, bytes, bytes]
"""A message that is read: its timestamp, its hash, and its ``WakuMessageAndTopic``."""

_Hashes: TypeAlias = tuple[Sequence[bytes], bool]
"""Message hashes, and whether a limit left some out."""


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A ``ScanRequest``: what of a half-open range of time comes after a cursor."""

    start_ns: int
    end_ns: int
    cursor: bytes = b""


@dataclass(frozen=True, slots=True)
class FeedHashes:
    """A ``FollowPage``, with the hashes of its messages."""

    hashes: list[bytes]
    cursor: bytes
    live: bool


class Service:
    """The calls that one life of a node serves."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._database = process.database
        self._limits = process.scenario
        self._counts = process.node.world.counts
        self._silence_s = process.scenario.silence_ns / NS_PER_S
        self.calls: Mapping[str, Handler] = {
            PUBLISH: self._publish,
            FOLLOW: self._follow,
            SCAN: self._scan,
            QUERY: self._query,
            LOOKUP: self._look_up,
            HISTORY: self._walk,
        }

    async def publish(self, sender: str, messages: Sequence[bytes]) -> tuple[Verdict, ...]:
        """Store messages, and return the verdict on each.

        Raises:
            StoreUnavailableError: They are stored or not.
        """
        process = self._process
        admission = Admission(process.policy(), process.clock.unix_ns(), Source.CLIENT)
        admission.admit(messages)
        published = admission.admitted
        if len(published.batch):
            published.refuse_conflicts(await process.node.store(process, published.batch))
        verdicts = tuple(published.verdicts)
        contents = [*published.batch.content_digests, b""]  # the last one where there is no place
        given = zip(published.hashes, published.positions, verdicts, strict=True)
        stored = {digest: contents[at] for digest, at, verdict in given if verdict in _STORED}
        process.note(f"acknowledges {len(stored)} of {len(verdicts)} to {sender}")
        process.judge.acknowledge(process.database, [*stored], [*stored.values()])
        return verdicts

    async def _publish(self, stream: EndStream) -> None:
        messages: Sequence[bytes] = await self._request(stream, PUBLISH)
        self._counts["messages published"] += len(messages)
        verdicts = await self.publish(stream.callee.node_id, messages)
        self._counts["messages refused"] += verdicts.count(Verdict.REJECTED)
        await stream.write(verdicts)

    async def _follow(self, stream: EndStream) -> None:
        database, woken = self._database, asyncio.Event()
        cursor: bytes = await self._request(stream, FOLLOW)
        position, token = map(int, cursor.split(b":")) if cursor else database.place
        database.followers[stream] = woken.set
        try:
            while True:
                woken.clear()
                if not database.is_served((position, token)):
                    raise CursorOutOfRangeError("the cursor's commit is lost, or another store's")
                commits = database.commits_after((position, token))
                some = at_most(commits, self._limits.page_messages)
                position, token = some[-1].place if some else (position, token)
                hashes = [digest for _, digest in database.ids_of(some).pairs()]
                is_live = len(some) == len(commits)
                await stream.write(FeedHashes(hashes, b"%d:%d" % (position, token), is_live))
                if (position, token) == database.place:
                    await woken.wait()
        finally:
            del database.followers[stream]

    # Reads

    async def _scan(self, stream: EndStream) -> None:
        process, request = self._process, await self._request(stream, SCAN)
        is_faulty, breaks = process.node.world.faulty, process.scenario.faults.broken_scans
        if request.cursor and is_faulty and happens(process.rng, _LOST_PLACE):
            raise CursorOutOfRangeError("this cursor cannot be served")
        while page := await self._database.look(partial(self._page, request)):
            await in_time(stream.write(page), self._silence_s)
            if process.node.world.faulty and happens(process.rng, breaks):
                raise StoreUnavailableError("the database does not answer")
            request = replace(request, cursor=ScanCursor(*page[-1][:2]).encode())

    def _page(self, request: ScanRequest) -> list[Entry]:
        ids = self._database.ids
        first = bisect_left(ids, (request.start_ns, NO_HASH))
        if request.cursor:
            after = ScanCursor.decode(request.cursor)
            first = max(first, bisect_right(ids, (after.timestamp, after.hash)))
        last = bisect_left(ids, (request.end_ns, NO_HASH))
        last = min(last, first + self._limits.page_messages)
        return [self._entry(digest) for _, digest in ids[first:last]]

    async def _query(self, stream: EndStream) -> None:
        hashes: Sequence[bytes] = await self._request(stream, QUERY)
        stored = self._database.stored
        await self._answer(stream, lambda: ([each for each in hashes if each in stored], False))

    async def _look_up(self, stream: EndStream) -> None:
        request: SdsLookup = await self._request(stream, LOOKUP)
        request = replace(request, claimants=self._limits.sds_claimants)

        def find() -> _Hashes:
            lookup = selected(self._database, request)
            return [found[2] for found in lookup.messages], lookup.truncated

        await self._answer(stream, find, lies=self._process.scenario.faults.lies)

    async def _walk(self, stream: EndStream) -> None:
        request: CausalRequest = await self._request(stream, HISTORY)
        claimants = self._limits.sds_claimants
        request = replace(request, max_messages=self._limits.causal_messages, claimants=claimants)

        def find() -> _Hashes:
            walk = CausalWalk(request)
            answer: ClaimAnswer | None = None
            while not walk.is_done:
                query = walk.step(answer)
                answer = None if query is None else claims_for(self._database, query, claimants)
            return [walk.taken[number][2] for number in walk.parents_first()], walk.truncated

        await self._answer(stream, find)

    async def _request(self, stream: EndStream, method: str) -> Any:  # noqa: ANN401 - of any call
        self._counts[method] += 1
        return await in_time(stream.read(), self._silence_s)

    async def _answer(
        self, stream: EndStream, find: Callable[[], _Hashes], lies: float = 0.0
    ) -> None:
        def read() -> tuple[list[Entry], bool]:
            hashes, is_truncated = find()
            return [self._entry(digest) for digest in hashes], is_truncated

        found, is_truncated = await self._database.look(read)
        self._counts["an answer was truncated"] += is_truncated
        if self._process.node.world.faulty and happens(self._process.rng, lies):
            found = self._lie(found)
        most = self._limits.page_messages
        for start in range(0, len(found), most):
            await in_time(stream.write(found[start : start + most]), self._silence_s)

    def _entry(self, digest: bytes) -> Entry:
        timestamp_ns, frame = self._database.stored[digest]
        return timestamp_ns, digest, transferred(frame)

    def _lie(self, found: list[Entry]) -> list[Entry]:
        """Leave something out, or send what is no message or was not asked for."""
        process = self._process
        process.judge.lies[process.name] += 1
        process.mark(Mark.LIED)
        lie = process.rng.choice(_LIES)
        others = list(self._database.stored)
        if lie is None:
            return found[1:]
        if lie or not others:
            return [*found, (0, NO_HASH, b"\xff")]
        return [*found, self._entry(process.rng.choice(others))]


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
