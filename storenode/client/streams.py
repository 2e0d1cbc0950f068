"""Streams of messages with a cursor that the caller keeps, and followers that change stores."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Final, Self

from storenode.client.message import Message, Page
from storenode.client.positions import Position
from storenode.common.bounded_dict import BoundedDict
from storenode.common.errors import ArgumentError, ClientClosedError
from storenode.connection.errors import CursorRefusedError, InvalidRequestError
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.coverage.v1.coverage_pb2 import AnswerCoverage

MAX_REMEMBERED_HASHES: Final = 65_536
"""Messages that a follower recognises when it has changed to another store."""


class AsyncMessageStream(AsyncIterator[Message]):
    """Messages of a scan or a follower, one by one, or in pages by `pages`.

    An asynchronous iterator and context manager; leaving the block ends the call. With a
    ``position`` the stream begins where an earlier one has come to, and keeps the position: each
    page's when the program asks for what follows the page, so that after a kill a message may
    come again and none is missed. With ``acknowledges`` it is kept by `ack` alone.
    """

    def __init__(
        self,
        open_pages: Callable[[bytes], AsyncGenerator[Page]],
        cursor: bytes,
        *,
        position: Position | None = None,
        acknowledges: bool = False,
    ) -> None:
        self._position = position
        self._acknowledges = acknowledges
        self._saved = b""
        self._pages = self._opened(open_pages, cursor)
        self._has_ended = False
        self._next = cursor
        self.waiting: deque[Message] = deque()
        """Messages of the last page that were not handed out one by one."""
        self._turn = asyncio.Lock()
        self._coming: asyncio.Task[Page | None] | None = None
        self._saving: asyncio.Future[None] | None = None
        self.cursor = cursor
        """Continues after all messages whose processing is over: it moves when a page's last
        message has been handed out and the next one is asked for. Empty before the first page."""
        self.live = False
        """True if a follower has caught up with what the node holds."""
        self.coverage: AnswerCoverage | None = None
        """The coverage of a scan that asked for it, set when the scan has ended. After an outage in
        the middle it covers the time since then, from `AnswerCoverage.time_start` on."""

    async def __anext__(self) -> Message:
        while not self.waiting:
            if (page := await self.next_page()) is None:
                raise StopAsyncIteration
            self.waiting.extend(page.messages)
        return self.waiting.popleft()

    async def pages(self) -> AsyncGenerator[Page]:
        """Yield pages; `cursor` stands after a page when the next one is asked for."""
        try:
            while (page := await self.next_page()) is not None:
                yield page
        finally:
            await self.aclose()

    async def next_page(self) -> Page | None:
        """Return the next page, None at the end; `cursor` then stands after the page before.

        Calls take turns; one that is cancelled, as by a time limit, leaves its page to the next. A
        stream that was closed, or has failed, before its end raises `ClientClosedError`.
        """
        async with self._turn:
            if self._coming is None:
                self._coming = asyncio.ensure_future(self._turn_page())
                # A stream can be dropped, and its client closed, before the page comes or fails.
                self._coming.add_done_callback(lambda page: page.cancelled() or page.exception())
            coming = self._coming
            await asyncio.wait({coming})
            if self._coming is coming:
                self._coming = None
            page = None if coming.cancelled() else coming.result()
            if page is not None:
                self._next = page.cursor or self._next
                self.live, self.coverage = page.live, page.coverage
            elif not self._has_ended:
                raise ClientClosedError("The stream was closed before its end: open a new one.")
            return page

    async def ack(self) -> None:
        """Keep the position after the pages whose messages have all been handed out.

        Raises:
            PositionError: It cannot be written.
            ArgumentError: The stream has no position.
        """
        if self._position is None:
            raise ArgumentError("This stream keeps no position: open it with resume=.")
        await self._save(self.cursor if self.waiting else self._next)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.waiting:
                await self._finish_page()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the call."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
        await self._pages.aclose()

    async def _opened(
        self, open_pages: Callable[[bytes], AsyncGenerator[Page]], cursor: bytes
    ) -> AsyncGenerator[Page]:
        if self._position is not None and not cursor:
            saved = await asyncio.to_thread(self._position.load)
            cursor = saved or b""
            self.cursor = self._next = self._saved = cursor
        try:
            async with aclosing(open_pages(cursor)) as pages:
                async for page in pages:
                    yield page
            self._has_ended = True
        except (CursorRefusedError, InvalidRequestError) as error:
            if self._position is None or not cursor:
                raise
            sentence = f"{error.sentence} The position is kept in {self._position}."
            raise type(error)(error.code, sentence) from error

    async def _turn_page(self) -> Page | None:
        await self._finish_page()
        return await anext(self._pages, None)

    async def _finish_page(self) -> None:
        self.cursor = self._next
        if not self._acknowledges:
            await self._save(self.cursor)

    async def _save(self, cursor: bytes) -> None:
        while self._saving is not None and not self._saving.done():
            # Of a caller that was cancelled: the thread still writes.
            await asyncio.wait({self._saving})
        if self._position is not None and cursor and cursor != self._saved:
            self._saving = asyncio.ensure_future(asyncio.to_thread(self._position.save, cursor))
            await asyncio.wait({self._saving})
            self._saving.result()
            self._saved = cursor


async def up_to_live(pages: AsyncGenerator[Page]) -> AsyncGenerator[Page]:
    """Yield the pages of a follower up to the first one after which nothing waits."""
    async with aclosing(pages):
        async for page in pages:
            yield page
            if page.live:
                return


async def limited(pages: AsyncGenerator[Page], limit: int) -> AsyncGenerator[Page]:
    """Yield pages with ``limit`` messages in all; a last page that is cut has no cursor."""
    async with aclosing(pages):
        async for page in pages:
            if len(page.messages) > limit:
                yield Page(page.messages[:limit], None, page.live, page.coverage)
                return
            limit -= len(page.messages)
            yield page
            if limit == 0:
                return


async def followed_across(
    follow: Callable[[bytes], AsyncGenerator[Page]],
    scan: Callable[[int], AsyncGenerator[Page]],
    cursor: bytes,
    overlap_s: float,
) -> AsyncGenerator[Page]:
    """Follow, and when only nodes of another store are left, continue there by time.

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
        except CursorRefusedError:
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
    """Return a page of the messages that did not come before, and remember them."""
    fresh = []
    for message in messages:
        digest = message.hash if message.timestamp else b""  # has none: it cannot be recognised
        if digest not in known:
            fresh.append(message)
        if digest:
            known[digest] = None
    return Page(fresh, cursor, live)
