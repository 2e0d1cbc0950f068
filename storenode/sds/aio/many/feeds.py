"""One call of ``Follow`` for up to 100 channels, and how a channel gets into it without a gap.

1. A channel's topic joins a shared feed, which begins anew at its own cursor with one topic more.
2. From its first page on, what comes for the channel is kept for it.
3. Only then is what the channel missed read, by a call of its own from the channel's cursor, until
   that call has given all that was stored before. So what is stored meanwhile is in one of the
   two; what is in both is known when it comes again.
4. A channel that lets too much wait loses what is kept for it, and begins at 3.

The cursor of a shared feed is a place in the order of the node's store, valid for any topic.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from storenode.connection.ending import cancelled
from storenode.sds.aio.many.limits import (
    GATHER_S,
    MAX_ALL_QUEUED_BYTES,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_PAGES,
    MAX_TOPICS_PER_FEED,
)
from storenode.sds.aio.transport import FeedPage, Fetched, Route, TransportError
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

Follow = Callable[[store_pb2.ContentFilter, bytes], AsyncGenerator[store_pb2.FollowPage, None]]
"""Pages of some topics from a cursor on, without end; raises `TransportError`."""


class Channel(Protocol):
    """What a shared feed needs of a channel."""

    @property
    def route(self) -> Route:
        """Where it is published."""

    def fetched(self, items: Sequence[WakuMessageKeyValue]) -> list[Fetched]:
        """Its messages, verified."""

    def follow_alone(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """A feed of its own; raises as `Link.follow`."""


class _Kept:
    """Bytes that are kept for all channels."""

    size = 0


class _Member:
    """A channel in a shared feed, and what is kept for it."""

    def __init__(self, channel: Channel, everything: _Kept) -> None:
        self.channel = channel
        self._everything = everything
        self.joined = False
        self.cursor = b""
        self._pages: deque[FeedPage] = deque()
        self._size = 0
        self._lagging = False
        self._failure: TransportError | None = None
        self._news = asyncio.Event()

    def join(self, cursor: bytes) -> None:
        """What comes after this cursor is kept from now on."""
        self.joined, self.cursor = True, cursor
        self._news.set()

    def put(self, items: Sequence[WakuMessageKeyValue], page: store_pb2.FollowPage) -> None:
        """Keep what came for it, if it takes what came before."""
        if self._lagging:
            return
        self._pages.append(FeedPage(self.channel.fetched(items), page.cursor, page.live))
        self._count(_size(self._pages[-1]))
        full = self._size > MAX_QUEUED_BYTES or self._everything.size > MAX_ALL_QUEUED_BYTES
        if full or len(self._pages) > MAX_QUEUED_PAGES:
            self.drop()
            self._lagging = True
        self._news.set()

    def drop(self) -> None:
        """Keep nothing of what came."""
        self._pages.clear()
        self._count(-self._size)

    def fail(self, error: TransportError) -> None:
        """The shared feed has ended."""
        self._failure = error
        self._news.set()

    async def until_joined(self) -> None:
        """Wait until what comes is kept.

        Raises:
            TransportError: the feed has ended.
        """
        while not self.joined:
            await self._wait()

    async def next(self) -> FeedPage | None:
        """The next page; None when some were dropped, and those from now on are kept again.

        Raises:
            TransportError: the feed has ended.
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
        self._everything.size += size

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        await self._news.wait()


class _Trunk:
    """One call for the members' topics; it begins anew when one is added."""

    def __init__(self, pubsub_topic: str, follow: Follow, ended: Callable[[_Trunk], None]) -> None:
        self.pubsub_topic = pubsub_topic
        self.members: dict[str, list[_Member]] = {}
        self._follow = follow
        self._ended = ended
        self._cursor = b""
        self._added = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def takes(self, route: Route) -> bool:
        """Whether a channel of this route can be added."""
        room = len(self.members) < MAX_TOPICS_PER_FEED or route.content_topic in self.members
        return route.pubsub_topic == self.pubsub_topic and room

    def add(self, member: _Member) -> None:
        """Serve a channel."""
        self.members.setdefault(member.channel.route.content_topic, []).append(member)
        self._added.set()
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    def remove(self, member: _Member) -> None:
        """Serve a channel no longer; the call may go on with its topic."""
        topic = member.channel.route.content_topic
        of_topic = self.members.get(topic, [])
        if member in of_topic:
            of_topic.remove(member)
        if not of_topic:
            self.members.pop(topic, None)
        if not self.members and self.task is not None:
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
        """Hand out pages of these topics until there are others to begin with."""
        wanted = store_pb2.ContentFilter(pubsub_topic=self.pubsub_topic, content_topics=topics)
        async with aclosing(self._follow(wanted, self._cursor)) as pages:
            self._hand_out(await anext(pages), topics)
            added = asyncio.create_task(self._wait_added())
            try:
                while (page := await _before(added, pages)) is not None:
                    self._hand_out(page, topics)
            finally:
                await cancelled(added)

    async def _wait_added(self) -> None:
        await self._added.wait()

    def _hand_out(self, page: store_pb2.FollowPage, topics: Sequence[str]) -> None:
        by_topic: dict[str, list[WakuMessageKeyValue]] = {}
        for item in page.messages:
            by_topic.setdefault(item.message.content_topic, []).append(item)
        for topic in topics:
            for member in self.members.get(topic, ()):
                if not member.joined:
                    # What is on this page came before: the channel's own call gives that.
                    member.join(page.cursor)
                elif topic in by_topic:
                    member.put(by_topic[topic], page)
        self._cursor = page.cursor


class SharedFeeds:
    """All feeds of one node. ``calls`` bounds the calls of single channels."""

    def __init__(self, follow: Follow, calls: asyncio.Semaphore) -> None:
        self._follow = follow
        self._calls = calls
        self._kept = _Kept()
        self._trunks: list[_Trunk] = []

    def __len__(self) -> int:
        """Calls of ``Follow`` that serve all."""
        return len(self._trunks)

    async def follow(self, channel: Channel, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """As `Link.follow`."""
        member = _Member(channel, self._kept)
        trunk = self._trunk(channel.route)
        trunk.add(member)
        try:
            await member.until_joined()
            page = FeedPage((), member.cursor, live=True) if not cursor else None
            while True:
                if page is not None:
                    cursor = page.cursor
                    yield page
                else:
                    async with aclosing(self._alone(channel, cursor)) as missed:
                        async for each in missed:
                            cursor = each.cursor
                            yield each
                page = await member.next()
        finally:
            member.drop()
            trunk.remove(member)

    async def close(self) -> None:
        """End all calls."""
        tasks = [trunk.task for trunk in self._trunks if trunk.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _alone(self, channel: Channel, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """What was stored after a cursor, until there is no more."""
        async with self._calls, aclosing(channel.follow_alone(cursor)) as pages:
            async for page in pages:
                yield page
                if page.live:
                    return

    def _trunk(self, route: Route) -> _Trunk:
        for trunk in self._trunks:
            if trunk.takes(route):
                return trunk
        made = _Trunk(route.pubsub_topic, self._follow, self._forget)
        self._trunks.append(made)
        return made

    def _forget(self, trunk: _Trunk) -> None:
        if trunk in self._trunks:
            self._trunks.remove(trunk)


async def _before(
    end: asyncio.Task[None], pages: AsyncGenerator[store_pb2.FollowPage, None]
) -> store_pb2.FollowPage | None:
    """The next page, or None if the end comes first."""
    coming = asyncio.ensure_future(anext(pages))
    try:
        await asyncio.wait({coming, end}, return_when=asyncio.FIRST_COMPLETED)
        return coming.result() if coming.done() else None
    finally:
        if not coming.done():
            coming.cancel()
            # The generator is closed next, and must not be running then.
            await asyncio.wait({coming})


def _size(page: FeedPage) -> int:
    return sum(len(each.payload) for each in page.messages)
