"""Lookups by SDS message ID and causal walks on Postgres.

Everything read here is bounded, whatever was published: claimants per key, parents per claim
(hints that are no message hashes are left out, they may be long), rows per statement. Columns
come as ``bytea``, which the driver hands over without a call per value. Rows of pruned messages are
ignored until they are deleted: rows below the horizon are compared with the messages, and so are
all rows when a filter applies. Where proven claimants are preferred, rows say which are
(``proof``).

A call has two phases. First it is settled which messages are to be sent, on metadata alone
(`store.domain.claims`, `store.domain.causal`), in memory that is bounded per call; few calls are
in this phase at a time, callers by turns. Then the messages are sent, their frames read ahead, at
the pace of the outlet, which counts the call's memory. No transaction outlives a read: a message
that is pruned in between is reported as missing.

The table ``missing_parents`` has parents that messages of a channel name and that are not stored.
Publishers leave keys and timestamps of their SDS messages in their rows of ``commits``: their
*claims*. These are followed when commits are folded (`store.db.buckets`): a new message adds those
of its parents that are not stored, and removes itself as a parent of others. So the table is true
up to ``folded_position``, in whatever order messages come.

A publisher can name many parents that never come. So of a message, by its channel and timestamp, at
most `MAX_MISSING_OF_MESSAGE` have rows, and one where its channel has `MAX_MISSING_OF_DAY` on that
day already. The row `MORE` stands for all others: when it alone is left, the parents of the message
are looked at again. So counts are exact below these bounds, and never 0 by them.

A dropped message is not missing to the messages that named it before; a later one counts it.
Messages older than the horizon count nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import numpy as np

from store.db.arrays import bigint_column, bigints, fixed_bytes, uuids
from store.db.connection import Connection, fetch_rows
from store.db.locks import FOLDING, lock_unhurried
from store.db.messages import frames_at, topic_condition, topics_clause, topics_parameters
from store.db.pool import Database
from store.db.statements import SQL
from store.domain.causal import HEADS, CausalWalk
from store.domain.claims import (
    Child,
    Claim,
    ClaimAnswer,
    ClaimQuery,
    HintAnswers,
    Hinted,
    HintQuery,
    Lookup,
    rank,
)
from store.domain.partitioning import Bounds
from store.domain.ports import CausalRequest, HistoryEntry, Outlet, Room, SdsLookup, SdsPage
from store.domain.view import Span
from store.messages.frames import sds_stored_message
from storenode.message.limits import HASH_BYTES
from storenode.sds.codec import channel_key, decode
from storenode.sds.limits import SDS_KEY_BYTES

MAX_WALKS: Final = 3
MAX_WALKS_OF_CALLER: Final = 2
"""Walks at the same time; each takes up to about 270 MiB in the worst case (see
`store.domain.causal`), less than half of that for 100,000 ordinary messages."""

MAX_LOOKUPS: Final = 8
MAX_LOOKUPS_OF_CALLER: Final = 6
"""Lookups by ID at the same time, while they search."""

FOUND_BYTES: Final = 300
"""Memory of a message that was found, until it is sent."""

HANDY_PAGE_BYTES: Final = 1024 * 1024
"""Size at which a page is sent, where the limit allows more: its reader can begin with it while
the next one is read."""

_LIKELY_MESSAGE_BYTES: Final = 2 * 1024
_AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Frames that a call has read ahead at most, where messages are not larger than usual."""

_PORTION_MESSAGES: Final = 1_024
"""Messages that are asked for together; as many as fill a page come, and the next ones are read
while they are sent."""

_MISSING_CHILDREN: Final = 48
_OVERHEAD_BYTES: Final = 16
"""Bytes of a missing entry in a page beside its ID and hint."""

_Frames = list[bytes | None]
"""Frames of a portion, None where there is none."""

MAX_SEEN_CLAIMANTS: Final = 4_096
"""Claimants of one key that are looked through for those that a filter lets through."""

MAX_ANSWER_KEYS: Final = 4_096
"""Keys of one answer, those that are reached included."""

FURTHER_CLAIMANTS: Final = 1_024
"""Claims of one answer beyond one for each key, each with up to 14 KB of parents; what is left
over is asked for again."""

_MAX_HINTED: Final = 48
"""Hints of one statement: about 7 MiB of payloads if all messages have the largest size."""

ParentPlace = tuple[Child, int]
"""A claim, and the slot of one of its parents, counted from 0."""

Parents = dict[tuple[bytes, int], HistoryEntry]
"""(hash of the child, slot) -> parent."""


class ClaimReader:
    """The reads of one call; messages that are pruned or outside its filter do not exist for it."""

    def __init__(self, database: Database, request: SdsLookup, *, parents: bool) -> None:
        """Prepare the reads of a request; ``parents``: with the parents of what is found.

        Without ``prefer_proven`` no claim says that it is proven. Of one key, one claimant more
        than ``claimants`` is read: it shows that there are more.
        """
        self._database = database
        self._entries = request.entries
        self._crowd = request.claimants + 1
        topics = topic_condition(request.filter)
        clause = topics_clause(topics)
        self._bounds = {"crowd": self._crowd, "seen": MAX_SEEN_CLAIMANTS, "topics": clause}
        self._parameters: dict[str, object] = {
            "channel": request.channel_id,
            "parents": parents,
            "prefers": request.prefer_proven,
            "filtered": topics is not None,
            **topics_parameters(topics),
        }

    async def answer(self, query: ClaimQuery) -> ClaimAnswer:
        """Return the answer to one read of a lookup or walk."""
        return await self._database.read(self._answer, query, pool=self._database.bulk_pool)

    async def parents_of(self, places: Sequence[ParentPlace]) -> Parents:
        """Return parents as their children claim them, without those of deleted rows."""
        return await self._database.read(_parents, places, pool=self._database.bulk_pool)

    async def _answer(self, connection: Connection, query: ClaimQuery) -> ClaimAnswer:
        claims = await self._claims(connection, query) if query.keys else {}
        return ClaimAnswer(
            list(claims),
            [claim for group in claims.values() for claim in group],
            await self._hinted(connection, query.hints),
        )

    async def _claims(self, connection: Connection, query: ClaimQuery) -> dict[bytes, list[Claim]]:
        """Return the first claimants of as many keys as fit into an answer, in their order."""
        most = max(len(query.keys), min(len(query.keys) + query.ahead, MAX_ANSWER_KEYS))
        limit = most + self._crowd + FURTHER_CLAIMANTS
        given = {"keys": uuids(query.keys), "most": most, "limit": limit}
        rows = await self._rows(connection, SQL.sds.read_claims, given)
        claims: dict[bytes, list[Claim]] = {row[0]: [] for row in rows}
        for row in rows:
            if row[1] is not None:
                claims[row[0]].append(row)
        if len(rows) == limit:  # the last may lack some
            del claims[rows[-1][0]]
        if self._parameters["prefers"]:
            await self._add_proven(connection, claims)
        return claims

    async def _add_proven(self, connection: Connection, claims: dict[bytes, list[Claim]]) -> None:
        """Put proven claimants first, those that are not among the first of their key as well."""
        crowded = [key for key, group in claims.items() if len(group) == self._crowd]
        if crowded:
            rows = await self._rows(connection, SQL.sds.read_proven, {"keys": uuids(crowded)})
            for row in rows:
                claims[row[0]].append(row)
        for key, group in claims.items():
            claims[key] = sorted(set(group), key=rank)[: self._crowd]

    async def _rows(
        self, connection: Connection, statement: str, parameters: Mapping[str, object]
    ) -> list[Any]:
        statement = statement.format(**self._bounds)
        return await fetch_rows(connection, statement, {**self._parameters, **parameters})

    async def _hinted(self, connection: Connection, queries: Sequence[HintQuery]) -> HintAnswers:
        found: dict[tuple[bytes, bytes], Hinted | None] = {
            (query.key, query.hash): None for query in queries
        }
        if not queries:
            return found
        opaque: dict[tuple[bytes, bytes], int] = {}
        for start in range(0, len(queries), _MAX_HINTED):
            some = queries[start : start + _MAX_HINTED]
            hashes = fixed_bytes([query.hash for query in some], HASH_BYTES)
            given = {"keys": uuids([query.key for query in some]), "hash": hashes}
            for row in await self._rows(connection, SQL.sds.read_hinted, given):
                claim, payload = row[:7], row[7]
                if payload is None:
                    found[claim[0], claim[2]] = Hinted(claim, readable=True)
                elif decode(payload) is None:
                    opaque[claim[0], claim[2]] = claim[1]
        ids = await self._ids(connection, [q for q in queries if (q.key, q.hash) in opaque])
        for (key, digest), message_id in ids.items():
            claim = (key, opaque[key, digest], digest, message_id, b"", b"", False)
            found[key, digest] = Hinted(claim, readable=False)
        return found

    async def _ids(
        self, connection: Connection, queries: Sequence[HintQuery]
    ) -> dict[tuple[bytes, bytes], bytes]:
        """Return the ID under which each message is referenced."""
        ids = {
            (query.key, query.hash): self._entries[query.slot].message_id
            for query in queries
            if query.child is None
        }
        places = {
            (query.key, query.hash): (query.child, query.slot)
            for query in queries
            if query.child is not None
        }
        parents = await _parents(connection, list(places.values()))
        for reference, (child, slot) in places.items():
            if (child[2], slot) in parents:
                ids[reference] = parents[child[2], slot].message_id
        return ids


async def _parents(connection: Connection, places: Sequence[ParentPlace]) -> Parents:
    if not places:
        return {}
    timestamps = [timestamp for (_, timestamp, _), _ in places]
    parameters = {
        "keys": uuids([key for (key, _, _), _ in places]),
        "ts": bigints(timestamps),
        "hash": fixed_bytes([digest for (_, _, digest), _ in places], HASH_BYTES),
        "slots": bigints([slot + 1 for _, slot in places]),
        "low": min(timestamps),
        "high": max(timestamps),
    }
    rows = await fetch_rows(connection, SQL.sds.read_parents, parameters)
    return {
        (digest, slot - 1): HistoryEntry(message_id, hint)
        for digest, slot, message_id, hint in rows
    }


class Turns:
    """Places for calls, of which one caller has ``of_caller`` at most.

    Calls wait in the order of arrival, and those of a caller beyond its share for its own. What
    waits is bounded by the memory that the outlets of calls reserve before.
    """

    def __init__(self, places: int, of_caller: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._of_caller = of_caller
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it in the block."""
        share = self._shares.setdefault(caller, asyncio.Semaphore(self._of_caller))
        async with share, self._places:
            yield


class DatabaseSdsReader:
    """The reads by SDS message ID; see `store.domain.ports.SdsLookups`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._walks = Turns(MAX_WALKS, MAX_WALKS_OF_CALLER)
        self._lookups = Turns(MAX_LOOKUPS, MAX_LOOKUPS_OF_CALLER)

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Return the missing entries, and those whose ID could be a proof and proves nothing here.

        Raises:
            StoreUnavailableError: the database does not serve.
        """
        async with self._lookups.turn(""):
            lookup = await self._look_up(request)
        return lookup.missing, lookup.unproven

    async def messages(self, request: SdsLookup, outlet: Outlet) -> AsyncGenerator[SdsPage, None]:
        """Yield the claimants of each ID, and the entries that are missing; raise as `doubtful`."""
        room = await outlet.room(HANDY_PAGE_BYTES)
        async with self._lookups.turn(outlet.caller or outlet.connection):
            lookup = await self._look_up(request)
        _fit(room, len(lookup.messages))
        found, missing = iter(lookup.messages), _each(lookup.missing)
        async with aclosing(self._pages(found, missing, truncated=lookup.truncated)) as pages:
            async for page in pages:
                yield page

    async def causal_history(
        self, request: CausalRequest, outlet: Outlet
    ) -> AsyncGenerator[SdsPage, None]:
        """Yield the causal past of the heads, parents before children; raise as `doubtful`."""
        reader = ClaimReader(self._database, request, parents=True)
        room = await outlet.room(HANDY_PAGE_BYTES)
        async with self._walks.turn(outlet.caller or outlet.connection):
            walk = await _walk(reader, request)
        _fit(room, len(walk.taken))
        ordered = map(walk.taken.__getitem__, walk.parents_first())
        missing = _read_missing(walk, reader, request.entries)
        async with aclosing(self._pages(ordered, missing, truncated=walk.truncated)) as pages:
            async for page in pages:
                yield page

    async def _look_up(self, request: SdsLookup) -> Lookup:
        lookup = Lookup(request)
        reader = ClaimReader(self._database, request, parents=False)
        query = lookup.step()
        while query is not None:
            query = lookup.step(await reader.answer(query))
        return lookup

    async def _pages(
        self, wanted: Iterator[Claim], missing: AsyncIterator[HistoryEntry], *, truncated: bool
    ) -> AsyncGenerator[SdsPage, None]:
        """Yield messages in their order, then what is missing; the last page says if truncated.

        The next messages are read while these are sent.
        """
        asked = list(islice(wanted, _PORTION_MESSAGES))
        ahead: asyncio.Task[_Frames] | None = None

        def read() -> asyncio.Task[_Frames]:
            positions, pool = [(claim[1], claim[2]) for claim in asked], self._database.bulk_pool
            work = self._database.read(frames_at, positions, HANDY_PAGE_BYTES, pool=pool)
            return asyncio.ensure_future(work)

        try:
            while asked:
                frames = await (ahead or read())
                portion, asked = asked[: len(frames)], asked[len(frames) :]
                asked += islice(wanted, len(frames))
                ahead = read() if asked else None
                found, pruned = list[bytes](), list[HistoryEntry]()
                for (_, _, digest, message_id, *_), frame in zip(portion, frames, strict=True):
                    if frame is None:
                        pruned.append(HistoryEntry(message_id, digest))
                    else:
                        found.append(sds_stored_message(message_id, digest, frame))
                yield SdsPage(b"".join(found), len(found), tuple(pruned), truncated=False)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)
        lost, size = list[HistoryEntry](), 0
        async for entry in missing:
            added = len(entry.message_id) + len(entry.retrieval_hint or b"") + _OVERHEAD_BYTES
            if size + added > HANDY_PAGE_BYTES and lost:
                yield SdsPage(b"", 0, tuple(lost), truncated=False)
                lost, size = [], 0
            lost.append(entry)
            size += added
        if lost or truncated:
            yield SdsPage(b"", 0, tuple(lost), truncated)


async def _each(entries: Sequence[HistoryEntry]) -> AsyncIterator[HistoryEntry]:
    for entry in entries:
        yield entry


def _fit(room: Room, messages: int) -> None:
    """Reserve the memory that sending messages takes, besides those that were found."""
    size = messages * _LIKELY_MESSAGE_BYTES
    room.fit(min(size, HANDY_PAGE_BYTES), messages * FOUND_BYTES + min(size, _AHEAD_BYTES))


async def _walk(reader: ClaimReader, request: CausalRequest) -> CausalWalk:
    """Run a walk; others get the processor between the steps."""
    walk = CausalWalk(request)
    answer: ClaimAnswer | None = None
    while not walk.is_done:
        query = walk.step(answer)
        answer = None if query is None else await reader.answer(query)
        await asyncio.sleep(0)
    return walk


async def _read_missing(
    walk: CausalWalk, reader: ClaimReader, heads: Sequence[HistoryEntry]
) -> AsyncIterator[HistoryEntry]:
    """Yield the references for which the walk found nothing, as they were made."""
    origins = list(walk.missing.values())
    for origin in origins:
        if origin.node == HEADS:
            yield heads[origin.slot]
    places: list[ParentPlace] = [
        (walk.taken[origin.node][:3], origin.slot) for origin in origins if origin.node != HEADS
    ]
    for start in range(0, len(places), _MISSING_CHILDREN):
        portion = places[start : start + _MISSING_CHILDREN]
        parents = await reader.parents_of(portion)
        for child, slot in portion:
            if (child[2], slot) in parents:
                yield parents[child[2], slot]


MAX_COUNTED: Final = 100_000
"""Missing references of one step that are looked at."""

MAX_MISSING_OF_MESSAGE: Final = 16
MAX_MISSING_OF_DAY: Final = 10_000
"""Rows of a message, and of the messages of a channel with timestamps of one day; see above."""


_CLAIM: Final = np.dtype([("key", f"V{SDS_KEY_BYTES}"), ("ts", ">i8")])
"""A claim in ``commits.claims``: the key of an SDS message ID, and its message's timestamp."""


def _add_missing(messages: str, elsewhere: str = "") -> str:
    return SQL.sds.add_missing.format(
        messages=messages,
        elsewhere=elsewhere,
        of_message=MAX_MISSING_OF_MESSAGE,
        of_day=MAX_MISSING_OF_DAY,
    )


_ADD_CLAIMED: Final = _add_missing(SQL.sds.claimed, SQL.sds.elsewhere)
_ADD_ALL: Final = _add_missing(SQL.sds.all_in_time)
_ADD_AGAIN: Final = _add_missing(SQL.sds.again)


async def count_missing_parents(
    database: Database, channel_id: bytes, bounds: Sequence[Span]
) -> list[int]:
    """Count the parents that messages of a channel name in each span and that are not stored.

    As of some seconds ago. A parent that retention has dropped is not missing to messages that
    named it before. Raises `NotServingError`.
    """
    parameters = {
        "channel": UUID(bytes=channel_key(channel_id)),
        "low": bigints([low for low, _ in bounds]),
        "end": bigints([end for _, end in bounds]),
        "most": MAX_COUNTED,
    }
    return [count for (count,) in await database.rows(SQL.sds.count_missing, parameters)]


async def follow_claims(connection: Connection, joined: bytes) -> None:
    """Add the missing parents of the messages of some claims, and remove them; under FOLDING.

    Raises:
        ValueError: the claims are damaged.
    """
    if not joined:
        return
    claims = np.unique(np.frombuffer(joined, _CLAIM))
    keys = uuids(claims["key"].tolist())
    ts = claims["ts"].astype(np.int64)
    span = {"low": int(ts.min()), "last": int(ts.max())}
    await connection.execute(_ADD_CLAIMED, {"keys": keys, "ts": bigint_column(ts), **span})
    came = await fetch_rows(connection, SQL.sds.delete_stored, (keys,))
    again = await fetch_rows(connection, SQL.sds.delete_lone_more, _positions(came))
    if again:
        await connection.execute(_ADD_AGAIN, _positions(again))


async def find_missing(connection: Connection, bounds: Bounds) -> None:
    """Rebuild the rows of a range of time from ``sds`` alone, in one transaction.

    Parents that retention has dropped count as missing.
    """
    async with connection.transaction():
        await lock_unhurried(connection, FOLDING)
        await connection.execute(SQL.sds.delete_missing, (bounds.low, bounds.high - 1))
        span = {"low": bounds.low, "last": bounds.high - 1}
        await connection.execute(_ADD_ALL, span, prepare=False)


def _positions(rows: Sequence[tuple[Any, ...]]) -> dict[str, object]:
    return {
        "channels": uuids([channel for channel, _ in rows]),
        "ts": bigints([timestamp for _, timestamp in rows]),
    }
