"""Look-ups of a few hashes, those that arrive while others are under way in one statement.

The table of hashes is read from its index alone, which holds the first half of a hash and the
timestamp; the message there has the other half. Recent messages take one statement, older ones two.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from store.db.connection import Connection
from store.db.pool import Database
from store.db.reading.messages import (
    Row,
    largest_of,
    locate,
    rows_at,
    rows_of_hashes,
    select_topics,
    topics_of,
)
from store.db.reading.pages import MessagePage, PageShape, page_of
from store.domain.partitioning import DAY_NS
from store.domain.ports import PageRequest, SyncId

MAX_SHARED_HASHES: Final = 64
"""Hashes of one shared look-up: with messages of the largest size, about 10 MB."""

MAX_SMALL_HASHES: Final = 8
"""Hashes of a look-up that shares a statement with others."""

_MAX_STATEMENTS: Final = 2

_Waiting = tuple[PageRequest, asyncio.Future[MessagePage]]


def recent_ns() -> int:
    """Return from when on messages count as recent: the start of yesterday."""
    now_ns = time.time_ns()
    return now_ns - now_ns % DAY_NS - DAY_NS


class HashLookups:
    """Look-ups by hash; small ones are grouped."""

    def __init__(self, database: Database, page_bytes: int) -> None:
        self._database = database
        self._page_bytes = page_bytes
        self._queue: deque[_Waiting] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def query(self, request: PageRequest) -> MessagePage:
        """Return a page of the messages with the hashes of a request, in reading order.

        Raises:
            StoreUnavailable: the database does not serve.
        """
        if len(request.hashes or ()) > MAX_SMALL_HASHES or not request.filter.everything:
            return await self._database.read(self._read, request)
        answer: asyncio.Future[MessagePage] = asyncio.get_running_loop().create_future()
        self._queue.append((request, answer))
        if len(self._tasks) < _MAX_STATEMENTS:
            self._tasks.add(asyncio.create_task(self._work()))
        return await answer

    async def _read(self, connection: Connection, request: PageRequest) -> MessagePage:
        positions = _selected(request, await locate(connection, request.hashes or ()))
        if not request.filter.everything:
            topics = await topics_of(connection, positions)
            allowed = await select_topics(connection, topics, request.filter)
            positions = [at for at in positions if at[1] in allowed]
        most = largest_of(self._page_bytes, max(1, len(positions))) if request.include_data else 0
        found = {row[:2]: row for row in await rows_at(connection, positions, most)}
        return await self._page(connection, request, [found[at] for at in positions if at in found])

    async def _page(
        self, connection: Connection, request: PageRequest, rows: Sequence[Row]
    ) -> MessagePage:
        shape = PageShape(request.limit, self._page_bytes, request.include_data)
        return await page_of(connection, rows, shape)

    async def _work(self) -> None:
        """Serve what waits, until nothing does."""
        try:
            while self._queue:
                if group := self._take():
                    await self._serve(group)
        finally:
            # Not in a callback: another look-up may come before it runs.
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)

    async def _serve(self, group: Sequence[_Waiting]) -> None:
        try:
            pages = await self._database.read(self._read_group, [request for request, _ in group])
        except BaseException as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, answer), page in zip(group, pages, strict=True):
            if not answer.done():
                answer.set_result(page)

    async def _read_group(
        self, connection: Connection, group: Sequence[PageRequest]
    ) -> list[MessagePage]:
        hashes = {digest for request in group for digest in request.hashes or ()}
        found = await rows_of_hashes(connection, [*hashes], recent_ns())
        pages = []
        for each in group:
            stored = {found[it][:2]: found[it] for it in each.hashes or () if it in found}
            rows = [stored[at] for at in _selected(each, [*stored])]
            pages.append(await self._page(connection, each, rows))
        return pages

    def _take(self) -> list[_Waiting]:
        group, hashes = list[_Waiting](), 0
        while self._queue:
            hashes += len(self._queue[0][0].hashes or ())
            if group and hashes > MAX_SHARED_HASHES:
                break
            waiting = self._queue.popleft()
            if not waiting[1].done():  # else its caller has gone away
                group.append(waiting)
        return group


def _selected(request: PageRequest, positions: Sequence[SyncId]) -> list[SyncId]:
    low_ns, high_ns, after = request.time_start_ns, request.time_end_ns, request.after
    chosen = [at for at in positions if low_ns <= at[0] < high_ns]
    if after is not None:
        chosen = [at for at in chosen if (at > after if request.forward else at < after)]
    return sorted(chosen, reverse=not request.forward)
