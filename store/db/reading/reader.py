"""Reading by hash and by time from Postgres.

Look-ups by hash that arrive together share a statement. A scan reads a page ahead of the one
that its caller is still taking, and holds neither transaction nor connection in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final
from uuid import UUID

from store.db.pool import Connection, Database
from store.db.reading.hashes import HashLookups, page_by_hashes
from store.db.reading.pages import (
    AFTER_ALL,
    BEFORE_ALL,
    Joined,
    Shape,
    Window,
    read_page,
    rows_of_each,
)
from store.db.reading.select import (
    FRAME,
    PRESENCE,
    QUERY_FRAME,
    QUERY_PRESENCE,
    Topics,
    filter_clause,
    filter_parameters,
    resolve,
)
from store.db.schema.names import HASH_KEY_BYTES
from store.domain.ports import (
    FramesPage,
    Outlet,
    PageRequest,
    QueryPage,
    Room,
    ScanRequest,
    StoreSummary,
    SyncId,
    TopicFilter,
    TopicRights,
)
from store.domain.query import DEFAULT_PAGE_BYTES
from storenode.message.limits import HASH_BYTES

DEFAULT_SCAN_PAGE: Final = 4_000
MAX_SCAN_PAGE: Final = 10_000
_FEWEST_ROWS: Final = 256
_FEWEST_READ: Final = 1_000
"""Messages that are read at a time behind the first page, however few are sent in one."""


class DatabaseReader:
    """`store.domain.ports.Reader` on Postgres."""

    def __init__(
        self,
        database: Database,
        counted: Callable[[], tuple[int, int]],
        page_bytes: int = DEFAULT_PAGE_BYTES,
    ) -> None:
        """``counted``: `DatabaseFeed.counted`. Entries of a page have ``page_bytes`` at most."""
        self._database = database
        self._counted = counted
        self._page_bytes = page_bytes
        self._lookups = HashLookups(database, page_bytes)

    async def position(self, message_hash: bytes, rights: TopicRights) -> SyncId | None:
        """Position of a message by hash (see `store.domain.ports.Reader`)."""
        if len(message_hash) != HASH_BYTES:
            return None
        wanted = TopicFilter(rights=rights)
        statement = (
            "select m.ts from storenode.hashes m where m.key = %(key)b::uuid"
            f"{filter_clause(filtered=not wanted.everything)} limit 1"
        )
        key = UUID(bytes=message_hash[:HASH_KEY_BYTES])
        parameters = {"key": key} | filter_parameters(wanted)

        async def look(connection: Connection) -> SyncId | None:
            cursor = await connection.execute(statement, parameters, binary=True)
            row: tuple[int] | None = await cursor.fetchone()  # type: ignore[assignment]
            if row is None or await _is_another(connection, row[0], message_hash):
                return None
            return row[0], message_hash

        return await self._database.read(look)

    async def query(self, request: PageRequest) -> QueryPage:
        """One page of ``Query``."""
        if request.hashes is not None and self._lookups.takes(request):
            return await self._lookups.query(request)

        each = request.limit + 1
        entry = QUERY_FRAME if request.include_data else QUERY_PRESENCE
        shape = Shape(entry, request.limit, each, each, self._page_bytes)

        async def read(connection: Connection) -> QueryPage:
            if request.hashes is not None:
                page = await page_by_hashes(connection, request, shape)
            else:
                topics = await resolve(connection, request.filter)
                page = await read_page(connection, topics, query_window(request), shape)
            if page.seen <= page.count:
                return QueryPage(page.entries, page.count, None)
            next_ns, cursor = page.last
            return QueryPage(page.entries, page.count, cursor, next_ns)

        return await self._database.read(read)

    async def scan(self, request: ScanRequest, outlet: Outlet) -> AsyncGenerator[FramesPage, None]:
        """Yield every match in ascending order, a page at a time.

        Small pages are cut from larger ones: to read each of them costs far more than to send it.
        """

        async def choose(connection: Connection) -> Topics:
            return await resolve(connection, request.filter)

        topics = await self._database.read_page(choose, outlet)
        most, after = self._page_bytes, request.after or BEFORE_ALL
        room: Room | None = await outlet.room(most)
        ahead: asyncio.Task[Joined] | None = None
        asked = min(request.page_size or DEFAULT_SCAN_PAGE, MAX_SCAN_PAGE)
        size = asked
        try:
            while True:
                if room is None:
                    room = await outlet.room(most)
                if ahead is None:
                    ahead = self._begin_page(request, topics, after, outlet, room, size=size)
                page, taken = await ahead, room
                if not page.count:
                    return
                taken.fit(len(page.entries))
                after, ahead, room = page.last, None, outlet.spare_room(most)
                size = max(asked, _FEWEST_READ)
                if room is not None:
                    ahead = self._begin_page(request, topics, after, outlet, room, size=size)
                if page.positions:
                    for part in page.parts(asked):
                        yield part
                    del part
                else:
                    yield FramesPage(page.entries, page.count, page.last)
                # Not to be held while the next one waits for room.
                del page
                taken.close()
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    def _begin_page(
        self,
        request: ScanRequest,
        topics: Topics,
        after: SyncId,
        outlet: Outlet,
        room: Room,
        *,
        size: int,
    ) -> asyncio.Task[Joined]:
        return asyncio.ensure_future(
            self._scan_page(request, topics, after, outlet, room.size_bytes, size=size)
        )

    async def _scan_page(
        self,
        request: ScanRequest,
        topics: Topics,
        after: SyncId,
        outlet: Outlet,
        max_bytes: int,
        *,
        size: int,
    ) -> Joined:
        window = Window(
            max(request.time_start_ns, after[0], 0), request.time_end_ns - 1, after, forward=True
        )
        # A small page is read by few rows, not cut from many.
        size = max(size * max_bytes // self._page_bytes, min(size, _FEWEST_ROWS))
        shape = Shape(
            FRAME if request.include_data else PRESENCE,
            show=size,
            read=size,
            each=rows_of_each(topics, size),
            max_bytes=max_bytes,
            streamed=True,
            apart=0 < request.page_size < size,
        )

        async def read(connection: Connection) -> Joined:
            return await read_page(connection, topics, window, shape)

        return await self._database.read_page(read, outlet)

    async def summary(self) -> StoreSummary:
        """Return what is held, in one snapshot that has all that was acknowledged before."""
        position, counted = self._counted()
        rows = await self._database.rows(_SUMMARY, {"position": position})
        ((newer, pruned, horizon, oldest, newest),) = rows
        return StoreSummary(
            store_id=self._database.store_id,
            messages=max(0, counted + newer - pruned),
            oldest_timestamp_ns=oldest or 0,
            newest_timestamp_ns=newest or 0,
            horizon_ns=horizon,
        )


_SUMMARY: Final = """
select (select coalesce(sum(messages), 0)::bigint from storenode.commits
        where position > %(position)b::bigint),
       pruned_messages, horizon_ns,
       (select ts from storenode.messages order by ts, hash limit 1),
       (select ts from storenode.messages order by ts desc, hash desc limit 1)
from storenode.store
"""


def query_window(request: PageRequest) -> Window:
    """Where a page of ``Query`` lies."""
    start = request.after or (BEFORE_ALL if request.forward else AFTER_ALL)
    low, high = max(request.time_start_ns, 0), request.time_end_ns - 1
    if request.forward:
        low = max(low, start[0])
    else:
        high = min(high, start[0])
    return Window(low, high, start, request.forward)


async def _is_another(connection: Connection, timestamp: int, message_hash: bytes) -> bool:
    """Return True if a stored message shares only the first half of a hash."""
    key = message_hash[:HASH_KEY_BYTES]
    end = b"\xff" * (HASH_BYTES - HASH_KEY_BYTES)
    cursor = await connection.execute(
        "select hash from storenode.messages"
        " where ts = %b::bigint and hash between %b::bytea and %b::bytea",
        (timestamp, key, key + end),
        binary=True,
    )
    held = [bytes(digest) for (digest,) in await cursor.fetchall()]  # type: ignore[call-overload]
    return bool(held) and message_hash not in held
