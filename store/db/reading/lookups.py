"""Look-ups of a few hashes, those that arrive while others are under way in one statement.

The table of hashes is read from its index alone, which holds the first half of a hash and the
timestamp; the message there has the other half. Recent messages take one statement, older ones two.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from store.db.pool import Connection, Database
from store.db.reading.messages import (
    Row,
    largest_of,
    locate,
    matching_rows_at,
    recent_rows,
)
from store.db.reading.pages import NO_PAGE, MessagePage, PageShape, page_of
from store.domain.partitioning import DAY_NS
from store.domain.ports import PageRequest

MAX_SHARED_HASHES: Final = 64
"""Hashes of one shared look-up: with messages of the largest size, about 10 MB."""

MAX_SMALL_HASHES: Final = 8
"""Hashes of a look-up that shares a statement with others."""

MAX_DIRECT_HASHES: Final = 128
"""Up to so many messages are read at once whatever their size, about 20 MB at most."""

_MAX_STATEMENTS: Final = 2


def recent_ns() -> int:
    """Return from when on messages count as recent: the start of yesterday."""
    now_ns = time.time_ns()
    return now_ns - now_ns % DAY_NS - DAY_NS


@dataclass(slots=True)
class _WaitingLookup:
    request: PageRequest
    answer: asyncio.Future[MessagePage]


class HashLookups:
    """Look-ups by hash; small ones are grouped."""

    def __init__(self, database: Database, page_bytes: int) -> None:
        self._database = database
        self._page_bytes = page_bytes
        self._queue: deque[_WaitingLookup] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def query(self, request: PageRequest) -> MessagePage:
        """Return a page of the messages with the hashes of a request, in reading order.

        Raises:
            StoreUnavailable: the database does not serve.
        """
        hashes = request.hashes or ()
        if len(hashes) > MAX_SMALL_HASHES or not request.filter.everything:
            return await self._database.read(self._read_page, request)
        answer: asyncio.Future[MessagePage] = asyncio.get_running_loop().create_future()
        self._queue.append(_WaitingLookup(request, answer))
        self._launch()
        return await answer

    async def _read_page(self, connection: Connection, request: PageRequest) -> MessagePage:
        hashes, include_data = request.hashes or (), request.include_data
        if len(hashes) <= MAX_DIRECT_HASHES and request.filter.everything:
            rows = await recent_rows(connection, hashes, recent_ns(), include_data=include_data)
            return await self._page_of(connection, request, rows)
        positions = _selected(request, await locate(connection, hashes))
        if not positions:
            return NO_PAGE
        most = largest_of(self._page_bytes, len(positions))
        rows = await matching_rows_at(
            connection, positions, most, request.filter, include_data=include_data
        )
        return await self._page_of(connection, request, rows)

    async def _page_of(
        self, connection: Connection, request: PageRequest, rows: list[Row]
    ) -> MessagePage:
        found = {row[:2]: row for row in rows}
        chosen = [found[position] for position in _selected(request, list(found))]
        shape = PageShape(request.limit, self._page_bytes, request.include_data)
        return await page_of(connection, chosen, shape)

    def _launch(self) -> None:
        if self._queue and len(self._tasks) < _MAX_STATEMENTS:
            task = asyncio.create_task(self._serve(self._take()))
            self._tasks.add(task)
            task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._launch()

    def _take(self) -> list[_WaitingLookup]:
        group: list[_WaitingLookup] = []
        hashes = 0
        include_data = self._queue[0].request.include_data
        while self._queue and self._queue[0].request.include_data == include_data:
            hashes += len(self._queue[0].request.hashes or ())
            if group and hashes > MAX_SHARED_HASHES:
                break
            waiting = self._queue.popleft()
            if not waiting.answer.done():
                group.append(waiting)
        return group

    async def _serve(self, group: Sequence[_WaitingLookup]) -> None:
        try:
            if group:
                pages = await self._database.read(self._read_group, group)
                for waiting, page in zip(group, pages, strict=True):
                    if not waiting.answer.done():
                        waiting.answer.set_result(page)
        except BaseException as error:
            for waiting in group:
                if not waiting.answer.done():
                    waiting.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise

    async def _read_group(
        self, connection: Connection, group: Sequence[_WaitingLookup]
    ) -> list[MessagePage]:
        hashes = {digest for waiting in group for digest in waiting.request.hashes or ()}
        include_data = group[0].request.include_data
        rows = await recent_rows(connection, [*hashes], recent_ns(), include_data=include_data)
        found: Mapping[bytes, Row] = {row[1]: row for row in rows}
        pages = []
        for waiting in group:
            wanted = waiting.request.hashes or ()
            own = [found[digest] for digest in wanted if digest in found]
            pages.append(await self._page_of(connection, waiting.request, own))
        return pages


def _selected(
    request: PageRequest, positions: Sequence[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    low_ns, high_ns, after = request.time_start_ns, request.time_end_ns, request.after
    chosen = [at for at in positions if low_ns <= at[0] < high_ns]
    if after is not None:
        chosen = [at for at in chosen if (at > after if request.forward else at < after)]
    return sorted(chosen, reverse=not request.forward)
