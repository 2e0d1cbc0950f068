"""Calls of ``Follow`` for up to 100 channels each, which a channel joins without a gap.

1. A channel's topic joins a shared feed, which begins again at its own cursor with one topic more.
2. From its first page on, new messages of the channel are queued.
3. Only then is the channel's backlog read, by a call of its own from the channel's cursor, until
   that call has returned all that was stored before. So a message that is stored meanwhile is in
   one of the two; one that is in both is recognised when it comes again.
4. A channel whose queue is full loses the queue, and begins at 3.

The cursor of a shared feed is a position in the order of the node's store, valid for any topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from storenode.connection.call_status import cancelled
from storenode.sds.aio.limits import (
    GATHER_S,
    MAX_ALL_QUEUED_BYTES,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_PAGES,
    MAX_TOPICS_PER_FEED,
)
from storenode.sds.aio.transport import FeedPage, Route, TransportError
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

if TYPE_CHECKING:
    from storenode.sds.aio.node import NodeLink

Follow = Callable[[store_pb2.ContentFilter, bytes], AsyncGenerator[store_pb2.FollowPage, None]]
"""Pages of some topics from a cursor on, without end; raises `TransportError`."""


class _Member:
    """A channel in a shared feed, and its queue of pages."""

    def __init__(self, feeds: SharedFeeds, link: NodeLink) -> None:
        self.link = link
        self._feeds = feeds
        self.joined = False
        self.cursor = b""
        self._pages: deque[FeedPage] = deque()
        self._size = 0
        self._lagging = False
        self._failure: TransportError | None = None
        self._news = asyncio.Event()

    def join(self, cursor: bytes) -> None:
        """Queue messages from this cursor on."""
        self.joined, self.cursor = True, cursor
        self._news.set()

    def put(self, items: Sequence[WakuMessageKeyValue], page: store_pb2.FollowPage) -> None:
        """Queue messages, unless the queue was full."""
        if self._lagging:
            return
        self._pages.append(FeedPage(self.link.fetched(items), page.cursor, page.live))
        self._count(_size(self._pages[-1]))
        full = self._size > MAX_QUEUED_BYTES or self._feeds.queued_bytes > MAX_ALL_QUEUED_BYTES
        if full or len(self._pages) > MAX_QUEUED_PAGES:
            self.drop()
            self._lagging = True
        self._news.set()

    def drop(self) -> None:
        """Clear the queue."""
        self._pages.clear()
        self._count(-self._size)

    def fail(self, error: TransportError) -> None:
        """Raise an error to the reader, since the shared feed has ended."""
        self._failure = error
        self._news.set()

    async def until_joined(self) -> None:
        """Wait until messages are queued.

        Raises:
            TransportError: The feed has ended.
        """
        while not self.joined:
            await self._wait()

    async def next(self) -> FeedPage | None:
        """Return the next page; None when the queue was full, after which it begins again.

        Raises:
            TransportError: The feed has ended.
        """
        while not self._pages and not self._lagging:
            await self._wait()
        if self._lagging:
            self._lagging = False
            return None
        page = self._pages.popleft()
        self._count(-_size(page))
        return page

    def _count(self, size: int) -> None:
        self._size += size
        self._feeds.queued_bytes += size

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        await self._news.wait()


class _SharedFeed:
    """A call for the members' topics, which begins again when one is added."""

    def __init__(
        self, pubsub_topic: str, follow: Follow, ended: Callable[[_SharedFeed], None]
    ) -> None:
        self.pubsub_topic = pubsub_topic
        self.members: dict[str, list[_Member]] = {}
        self._follow = follow
        self._ended = ended
        self._cursor = b""
        self._added = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def has_room(self, route: Route) -> bool:
        """Return True if a channel of this route can be added."""
        room = len(self.members) < MAX_TOPICS_PER_FEED or route.content_topic in self.members
        return route.pubsub_topic == self.pubsub_topic and room

    def add(self, member: _Member) -> None:
        """Add a channel, and begin to read."""
        self.members.setdefault(member.link.route.content_topic, []).append(member)
        self._added.set()
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    def remove(self, member: _Member) -> None:
        """Remove a channel; the call may go on with its topic."""
        topic = member.link.route.content_topic
        of_topic = self.members.get(topic, [])
        if member in of_topic:
            of_topic.remove(member)
        if not of_topic:
            self.members.pop(topic, None)
        if not self.members and self.task is not None:
            # At once: a channel that comes next must not join a call that is being cancelled.
            self._ended(self)
            self.task.cancel()

    async def _run(self) -> None:
        failure = TransportError("The shared feed has ended.")
        try:
            while True:
                await asyncio.sleep(GATHER_S)
                self._added.clear()
                await self._read(tuple(self.members))
        except TransportError as error:
            failure = error
        finally:
            self._ended(self)
            for member in [each for some in self.members.values() for each in some]:
                member.fail(failure)

    async def _read(self, topics: Sequence[str]) -> None:
        """Read pages of these topics until another channel is added."""
        wanted = store_pb2.ContentFilter(pubsub_topic=self.pubsub_topic, content_topics=topics)
        async with aclosing(self._follow(wanted, self._cursor)) as pages:
            self._distribute(await anext(pages), topics)
            added = asyncio.create_task(self._wait_added())
            try:
                while (page := await _next_before(added, pages)) is not None:
                    self._distribute(page, topics)
            finally:
                await cancelled(added)

    async def _wait_added(self) -> None:
        await self._added.wait()

    def _distribute(self, page: store_pb2.FollowPage, topics: Sequence[str]) -> None:
        by_topic: dict[str, list[WakuMessageKeyValue]] = {}
        for item in page.messages:
            by_topic.setdefault(item.message.content_topic, []).append(item)
        for topic in topics:
            for member in self.members.get(topic, ()):
                if not member.joined:
                    # The messages on this page came before: the channel's own call returns them.
                    member.join(page.cursor)
                elif topic in by_topic:
                    member.put(by_topic[topic], page)
        self._cursor = page.cursor


class SharedFeeds:
    """The feeds of one node. ``calls`` bounds the calls of single channels."""

    def __init__(self, follow: Follow, calls: asyncio.Semaphore) -> None:
        self._follow = follow
        self._calls = calls
        self.queued_bytes = 0
        self._feeds: list[_SharedFeed] = []

    async def follow(self, link: NodeLink, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Yield the pages of a channel as `Link.follow`."""
        member = _Member(self, link)
        feed = self._feed(link.route)
        feed.add(member)
        try:
            await member.until_joined()
            page = FeedPage((), member.cursor, live=True) if not cursor else None
            while True:
                if page is not None:
                    cursor = page.cursor
                    yield page
                else:
                    async with aclosing(self._backlog(link, cursor)) as missed:
                        async for each in missed:
                            cursor = each.cursor
                            yield each
                page = await member.next()
        finally:
            member.drop()
            feed.remove(member)

    async def close(self) -> None:
        """End all calls."""
        tasks = [feed.task for feed in self._feeds if feed.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _backlog(self, link: NodeLink, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Yield what was stored after a cursor, until there is no more."""
        async with self._calls, aclosing(link.follow_alone(cursor)) as pages:
            async for page in pages:
                yield page
                if page.live:
                    return

    def _feed(self, route: Route) -> _SharedFeed:
        for feed in self._feeds:
            if feed.has_room(route):
                return feed
        made = _SharedFeed(route.pubsub_topic, self._follow, self._forget)
        self._feeds.append(made)
        return made

    def _forget(self, feed: _SharedFeed) -> None:
        if feed in self._feeds:
            self._feeds.remove(feed)


async def _next_before(
    end: asyncio.Task[None], pages: AsyncGenerator[store_pb2.FollowPage, None]
) -> store_pb2.FollowPage | None:
    """Return the next page, or None if the end comes first."""
    coming = asyncio.ensure_future(anext(pages))
    try:
        await asyncio.wait({coming, end}, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        coming.cancel()  # the generator is closed next, and must not be running then
        await asyncio.wait({coming})
        if not coming.cancelled():
            coming.exception()  # retrieved, so that asyncio does not log it


def _size(page: FeedPage) -> int:
    return sum(len(each.payload) for each in page.messages)
