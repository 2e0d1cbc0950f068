"""A shipped node as the participants of a group see it: they publish to it, follow it and read it.

It admits, stores, resumes and reconciles as every simulated node does (`sim.node`); the shipped
rules of claims and causal histories select what is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from sim.calls import CallClosedError, End, Status
from sim.database import Database, DatabaseUnavailableError
from sim.intake import publish
from sim.lookups import claims_for, selected
from sim.messages import Message, message_of
from sim.node import Node
from sim.process import Process
from store.domain.admission import Verdict
from store.domain.causal import CausalWalk
from store.domain.claims import ClaimAnswer
from store.domain.ports import CausalRequest, HistoryEntry, SdsLookup, TopicFilter
from storenode.message.rules import Policy
from storenode.sds.aio.transport import FeedPage, Fetched, Outbound, PublishResult, Route
from storenode.sds.codec import Entry

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

PUBLISH: Final = "Publish"
FOLLOW: Final = "Follow"
READ: Final = "Read"
ROUTE: Final = Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto")

SCAN: Final = "Scan"
QUERY: Final = "Query"
LOOKUP: Final = "GetSdsMessages"
HISTORY: Final = "GetCausalHistory"

_Hashes: TypeAlias = tuple[list[bytes], bool]
"""Message hashes, and whether a limit left some out."""


def encoded(message: Outbound | Fetched) -> Message:
    """Return a message of the channel as nodes are given it."""
    ephemeral = message.ephemeral if isinstance(message, Outbound) else not message.hint
    return message_of(
        ROUTE.pubsub_topic,
        ROUTE.content_topic,
        message.payload,
        message.timestamp_ns,
        ephemeral=ephemeral,
    )


class StoreNode(Node):
    """A node that serves participants as well as peers."""

    world: GroupWorld

    def __init__(self, world: GroupWorld, number: int, database: Database) -> None:
        super().__init__(world, number, database)
        self._group = world
        self._limits = world.group.limits
        self._channel_id = ROUTE.channel_id.encode()

    def policy(self) -> Policy:
        """Return the rules for messages of participants."""
        return Policy(self._group.group.drift_ns)

    def serve(self, method: str, end: End) -> bool:
        """Take a call of a participant or of a peer."""
        process = self.process
        if process is None or method not in (PUBLISH, FOLLOW, READ):
            return super().serve(method, end)
        works: dict[str, Callable[[End], Awaitable[None]]] = {
            PUBLISH: partial(self._take, process),
            FOLLOW: self._feed,
            READ: self._read,
        }
        task = process.begin_task(method, _served(works[method], end))

        def lost(_: CallClosedError) -> None:
            task.cancel()

        end.on_lost = lost
        return True

    # Calls

    async def _take(self, process: Process, end: End) -> None:
        calls = self._group.counts
        batch = await end.read()
        calls["batches published"] += 1
        calls["messages published"] += len(batch)
        messages = [encoded(each).encoded for each in batch]
        verdicts = await publish(process, end.there.node_id, messages)
        await end.send([self._result(*each) for each in zip(batch, verdicts, strict=True)])
        end.finish()

    def _result(self, message: Fetched, verdict: Verdict) -> PublishResult:
        if verdict is not Verdict.REJECTED:
            return PublishResult(stored=True, hint=message.hint)
        self._group.counts["a store refused a message for its time"] += 1
        return PublishResult(stored=False, hint=b"", reason="The time is too far from the node's.")

    async def _feed(self, end: End) -> None:
        database, woken = self.database, asyncio.Event()
        place = self._place(await end.read())
        if place is None:
            end.finish(Status.OUT_OF_RANGE, "the cursor is another store's")
            return
        database.followers[end] = woken.set
        try:
            while True:
                woken.clear()
                hashes = database.log[place : place + self._limits.page_messages]
                place += len(hashes)
                cursor = f"{self.name}:{place}".encode()
                live = place == len(database.log)
                await end.send(FeedPage(self._messages(hashes), cursor, live=live))
                if live and place == len(database.log):
                    await woken.wait()
        finally:
            del database.followers[end]

    def _place(self, cursor: bytes) -> int | None:
        if not cursor:
            return len(self.database.log)
        name, place = cursor.decode().split(":")
        return int(place) if name == self.name else None

    async def _read(self, end: End) -> None:
        method, *arguments = await end.read()
        self._group.counts[method] += 1
        reads: dict[str, Callable[..., _Hashes]] = {
            SCAN: self._since,
            QUERY: self._by_hint,
            LOOKUP: self._by_id,
            HISTORY: self._causes,
        }
        hashes, truncated = await self.database.look(partial(reads[method], *arguments))
        if truncated:
            self._group.counts["an answer was truncated"] += 1
        most = self._limits.page_messages
        for start in range(0, len(hashes), most):
            await end.send(self._messages(hashes[start : start + most]))
        end.finish()

    def _messages(self, hashes: Iterable[bytes]) -> list[Fetched]:
        return [self._group.sent[digest] for digest in hashes]

    # Reads

    def _since(self, time_ns: int) -> _Hashes:
        """Select the messages from a time on, in ascending order; never truncated."""
        return [digest for each_ns, digest in self.database.ids if each_ns >= time_ns], False

    def _by_hint(self, hints: Iterable[bytes]) -> _Hashes:
        """Select stored messages by their hints; never truncated."""
        return [hint for hint in hints if hint in self.database.stored], False

    def _by_id(self, entries: Sequence[Entry]) -> _Hashes:
        """Select the messages that claim some IDs; True: an ID has more claimants."""
        claimants = self._limits.sds_claimants
        request = SdsLookup(self._channel_id, _entries(entries), TopicFilter(), claimants)
        lookup = selected(self.database, request)
        return [found[2] for found in lookup.messages], lookup.truncated

    def _causes(self, heads: Sequence[Entry], known: Sequence[str]) -> _Hashes:
        """Select heads and all their causes, parents first; True: a limit ended the walk."""
        request = CausalRequest(
            self._channel_id,
            _entries(heads),
            frozenset(each.encode() for each in known),
            self._limits.causal_messages,
            0,
            TopicFilter(),
            self._limits.sds_claimants,
            prefer_proven=True,
        )
        walk = CausalWalk(request)
        answer: ClaimAnswer | None = None
        while not walk.is_done:
            query, most = walk.step(answer), self._limits.sds_claimants
            answer = None if query is None else claims_for(self.database, query, most)
        return [walk.taken[number][2] for number in walk.parents_first()], walk.truncated


def _entries(entries: Iterable[Entry]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(entry.message_id.encode(), entry.hint) for entry in entries)


async def _served(work: Callable[[End], Awaitable[None]], end: End) -> None:
    with suppress(CallClosedError):
        try:
            await work(end)
        except DatabaseUnavailableError as error:
            end.finish(Status.UNAVAILABLE, str(error))
