"""A stream of a connection: received bytes, and the window of what may be sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from store.gateway.clients import ByteBudget
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import CHUNK_BYTES, MAX_STREAM_UNREAD_BYTES, MIN_CHUNK_BYTES
from store.gateway.wire import delimited

if TYPE_CHECKING:
    from store.gateway.connection import WakuConnection

_MAX_WINDOW_BYTES: Final = 2**32 - 1


class Stream:
    """A pipe; `feed`, `finish`, `fail` and `credit` say what its connection received."""

    def __init__(self, number: int, connection: WakuConnection, unread: ByteBudget) -> None:
        self.number = number
        self._connection = connection
        self._budget = unread
        self._pieces: list[bytes] = []
        self._unread_bytes = 0
        self._counted_bytes = 0
        self._finished = False
        self.has_failed = False
        self._window_bytes = connection.multiplexer.window_bytes
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Take in what has arrived.

        Raises:
            RefusalError: More is unread than the stream, or all of them, may hold.
        """
        if self._finished or self.has_failed:
            return
        if self._unread_bytes + len(data) > MAX_STREAM_UNREAD_BYTES:
            raise RefusalError("too_large", "a client sends more on a stream than is asked for")
        self._budget.take(len(data))
        self._counted_bytes += len(data)
        self._unread_bytes += len(data)
        self._pieces.append(data)
        self._changed.set()

    def finish(self) -> None:
        """Note that the client sends no more."""
        self._finished = True
        self._changed.set()

    def fail(self) -> None:
        """Note that the client gave the stream up."""
        self.has_failed = True
        self._changed.set()

    def credit(self, size_bytes: int) -> None:
        """Grow the window of what may be sent.

        Raises:
            RefusalError: It takes more than a window may be.
        """
        if self._window_bytes is not None:
            self._window_bytes += size_bytes
            if self._window_bytes > _MAX_WINDOW_BYTES:
                raise RefusalError("malformed", "the window of a stream is too large")
            self._changed.set()

    def release(self) -> None:
        """Return the budget of what was read: its reader needs it no longer."""
        self._budget.give(self._counted_bytes - self._unread_bytes)
        self._counted_bytes = self._unread_bytes

    def discard(self) -> None:
        """Drop what was not read, and release all."""
        self._take()
        self.release()

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end.

        Raises:
            StreamEndedError: The client gave the stream up.
        """
        while not self._pieces and not self._finished:
            await self._change()
        data = self._take()
        if data and not self._finished:
            update = self._connection.multiplexer.credit(self.number, len(data))
            if update:
                await self._connection.send(update)
        return data

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client does not read.

        A window smaller than a usual frame is not used until it has grown: a client that opens it
        byte by byte would cause a frame for each.

        Raises:
            StreamEndedError: The client gave the stream up.
        """
        multiplexer, at = self._connection.multiplexer, 0
        while at < len(data):
            size = min(CHUNK_BYTES, len(data) - at)
            if self._window_bytes is not None:
                while self._window_bytes < min(size, MIN_CHUNK_BYTES):
                    await self._change()
                size = min(size, self._window_bytes)
                self._window_bytes -= size
            if self.has_failed:
                raise StreamEndedError
            await self._connection.send(multiplexer.data(self.number, data[at : at + size]))
            at += size

    async def send_delimited(self, data: bytes, timeout_s: float) -> None:
        """Send bytes behind their length, within a time.

        Raises:
            StreamEndedError: The client gave the stream up.
            TimeoutError: The client does not read.
        """
        async with asyncio.timeout(timeout_s):
            await self.send(delimited(data))

    async def _change(self) -> None:
        if self.has_failed:
            raise StreamEndedError
        self._changed.clear()
        await self._changed.wait()

    def _take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._unread_bytes = 0
        return data
