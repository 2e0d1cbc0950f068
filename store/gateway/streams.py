"""A stream of a connection, and the frames that wait to be sent on one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import (
    CHUNK_BYTES,
    MAX_STREAM_UNREAD_BYTES,
    MIN_CHUNK_BYTES,
    REQUEST_TIMEOUT_S,
    SEND_TIMEOUT_S,
)
from store.gateway.metrics import GatewayMetrics
from store.gateway.multiplexing import FrameType
from store.gateway.multistream import Pipe
from store.gateway.wire import delimited

if TYPE_CHECKING:
    from store.gateway.connection import WakuConnection

_MAX_WINDOW_BYTES: Final = 2**32 - 1


class Stream(Pipe):
    """A stream; its connection calls `feed`, `finish`, `fail` and `credit` for what it received."""

    def __init__(self, number: int, connection: WakuConnection) -> None:
        super().__init__()
        self.number = number
        self.connection = connection
        self.has_failed = False
        self._unread = bytearray()
        self._counted_bytes = 0
        self._finished = False
        self._window_bytes = connection.multiplexer.window_bytes
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Take in what has arrived.

        Raises:
            RefusalError: More is unread than the stream, or all of them, may hold.
        """
        if self._finished or self.has_failed:
            return
        if len(self._unread) + len(data) > MAX_STREAM_UNREAD_BYTES:
            raise RefusalError("too_large", "a client sends more on a stream than is asked for")
        self.connection.client.unread.take(len(data))
        self._counted_bytes += len(data)
        self._unread += data
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
        self.connection.client.unread.give(self._counted_bytes - len(self._unread))
        self._counted_bytes = len(self._unread)

    def discard(self) -> None:
        """Drop what was not read, and release all."""
        self._unread.clear()
        self.release()

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end.

        Raises:
            StreamEndedError: The client gave the stream up.
        """
        while not self._unread and not self._finished:
            await self._change()
        data = bytes(self._unread)
        self._unread.clear()
        if data and not self._finished:
            await self.connection.send(FrameType.CREDIT, self.number, value=len(data))
        return data

    async def request(self, most_bytes: int) -> bytes:
        """Return a delimited request.

        js-waku opens streams long before it uses them: there is no deadline for the first bytes.

        Raises:
            RefusalError: It is too large.
            StreamEndedError, TimeoutError: The other side has gone, or sends the rest too late.
        """
        size_bytes = await self.length(most_bytes)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            return await self.exactly(size_bytes)

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client does not read.

        A window smaller than a usual frame is not used until it has grown: a client that opens it
        byte by byte would cause a frame for each.

        Raises:
            StreamEndedError: The client gave the stream up.
        """
        at = 0
        while at < len(data):
            size = min(CHUNK_BYTES, len(data) - at)
            if self._window_bytes is not None:
                while self._window_bytes < min(size, MIN_CHUNK_BYTES):
                    await self._change()
                size = min(size, self._window_bytes)
                self._window_bytes -= size
            if self.has_failed:
                raise StreamEndedError
            await self.connection.send(FrameType.DATA, self.number, data[at : at + size])
            at += size

    async def send_delimited(self, data: bytes) -> None:
        """Send bytes behind their length.

        Raises:
            StreamEndedError: The client gave the stream up.
            TimeoutError: The client does not read.
        """
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.send(delimited(data))

    async def _change(self) -> None:
        if self.has_failed:
            raise StreamEndedError
        self._changed.clear()
        await self._changed.wait()


class SendQueue:
    """Frames for one client, on a stream that the gateway opens.

    Their bytes count as unsent bytes of its address.
    """

    def __init__(
        self, connection: WakuConnection, protocol: str, max_frames: int, metrics: GatewayMetrics
    ) -> None:
        self._connection = connection
        self._protocol = protocol
        self._max_frames = max_frames
        self._metrics = metrics
        self._frames: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Count the frames that wait."""
        return len(self._frames)

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if too many wait."""
        if len(self._frames) >= self._max_frames:
            return False
        try:
            self._connection.client.unsent.take(len(frame))
        except RefusalError:
            return False
        self._frames.append(frame)
        self._filled.set()
        return True

    def start(self, on_end: Callable[[], None]) -> None:
        """Send frames on one stream after the other, until the client takes none on one.

        A client that does not speak the protocol, or does not read, is counted as refused.
        ``on_end`` is called in the end, also after `stop`, and at the end of the connection.
        """
        self._sending = self._connection.start(self._run())

        def end(_sending: asyncio.Future[None]) -> None:
            while self._frames:
                self._drop_first()
            on_end()

        self._sending.add_done_callback(end)

    def stop(self) -> None:
        """Send no more; the frames that wait are dropped."""
        if self._sending is not None:
            self._sending.cancel()

    async def _run(self) -> None:
        try:
            while await self._send_on_one_stream():
                pass
        except RefusalError as fault:
            self._metrics.refused(fault.reason)
        except TimeoutError:
            self._metrics.refused("timeout")
        except OSError:
            pass

    async def _send_on_one_stream(self) -> bool:
        count = 0
        await self._filled.wait()
        try:
            async with self._connection.opened(self._protocol) as stream:
                while True:
                    await self._filled.wait()
                    async with asyncio.timeout(SEND_TIMEOUT_S):
                        await stream.send(self._frames[0])
                    self._drop_first()
                    count += 1
        except StreamEndedError:
            return count > 0

    def _drop_first(self) -> None:
        self._connection.client.unsent.give(len(self._frames.popleft()))
        if not self._frames:
            self._filled.clear()
