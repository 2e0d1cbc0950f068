"""Streams of messages with a cursor that the caller keeps, and followers that change stores."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Final, Self

from storenode.client.errors import CursorRefused
from storenode.client.message import Message, Page
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage

MAX_REMEMBERED_HASHES: Final = 65_536
"""Messages that a follower recognises when it has changed to another store."""


class MessageStream(AsyncIterator[Message]):
    """Messages of a scan or a follower, one by one, or in pages by `pages`.

    An asynchronous iterator and context manager; leaving the block ends the call.
    """

    def __init__(self, pages: AsyncGenerator[Page], cursor: bytes) -> None:
        self._pages = pages
        self._next = cursor
        self._waiting: deque[Message] = deque()
        self.cursor = cursor
        """Continues after all messages whose processing is over: it moves when a page's last
        message has been handed out and the next one is asked for. Keep it with what you have
        processed; empty before the first page."""
        self.live = False
        """Whether a follower has caught up with what the node holds."""
        self.coverage: AnswerCoverage | None = None
        """How complete a scan was that asked for it; known when it has ended. After an outage in
        the middle it is about what came since, as `AnswerCoverage.time_start` says."""

    async def __anext__(self) -> Message:
        while not self._waiting:
            self.cursor = self._next
            page = await anext(self._pages)
            self._take(page)
        return self._waiting.popleft()

    async def pages(self) -> AsyncGenerator[Page]:
        """The same in pages; `cursor` stands after the page when the next one is asked for."""
        async with aclosing(self._pages):
            async for page in self._pages:
                yield page
                self.cursor = page.cursor or self.cursor
                self.live = page.live
                self.coverage = page.coverage

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the call."""
        await self._pages.aclose()

    def _take(self, page: Page) -> None:
        self._waiting.extend(page.messages)
        self._next = page.cursor or self._next
        self.live = page.live
        self.coverage = page.coverage


OpenFollow = Callable[[bytes], AsyncGenerator[Page]]
OpenScan = Callable[[int], AsyncGenerator[Page]]


async def followed_across(
    follow: OpenFollow, scan: OpenScan, cursor: bytes, overlap_s: float
) -> AsyncGenerator[Page]:
    """Follow, and when only nodes of another store are left, go on there by time.

    ``follow`` opens a feed after a cursor, or with none from now on; ``scan`` reads what is held
    from a time on. What the other store holds since ``overlap_s`` before the last page comes again,
    less what is remembered.
    """
    known = BoundedDict[bytes, None](MAX_REMEMBERED_HASHES)
    caught_up_ns: int | None = None
    while True:
        try:
            async with aclosing(follow(cursor)) as pages:
                async for page in pages:
                    if caught_up_ns is not None and not cursor:
                        async with aclosing(scan(caught_up_ns)) as missed:
                            async for old in missed:
                                # No cursor yet: the new store's would skip what is left of this.
                                yield _fresh(known, old.messages, None)
                    cursor = page.cursor or cursor
                    yield _fresh(known, page.messages, cursor, live=page.live)
                    caught_up_ns = time.time_ns() - round(overlap_s * NS_PER_S)
        except CursorRefused:
            if caught_up_ns is None or not cursor:
                raise
            cursor = b""
        else:
            return


def _fresh(
    known: BoundedDict[bytes, None],
    messages: Iterable[Message],
    cursor: bytes | None,
    *,
    live: bool = False,
) -> Page:
    """A page of what is not known yet, which is known from now on."""
    fresh = []
    for message in messages:
        digest = message.hash
        if digest not in known:
            fresh.append(message)
        known[digest] = None
    return Page(fresh, cursor, live)
