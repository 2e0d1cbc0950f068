"""`store.domain.ports.SdsReader` on Postgres: look-ups by SDS message ID, and causal walks.

A call has two phases. First it is settled which messages are to be sent, on metadata alone
(`store.domain.lookup`, `store.domain.sweep`), in memory that is bounded per call; few calls are
in this phase at a time, callers by turns (`store.db.turns`). Then the messages are sent, their
frames read ahead (`store.db.sds.frames`), at the pace of the outlet, which counts what the call
holds. No transaction outlives a read: a message that is pruned in between is reported as missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from store.db.pool import Database
from store.db.sds.claims import ClaimReader, ParentPlace
from store.db.sds.frames import MAX_EARLY_BYTES, FrameStream
from store.db.sds.pages import HANDY_PAGE_BYTES, Pages
from store.db.turns import Turns
from store.domain.causal import CausalWalk
from store.domain.claims import Answer, Done, Found, Read
from store.domain.limits import DEFAULT_PAGE_BYTES
from store.domain.lookup import Lookup
from store.domain.ports import (
    CausalRequest,
    HistoryEntry,
    Outlet,
    Room,
    SdsLookup,
    SdsPage,
)
from store.domain.sweep import CausalHistory, Sweep

MAX_WALKS: Final = 3
MAX_WALKS_OF_CALLER: Final = 2
"""Walks at one time; each takes up to about 300 MiB in the worst case (see
`store.domain.causal`), a sixth of that for 100,000 ordinary messages."""

MAX_LOOKUPS: Final = 8
MAX_LOOKUPS_OF_CALLER: Final = 6
"""Look-ups by ID at one time, while they search."""

MAX_WAITING_CALLS: Final = 256
"""Calls that wait for their turn, of each kind; further ones are refused."""

FOUND_BYTES: Final = 300
"""What is kept of a message until it is sent."""

_LIKELY_MESSAGE_BYTES: Final = 2 * 1024
_AHEAD_BYTES: Final = MAX_EARLY_BYTES + 2 * 1024 * 1024
"""Frames that a call has read ahead at most, where messages are not larger than usual."""

_MISSING_CHILDREN: Final = 48


class DatabaseSdsReader:
    """Reads by SDS message ID; see `store.domain.ports.SdsReader`."""

    def __init__(self, database: Database, page_bytes: int = DEFAULT_PAGE_BYTES) -> None:
        """Entries of one page have ``page_bytes`` at most."""
        self._database = database
        self._page_bytes = page_bytes
        self._walks = Turns(
            "causal walks",
            places=MAX_WALKS,
            of_caller=MAX_WALKS_OF_CALLER,
            most_waiting=MAX_WAITING_CALLS,
        )
        self._lookups = Turns(
            "look-ups by SDS message ID",
            places=MAX_LOOKUPS,
            of_caller=MAX_LOOKUPS_OF_CALLER,
            most_waiting=MAX_WAITING_CALLS,
        )

    async def doubtful(
        self, request: SdsLookup
    ) -> tuple[Sequence[HistoryEntry], Sequence[HistoryEntry]]:
        """Entries that are missing; and those whose ID could be a proof and proves nothing here.

        Raises:
            StoreUnavailable: the database does not serve.
            StoreBusy: too many calls are waiting already.
        """
        async with self._lookups.turn("", ""):
            lookup = await self._look_up(request)
        return lookup.missing, lookup.unproven

    async def messages(self, request: SdsLookup, outlet: Outlet) -> AsyncGenerator[SdsPage, None]:
        """Every claimant of each ID, and the entries that are missing.

        Raises:
            StoreUnavailable: the database does not serve.
            StoreBusy: too many calls are waiting already.
        """
        room = await outlet.room(HANDY_PAGE_BYTES)
        async with self._lookups.turn(outlet.caller, outlet.connection):
            lookup = await self._look_up(request)
        pages, found = Pages(self._page_bytes), lookup.messages
        _fit(room, len(found))
        async with (
            aclosing(FrameStream(self._database)) as frames,
            aclosing(_send(frames, found, iter(range(len(found))), pages)) as sent,
        ):
            async for full in sent:
                yield full
        for entry in lookup.missing:
            for page in pages.add_missing(entry):
                yield page
        for page in pages.finish(truncated=lookup.truncated):
            yield page

    async def causal_history(
        self, request: CausalRequest, outlet: Outlet
    ) -> AsyncGenerator[SdsPage, None]:
        """The causal past of the heads, every parent before its children.

        Raises:
            StoreUnavailable: the database does not serve.
            StoreBusy: too many calls are waiting already.
        """
        reader = ClaimReader(
            self._database,
            request.channel_id,
            request.heads,
            claimants=request.claimants,
            parents=True,
            prefer_proven=request.prefer_proven,
        )
        room = await outlet.room(HANDY_PAGE_BYTES)
        async with aclosing(FrameStream(self._database)) as frames:
            async with self._walks.turn(outlet.caller, outlet.connection), aclosing(reader):
                walk = await _find(reader, frames, request)
            _fit(room, len(walk.taken))
            pages = Pages(self._page_bytes)
            async with aclosing(_send(frames, walk.taken, walk.parents_first(), pages)) as sent:
                async for full in sent:
                    yield full
            async for entry in _missing(walk, reader, request.heads):
                for page in pages.add_missing(entry):
                    yield page
            for page in pages.finish(truncated=walk.truncated):
                yield page

    async def _look_up(self, request: SdsLookup) -> Lookup:
        lookup = Lookup(request.channel_id, request.entries, request.claimants)
        reader = ClaimReader(
            self._database,
            request.channel_id,
            lookup.entries,
            claimants=request.claimants,
            parents=False,
            prefer_proven=request.prefer_proven,
        )
        await reader.prepare(request.filter)
        read = lookup.step()
        while read is not None:
            read = lookup.step(await reader.answer(read))
        return lookup


def _fit(room: Room, messages: int) -> None:
    """Keep what the sending of so many messages takes, besides those that were found."""
    size = messages * _LIKELY_MESSAGE_BYTES
    room.fit(min(size, HANDY_PAGE_BYTES), messages * FOUND_BYTES + min(size, _AHEAD_BYTES))


async def _send(
    frames: FrameStream, taken: Sequence[Found], order: Iterator[int], pages: Pages
) -> AsyncGenerator[SdsPage, None]:
    async with aclosing(frames.portions(taken, order)) as portions:
        async for portion, contents in portions:
            for page in pages.add(portion, contents):
                yield page


async def _find(
    reader: ClaimReader, frames: FrameStream, request: CausalRequest
) -> Sweep | CausalWalk:
    """Find a causal past; others get the processor between the steps."""
    await reader.prepare(request.filter)
    history = CausalHistory(request)
    answer: Answer | None = None
    while not isinstance(effect := history.step(answer), Done):
        answer = None
        if isinstance(history.result, Sweep):
            frames.begin_early(history.result.taken)
        else:
            await frames.forget_early()
        if isinstance(effect, Read):
            answer = await reader.answer(effect)
        else:
            await asyncio.sleep(0)
    return history.result


async def _missing(
    walk: Sweep | CausalWalk, reader: ClaimReader, heads: Sequence[HistoryEntry]
) -> AsyncIterator[HistoryEntry]:
    """What the walk did not find, as it was referenced."""
    origins = list(walk.missing.values())
    for origin in origins:
        if origin.is_head:
            yield heads[origin.slot]
    places: list[ParentPlace] = [
        (walk.taken[origin.node][:3], origin.slot) for origin in origins if not origin.is_head
    ]
    for start in range(0, len(places), _MISSING_CHILDREN):
        portion = places[start : start + _MISSING_CHILDREN]
        parents = await reader.parents_of(portion)
        for child, slot in portion:
            if (child[2], slot) in parents:
                yield parents[child[2], slot]
