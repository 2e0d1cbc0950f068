"""Reading by hash, by time and by ID from Postgres.

The table of hashes has the first bytes of a hash and its timestamp; the message there has the whole
hash. Recent messages take one statement, older ones two.

A scan reads a page ahead of the one that its caller is still taking, and holds neither transaction
nor connection in between. A read for a transfer returns a prefix of what it was asked for: as many
messages as fit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from operator import itemgetter
from typing import Final

from reconcile.ids import SyncId, SyncIds
from store.db.connection import Connection, fetch_rows
from store.db.locks import cover_what_is_visible, waiting_for_standby
from store.db.pool import Database
from store.db.reading.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    HASH_KEY_BYTES,
    MessagePage,
    PageShape,
    PageWindow,
    frames_at,
    hash_key,
    largest_of,
    page_of,
    read_page,
    resolve,
    rows_of_hashes,
    select_topics,
    stored_at,
)
from store.db.statements import SQL
from store.domain.partitioning import DAY_NS
from store.domain.ports import (
    FramesPage,
    Outlet,
    PageRequest,
    QueryPage,
    Room,
    ScanRequest,
    StoreSummary,
    TopicFilter,
    TopicRights,
)
from store.domain.query import DEFAULT_PAGE_BYTES
from store.messages.transfer import transferred
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

DEFAULT_SCAN_PAGE: Final = 4_000
MAX_SCAN_PAGE: Final = 10_000
_QUERY_TAG: Final = b"\xa2\x01"
"""Field 20, ``StoreQueryResponse.messages``, in place of the tag of a frame."""

MAX_LOADED_IDS: Final = 4_096
"""IDs of one statement that reads messages."""

MAX_SOUGHT_IDS: Final = 16_384
"""IDs of one statement that only looks for them."""

_FEWEST_ROWS: Final = 256
_FEWEST_READ: Final = 1_000
"""Messages that are read at a time behind the first page, however few are sent in one."""


def recent_ns() -> int:
    """Return from when on messages count as recent: the start of yesterday."""
    now_ns = time.time_ns()
    return now_ns - now_ns % DAY_NS - DAY_NS


class DatabaseReader:
    """`store.domain.ports.Reader` on Postgres."""

    def __init__(self, database: Database, page_bytes: int = DEFAULT_PAGE_BYTES) -> None:
        """Read from a database; entries of a page have ``page_bytes`` at most."""
        self._database = database
        self._page_bytes = page_bytes

    async def position(self, message_hash: bytes, rights: TopicRights) -> SyncId | None:
        """Return the position of a message by hash (see `store.domain.ports.Reader`)."""
        if len(message_hash) != HASH_BYTES:
            return None
        wanted = TopicFilter(rights=rights)

        async def look(connection: Connection) -> SyncId | None:
            key = (hash_key(message_hash),)
            for (timestamp,) in await fetch_rows(connection, SQL.messages.locate_one, key):
                topics = await _topics_beginning_like(connection, timestamp, message_hash)
                allowed = await select_topics(connection, topics, wanted)
                # Of a pruned message no topic is left that rights could be compared with.
                if message_hash in allowed or (not topics and wanted.everything):
                    return timestamp, message_hash
            return None

        return await self._database.read(look)

    async def query(self, request: PageRequest) -> QueryPage:
        """Return one page of ``Query`` (see `store.domain.ports.Reader`)."""
        shape = PageShape(request.limit, self._page_bytes, request.include_data, looks_beyond=True)

        async def read(connection: Connection) -> MessagePage:
            topics, forward = await resolve(connection, request.filter), request.forward
            at = request.after or (BEFORE_ALL if forward else AFTER_ALL)
            low_ns = max(request.time_start_ns, at[0] if forward else 0)
            high_ns = min(request.time_end_ns - 1, MAX_TIMESTAMP_NS if forward else at[0])
            window = PageWindow(low_ns, high_ns, at, forward)
            return await read_page(connection, topics, window, shape)

        if request.hashes is not None:
            page = await self._database.read(self._read_hashes, request)
        else:
            page = await self._database.read(read)
        frames = page.frames if request.forward else page.frames[::-1]
        entries = b"".join([_QUERY_TAG + frame[1:] for frame in frames])
        if page.is_last:
            return QueryPage(entries, len(frames), None)
        last_ns, cursor = page.positions[-1]
        next_ns = last_ns if request.hashes is None else None
        return QueryPage(entries, len(frames), cursor, next_ns)

    async def _read_hashes(self, connection: Connection, request: PageRequest) -> MessagePage:
        hashes = request.hashes or ()
        most = largest_of(self._page_bytes, max(1, len(hashes))) if request.include_data else 0
        rows, topics = await rows_of_hashes(connection, hashes, recent_ns(), most)
        allowed = await select_topics(connection, topics, request.filter)
        forward, low_ns, high_ns = request.forward, request.time_start_ns, request.time_end_ns
        after = request.after or (BEFORE_ALL if forward else AFTER_ALL)
        chosen = [
            row
            for row in rows
            if row[1] in allowed
            and low_ns <= row[0] < high_ns
            and (row[:2] > after if forward else row[:2] < after)
        ]
        chosen.sort(key=itemgetter(0, 1), reverse=not forward)
        shape = PageShape(request.limit, self._page_bytes, request.include_data)
        return await page_of(connection, chosen, shape)

    async def scan(self, request: ScanRequest, outlet: Outlet) -> AsyncGenerator[FramesPage, None]:
        """Yield every match in ascending order, a page at a time.

        Small pages are cut from larger ones: to read each of them costs far more than to send it.
        """
        topics = await self._database.read_page(lambda it: resolve(it, request.filter), outlet)
        most, after = self._page_bytes, request.after or BEFORE_ALL
        room: Room | None = await outlet.room(most)
        ahead: asyncio.Task[MessagePage] | None = None
        asked = min(request.page_size or DEFAULT_SCAN_PAGE, MAX_SCAN_PAGE)
        size = asked

        def begin(room: Room) -> asyncio.Task[MessagePage]:
            # A small page is read by few rows, not cut from many.
            fitting = max(size * room.size_bytes // most, min(size, _FEWEST_ROWS))
            shape = PageShape(fitting, room.size_bytes, request.include_data)
            low_ns, high_ns = max(request.time_start_ns, after[0], 0), request.time_end_ns - 1
            window = PageWindow(low_ns, high_ns, after, forward=True)

            work = self._database.read_page(lambda it: read_page(it, topics, window, shape), outlet)
            return asyncio.ensure_future(work)

        try:
            while True:
                if room is None:
                    room = await outlet.room(most)
                page, taken = await (ahead or begin(room)), room
                if not page.frames:
                    return
                taken.fit(sum(map(len, page.frames)))
                after, ahead, room = page.positions[-1], None, outlet.spare_room(most)
                size = max(asked, _FEWEST_READ)
                if room is not None:
                    ahead = begin(room)
                for start in range(0, len(page.frames), asked):
                    end = min(start + asked, len(page.frames))
                    places = page.positions[start:end]
                    times = [at_ns for at_ns, _ in places]
                    yield FramesPage(b"".join(page.frames[start:end]), times, places[-1])
                # Not to be held while the next one waits for room.
                del page
                taken.close()
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def summary(self) -> StoreSummary:
        """Return what is held, in one snapshot that has all that was acknowledged before."""
        ((messages, horizon, oldest, newest),) = await self._database.rows(SQL.stores.read_summary)
        return StoreSummary(
            store_id=self._database.store_id,
            messages=messages,
            oldest_timestamp_ns=oldest or 0,
            newest_timestamp_ns=newest or 0,
            horizon_ns=horizon,
        )


async def _topics_beginning_like(
    connection: Connection, timestamp: int, message_hash: bytes
) -> dict[bytes, bytes]:
    """Return the topics of the messages of a timestamp whose hashes begin alike, by hash."""
    key = message_hash[:HASH_KEY_BYTES]
    end = b"\xff" * (HASH_BYTES - HASH_KEY_BYTES)
    return dict(
        await fetch_rows(connection, SQL.messages.read_topics_between, (timestamp, key, key + end))
    )


class TransferReader:
    """`store.sync.transfer.transfer.TransferReads` on Postgres."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, ids: SyncIds, max_bytes: int) -> list[bytes | None]:
        """Return messages to send (see `store.sync.transfer.transfer.TransferReads`)."""
        portion = ids[:MAX_LOADED_IDS]
        if not len(portion):
            return []
        pairs, pool = portion.pairs(), self._database.bulk_pool
        frames = await self._database.read(frames_at, pairs, max_bytes, pool=pool)
        return [None if frame is None else transferred(frame) for frame in frames]

    async def are_stored(self, ids: SyncIds) -> list[bool]:
        """Return which messages are stored (see `store.sync.transfer.transfer.TransferReads`)."""
        found: set[SyncId] = set()
        for start in range(0, len(ids), MAX_SOUGHT_IDS):
            part = ids[start : start + MAX_SOUGHT_IDS].pairs()
            found |= await self._database.read(_seek, part, pool=self._database.bulk_pool)
        return [at in found for at in ids.pairs()]


async def _seek(connection: Connection, positions: Sequence[SyncId]) -> set[SyncId]:
    with waiting_for_standby(connection):
        async with connection.transaction():
            found = await stored_at(connection, positions)
            if found:
                await cover_what_is_visible(connection)
    return found
