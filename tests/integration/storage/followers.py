"""Followers for tests: what they were given, checked against the order of the commits.

And an outlet with room for every page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from store.db.feed import DatabaseFeed
from store.db.insert import CommitPart, KnownTopics, assign_commit_position, copy, find_new
from store.domain.ports import FollowPage, FollowRequest, Source, TopicFilter
from store.messages.cursor import FollowCursor
from store.messages.record import RecordBatch
from tests.integration.storage.node import Node
from tests.integration.storage.world import hashes_in

PATIENCE_S = 90.0
_IN_COMMIT_ORDER = """
select m.hash from storenode.commits c join storenode.messages m on m.batch = c.batch
order by c.position, m.ts, m.hash
"""


def from_now(wanted: TopicFilter | None = None, *, include_data: bool = False) -> FollowRequest:
    """Follow what comes from now on."""
    return FollowRequest(wanted or TopicFilter(), None, False, include_data)


def from_beginning(
    wanted: TopicFilter | None = None, *, include_data: bool = False
) -> FollowRequest:
    """Follow everything."""
    return FollowRequest(wanted or TopicFilter(), None, True, include_data)


def from_cursor(cursor: FollowCursor, wanted: TopicFilter | None = None) -> FollowRequest:
    """Follow what comes after a cursor."""
    return FollowRequest(wanted or TopicFilter(), cursor, False, False)


class Following:
    """A follower that takes pages as they come, in a task."""

    def __init__(self, feed: DatabaseFeed, request: FollowRequest) -> None:
        self.pages: list[FollowPage] = []
        self.hashes: list[bytes] = []
        self._moved = asyncio.Condition()
        self._task = asyncio.create_task(self._run(feed, request))

    async def _run(self, feed: DatabaseFeed, request: FollowRequest) -> None:
        try:
            async with aclosing(feed.follow(request, WideOutlet())) as pages:
                async for page in pages:
                    hashes = hashes_in(page.frames)
                    assert len(hashes) == page.count
                    async with self._moved:
                        self.pages.append(page)
                        self.hashes += hashes
                        self._moved.notify_all()
        finally:
            async with self._moved:
                self._moved.notify_all()

    async def until(self, reached: Callable[[Following], bool]) -> Following:
        """Wait for a state; what ended the follower is raised."""
        async with asyncio.timeout(PATIENCE_S), self._moved:
            await self._moved.wait_for(lambda: reached(self) or self._task.done())
        if not reached(self):
            self._task.result()
        return self

    async def until_live(self) -> Following:
        """Wait until the backlog is exhausted."""
        return await self.until(lambda self: any(page.live for page in self.pages))

    async def until_given(self, digest: bytes) -> list[bytes]:
        """Wait for a message; all hashes so far."""
        await self.until(lambda self: digest in self.hashes)
        return self.hashes

    async def end(self) -> BaseException | None:
        """Wait until the follower ends by itself; the reason."""
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([self._task])
        return self._task.exception()

    async def stop(self) -> None:
        """Stop following."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def following(feed: DatabaseFeed, *requests: FollowRequest) -> AsyncIterator[list[Following]]:
    """Yield followers for the length of a ``with`` block."""
    followers = [Following(feed, request) for request in requests]
    try:
        yield followers
    finally:
        for follower in followers:
            await follower.stop()


async def commit_order(node: Node) -> list[bytes]:
    """Return the hashes of everything that is committed, as every follower must be given them."""
    return [row[0] for row in await node.rows(_IN_COMMIT_ORDER)]  # type: ignore[misc]


class LongTransaction:
    """A transaction that inserts batches early and commits late, as a restore does."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def open(self, batches: Sequence[RecordBatch]) -> None:
        """Insert, and keep the transaction open."""
        self._connection = await self._node.database.connect()
        connection, partitions = self._connection, self._node.partitions
        for batch in batches:
            await partitions.ensure(connection, batch.timestamps)
            await KnownTopics().ensure(connection, [batch], partitions)
        # What others do meanwhile may take longer than a node may be silent.
        await connection.execute("set idle_in_transaction_session_timeout = 0")
        await connection.execute("begin")
        self._parts = [CommitPart(batch, Source.RESTORE) for batch in batches]
        for part in self._parts:
            assert await find_new(connection, [part]) == 0
            await copy(connection, [part])

    async def commit(self) -> None:
        """Take the places in the commit order, and commit."""
        await assign_commit_position(self._connection, self._parts, "")
        await self._connection.execute("commit")
        await self._connection.close()


TERMINATE_OTHERS = """
select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""


@dataclass(frozen=True)
class WideRoom:
    """`store.domain.ports.Room`."""

    size_bytes: int

    def fit(self, page_bytes: int, beside_bytes: int = 0) -> None:
        """Count nothing."""

    def close(self) -> None:
        """Count nothing."""


class WideOutlet:
    """`store.domain.ports.Outlet`."""

    caller = "caller"
    connection = "connection"

    async def room(self, most_bytes: int) -> WideRoom:
        """Return as much as is asked for."""
        return WideRoom(most_bytes)

    def spare_room(self, most_bytes: int) -> WideRoom:
        """Return as much as is asked for."""
        return WideRoom(most_bytes)
