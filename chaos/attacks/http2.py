"""An HTTP/2 client that sends what gRPC's own client never sends (RFC 9113).

Header fields are literals without indexing, so that no table is kept (RFC 7541, 6.2.2). What the
node answers is counted by frames, not decoded.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

Target = Mapping[str, str]
"""The addresses of a node by the names of its ready line, HOST:PORT."""

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW: Final = 4
_CANCEL: Final = struct.pack(">I", 8)
_FRAME_BYTES: Final = 16_384
_FIRST_WINDOW: Final = 65_535
_GREETING_S: Final = 2.0

MESSAGE_HEAD: Final = struct.Struct(">?I")
"""The head of a gRPC message: compressed or not, and its length."""


class Connection:
    """A connection on which an attack opens, feeds and resets streams.

    ``greeted``: the node has sent its settings. ``lost``: it has closed the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ended: set[int] = set()
        self.greeted = asyncio.Event()
        self.lost = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._next = 1
        self._first_window = _FIRST_WINDOW
        self._windows: Counter[int] = Counter({0: _FIRST_WINDOW})
        self._opened = asyncio.Event()
        writer.write(_PREFACE)
        self._frame(_SETTINGS, 0, 0, b"")

    @property
    def ended(self) -> int:
        """The number of streams that the node has ended."""
        return len(self._ended)

    def open(self, path: str, fields: Iterable[str] = ()) -> int:
        """Begin a call without sending a message, and return the number of its stream.

        ``fields``: further names and values of headers, in turn. A surrogate stands for a byte that
        is no UTF-8 (PEP 383).
        """
        stream, self._next = self._next, self._next + 2
        headers = [":method", "POST", ":scheme", "http", ":path", path, ":authority", "node"]
        headers += ["content-type", "application/grpc", "te", "trailers", *fields]
        block = bytearray()
        for number, text in enumerate(headers):
            if number % 2 == 0:
                block.append(0)
            data = text.encode(errors="surrogateescape")
            # A length of 127 or more continues in a second byte.
            block += bytes((len(data),)) if len(data) < 127 else bytes((127, len(data) - 127))
            block += data
        self._windows[stream] = self._first_window
        self._frame(_HEADERS, _END_HEADERS, stream, bytes(block))
        return stream

    def reset(self, stream: int) -> None:
        """Reset a call."""
        self._frame(_RESET, 0, stream, _CANCEL)

    def send(self, stream: int, data: bytes, *, last: bool = False) -> None:
        """Send a little data without waiting for room in the windows."""
        self._windows[0] -= len(data)
        self._windows[stream] -= len(data)
        self._frame(_DATA, _END_STREAM if last else 0, stream, data)

    async def send_zeros(self, stream: int, message_bytes: int, size: int) -> int:
        """Send ``size`` bytes of a message of zeros as the windows allow.

        Returns:
            The bytes sent until the node took no more for a second.
        """
        rest = MESSAGE_HEAD.pack(False, message_bytes)
        sent = -len(rest)
        while sent < size:
            part = min(size - sent, _FRAME_BYTES, self._windows[0], self._windows[stream])
            if part > 0 and part >= len(rest):
                self.send(stream, rest.ljust(part, b"\0"))
                await self._writer.drain()
                sent, rest = sent + part, b""
                continue
            self._opened.clear()
            try:
                await asyncio.wait_for(self._opened.wait(), 1.0)
            except TimeoutError:
                break
        return max(0, sent)

    def take(self, stream: int, size: int) -> None:
        """Let the node send more bytes of a stream."""
        for each in (0, stream):
            self._frame(_WINDOW, 0, each, size.to_bytes(4, "big"))

    async def drain(self) -> None:
        """Wait until the kernel has taken what was written."""
        with suppress(ConnectionError):
            await self._writer.drain()

    async def read(self) -> None:
        """Read what the node sends, until it closes the connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), body)
        self.lost.set()
        self.greeted.set()
        self._opened.set()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for identifier, value in struct.iter_unpack(">HI", body):
                if identifier == _INITIAL_WINDOW:
                    for each in self._windows.keys() - {0}:
                        self._windows[each] += value - self._first_window
                    self._first_window = value
            self._frame(_SETTINGS, _ACK, 0, b"")
            self.greeted.set()
        elif kind == _PING and not flags & _ACK:
            self._frame(_PING, _ACK, 0, body)
        elif kind == _WINDOW:
            self._windows[stream] += int.from_bytes(body, "big")
            self._opened.set()
        elif kind == _RESET or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
            self._ended.add(stream)

    def _frame(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if not self._writer.is_closing():
            head = len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
            self._writer.write(head + body)


@asynccontextmanager
async def connected(address: str, source: str | None = None) -> AsyncIterator[Connection]:
    """Connect to HOST:PORT in clear; ``source`` is the local address."""
    local = None if source is None else (source, 0)
    reader, writer = await asyncio.open_connection(*address.rsplit(":", 1), local_addr=local)
    connection = Connection(reader, writer)
    reading = asyncio.create_task(connection.read())
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(connection.greeted.wait(), _GREETING_S)
        yield connection
    finally:
        reading.cancel()
        writer.close()
