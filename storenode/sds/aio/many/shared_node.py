"""A store node whose connection serves many channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from storenode.connection.channel import open_channel
from storenode.connection.ending import cancelled
from storenode.sds.aio.limits import MAX_NODE_RESPONSE_BYTES
from storenode.sds.aio.many.feeds import SharedFeeds
from storenode.sds.aio.many.limits import MAX_CALLS_AT_ONCE
from storenode.sds.aio.many.publishing import Answers, SharedPublishing
from storenode.sds.aio.node import NodeLink, StoreNode
from storenode.sds.aio.transport import FeedPage, Fetched, Outbound, Route, TransportError, Verdict
from storenode.sds.codec import Entry
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage
from storenode.wire.waku.store.v3.store_pb2 import WakuMessageKeyValue

if TYPE_CHECKING:
    from storenode.sds.aio.many.publishing import Call

_T = TypeVar("_T")


class SharedNode:
    """A transport whose links share a connection. Made inside the event loop, and to be closed.

    Raises:
        ClientOptionError: as `StoreNode.open`.
    """

    def __init__(self, node: StoreNode) -> None:
        self._name = node.name
        self._channel, self._metadata = open_channel(
            node.address, node.token, node.tls, max_response_bytes=MAX_NODE_RESPONSE_BYTES
        )
        common = _CommonLink(self._name, Route("", "", ""), self._channel, self._metadata)
        self.calls = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self.feeds = SharedFeeds(common.pages, self.calls)
        self.publishing = SharedPublishing(self._name, common.publishing, common.translated)

    @property
    def name(self) -> str:
        """The node's address."""
        return self._name

    def open(self, route: Route) -> SharedLink:
        """Make a link of one channel."""
        return SharedLink(NodeLink(self._name, route, self._channel, self._metadata), self)

    async def close(self) -> None:
        """End all calls and the connection."""
        await self.feeds.close()
        await self.publishing.close()
        await self._channel.close(grace=None)


class SharedLink:
    """A channel at a shared node; the methods are those of `storenode.sds.aio.transport.Link`."""

    def __init__(self, alone: NodeLink, node: SharedNode) -> None:
        self._alone = alone
        self._node = node

    @property
    def name(self) -> str:
        """The node's address."""
        return self._alone.name

    @property
    def route(self) -> Route:
        """The route on which the channel is published."""
        return self._alone.route

    @property
    def dropped(self) -> int:
        """The number of received messages that were dropped; see `NodeLink.dropped`."""
        return self._alone.dropped

    def fetched(self, items: Sequence[WakuMessageKeyValue]) -> list[Fetched]:
        """Verify messages, and return those of the channel."""
        return self._alone.fetched(items)

    def follow_alone(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the channel with a call of its own."""
        return self._alone.follow(cursor)

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Follow the channel with a call that it shares with others."""
        return self._node.feeds.follow(self, cursor)

    async def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        """Publish through the ``PublishStream`` of all channels, and yield the verdicts."""
        answers = Answers()
        writer = asyncio.create_task(self._write(batches, answers))
        try:
            while True:
                yield await answers.next()
        finally:
            await cancelled(writer)

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan as `NodeLink.scan`, once a call of the node is free."""
        return self._in_turn(self._alone.scan(since_ns))

    def scan_telling(
        self, since_ns: int, tell: Callable[[AnswerCoverage], None]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Scan as `NodeLink.scan_telling`, once a call of the node is free."""
        return self._in_turn(self._alone.scan_telling(since_ns, tell))

    async def coverage(self) -> AnswerCoverage | None:
        """Request the coverage as `NodeLink.coverage`, once a call of the node is free."""
        async with self._node.calls:
            return await self._alone.coverage()

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Request which hints the node stores, once a call of the node is free."""
        async with self._node.calls:
            return await self._alone.holds(hints)

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch messages by their hints, once a call of the node is free."""
        return self._in_turn(self._alone.by_hint(hints))

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch messages by their IDs, once a call of the node is free."""
        return self._in_turn(self._alone.by_id(entries))

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Fetch the causal histories of heads, once a call of the node is free."""
        return self._in_turn(self._alone.closure(heads, known_ids))

    async def close(self) -> None:
        """Leave the node's connection open; calls end with their generators."""

    async def _in_turn(self, pages: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
        async with aclosing(pages), self._node.calls:
            async for page in pages:
                yield page

    async def _write(self, batches: AsyncIterator[Sequence[Outbound]], answers: Answers) -> None:
        try:
            async for batch in batches:
                request, hints = self._alone.request(batch)
                judge = partial(self._alone.verdicts, hints=hints)
                await self._node.publishing.write(request, judge, answers)
        except Exception:
            # Else the reader would wait for answers to requests that were never sent.
            answers.put(TransportError(f"Publishing at {self.name} has failed."))
            raise


class _CommonLink(NodeLink):
    """The calls that serve all channels."""

    def publishing(self) -> Call:
        """Open the stream of publishing."""
        return self._store.PublishStream(None, metadata=self._metadata)

    def translated(self) -> AbstractContextManager[None]:
        """Translate failures of calls into `TransportError`."""
        return self._translated()
