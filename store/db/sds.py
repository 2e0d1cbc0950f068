"""`store.domain.ports.SdsReader` on Postgres: look-ups by SDS message ID, and causal walks.

A call has two phases. First it is settled which messages are to be sent, on metadata alone
(`store.domain.lookup`, `store.domain.causal`), in memory that is bounded per call; few calls are
in this phase at a time and the others wait. Then the messages are read in the order in which they
are sent, a portion ahead of the one being sent. No transaction outlives a portion: a message that
is pruned in between is reported as missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from typing import Final

from store.db.claims import ClaimReader, ParentPlace
from store.db.held import EXACT_POSITIONS, MAX_FRAME_POSITIONS, exact_frames, most_frames
from store.db.pool import Connection, Database
from store.db.sds_pages import Pages
from store.domain.causal import CausalWalk
from store.domain.claims import Answer, Done, Found, Read
from store.domain.history import CausalHistory
from store.domain.lookup import Lookup
from store.domain.ports import (
    CausalRequest,
    HistoryEntry,
    SdsLookup,
    SdsPage,
    StoreBusy,
    SyncId,
)
from store.domain.sweep import Sweep

MAX_WALKS: Final = 4
"""Walks at one time; each takes up to about 300 MiB in the worst case (see
`store.domain.causal`), a sixth of that for 100,000 ordinary messages."""

MAX_CALLS: Final = 16
"""Calls that hold the result of a walk or look-up, the walking ones included."""

MAX_WAITING_CALLS: Final = 256
"""Calls that wait for their turn; further ones are refused."""

_FIRST_PORTION: Final = 256
_PORTIONS_AHEAD: Final = 2
_PORTION_BYTES: Final = 512 * 1024
_MISSING_CHILDREN: Final = 48

_Frames = list[bytes | None]
"""Frames of a portion, None where there is none."""

_Portion = tuple[Sequence[Found], _Frames]


class DatabaseSdsReader:
    """Reads by SDS message ID; see `store.domain.ports.SdsReader`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._walks = asyncio.Semaphore(MAX_WALKS)
        self._waiting = 0

    async def messages(self, request: SdsLookup) -> AsyncGenerator[SdsPage, None]:
        """Every claimant of each ID, and the entries that are missing.

        Raises:
            StoreUnavailable: the database does not serve.
            StoreBusy: too many calls are waiting already.
        """
        async with self._turn(self._calls):
            lookup = await self._look_up(request)
            pages = Pages()
            async with aclosing(self._send(iter(lookup.messages), pages)) as sent:
                async for full in sent:
                    yield full
            for entry in lookup.missing:
                for page in pages.add_missing(entry):
                    yield page
            for page in pages.finish(truncated=lookup.truncated):
                yield page

    async def causal_history(self, request: CausalRequest) -> AsyncGenerator[SdsPage, None]:
        """The causal past of the heads, every parent before its children.

        Raises:
            StoreUnavailable: the database does not serve.
            StoreBusy: too many calls are waiting already.
        """
        async with self._turn(self._calls):
            reader = ClaimReader(self._database, request.channel_id, request.heads, parents=True)
            async with self._turn(self._walks):
                try:
                    walk = await _find(reader, request)
                finally:
                    await reader.close()
            pages = Pages()
            in_order = map(walk.taken.__getitem__, walk.parents_first())
            async with aclosing(self._send(in_order, pages)) as sent:
                async for full in sent:
                    yield full
            async for entry in _missing(walk, reader, request.heads):
                for page in pages.add_missing(entry):
                    yield page
            for page in pages.finish(truncated=walk.truncated):
                yield page

    @asynccontextmanager
    async def _turn(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        if places.locked() and self._waiting >= MAX_WAITING_CALLS:
            raise StoreBusy(
                f"{MAX_WAITING_CALLS} look-ups by SDS message ID are waiting already; retry later"
            )
        self._waiting += 1
        try:
            await places.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            places.release()

    async def _look_up(self, request: SdsLookup) -> Lookup:
        lookup = Lookup(request.channel_id, request.entries)
        reader = ClaimReader(self._database, request.channel_id, lookup.entries, parents=False)
        await reader.prepare(request.filter)
        read = lookup.step()
        while read is not None:
            read = lookup.step(await reader.answer(read))
        return lookup

    async def _send(self, wanted: Iterator[Found], pages: Pages) -> AsyncGenerator[SdsPage, None]:
        async with aclosing(self._portions(wanted)) as portions:
            async for portion, frames in portions:
                for page in pages.add(portion, frames):
                    yield page

    async def _portions(self, wanted: Iterator[Found]) -> AsyncGenerator[_Portion, None]:
        """Portions of what is wanted, in its order, with the frames of all that is held."""
        size = _FIRST_PORTION
        under_way: deque[tuple[list[Found], asyncio.Task[_Frames]]] = deque()

        def begin() -> None:
            while len(under_way) < _PORTIONS_AHEAD and (portion := list(islice(wanted, size))):
                under_way.append((portion, asyncio.ensure_future(self._most_frames(portion))))

        begin()
        try:
            while under_way:
                portion, frames = under_way[0][0], await under_way[0][1]
                size = _next_size(size, frames)
                under_way.popleft()
                begin()
                if None not in frames:
                    yield portion, frames
                    continue
                for start in range(0, len(portion), EXACT_POSITIONS):
                    part = slice(start, start + EXACT_POSITIONS)
                    yield portion[part], await self._complete(portion[part], frames[part])
        finally:
            for _, task in under_way:
                task.cancel()
            await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)

    async def _most_frames(self, portion: Sequence[Found]) -> _Frames:
        async def look(connection: Connection) -> _Frames:
            return await most_frames(connection, _positions(portion))

        return await self._database.read(look, self._database.bulk_pool)

    async def _complete(self, portion: Sequence[Found], frames: _Frames) -> _Frames:
        """Fill the gaps in the frames of a portion with what is held after all."""
        if None not in frames:
            return frames

        async def look(connection: Connection) -> _Frames:
            return await exact_frames(connection, _positions(portion))

        return await self._database.read(look, self._database.bulk_pool)


def _positions(portion: Sequence[Found]) -> list[SyncId]:
    return [(found[1], found[2]) for found in portion]


async def _find(reader: ClaimReader, request: CausalRequest) -> Sweep | CausalWalk:
    """Find a causal past; others get the processor between the steps."""
    await reader.prepare(request.filter)
    history = CausalHistory(request)
    answer: Answer | None = None
    while not isinstance(effect := history.step(answer), Done):
        if isinstance(effect, Read):
            answer = await reader.answer(effect)
        else:
            answer = None
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


def _next_size(size: int, frames: _Frames) -> int:
    """Messages of the next portion: as many as make a handy number of bytes."""
    if None in frames:
        return max(size // 4, EXACT_POSITIONS)
    size_bytes = sum(len(frame) for frame in frames if frame is not None)
    if size_bytes > 2 * _PORTION_BYTES:
        return max(size // 2, EXACT_POSITIONS)
    return min(2 * size, MAX_FRAME_POSITIONS) if size_bytes < _PORTION_BYTES else size
