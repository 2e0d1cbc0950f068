"""The connection below the encryption: a TCP stream, or a WebSocket on it, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import MAX_WEBSOCKET_FRAME_BYTES, READ_BYTES
from store.gateway.multistream import Pipe

_DATA: Final = (Opcode.BINARY, Opcode.CONT)


class TcpLink(Pipe):
    """Bytes of a TCP stream, or of TLS on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end."""
        return await self._reader.read(READ_BYTES)

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client does not read."""
        self._writer.write(data)
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Send as far as the buffers take it."""
        self._writer.write(data)

    def close(self) -> None:
        """Send nothing: TCP has no frame that closes it."""


class WebSocketLink(Pipe):
    """The binary messages of a WebSocket as a stream; how they are divided means nothing."""

    def __init__(self, below: TcpLink) -> None:
        super().__init__()
        self._below = below
        self._protocol = ServerProtocol(max_size=(None, MAX_WEBSOCKET_FRAME_BYTES))

    async def accept(self) -> None:
        """Accept the request that opens the WebSocket.

        Raises:
            StreamEndedError: The client has gone.
            RefusalError: It is no such request.
        """
        request = None
        while request is None:
            received = await self._below.receive()
            if not received:
                raise StreamEndedError
            events = await self._taken(received)
            request = next((each for each in events if isinstance(each, Request)), None)
            if self._protocol.close_expected():
                raise RefusalError("malformed", "the client sends no request for a WebSocket")
        self._protocol.send_response(self._protocol.accept(request))
        await self._flush()
        if self._protocol.state is not State.OPEN:
            raise RefusalError("malformed", "the client asks for something else than a WebSocket")

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end.

        Raises:
            RefusalError: The client breaks the protocol of WebSockets.
        """
        while True:
            data = _data(await self._taken(await self._below.receive()))
            if data:
                return data
            if self._protocol.state is not State.OPEN:
                return b""

    async def send(self, data: bytes) -> None:
        """Send as one message, and wait while the client does not read.

        Raises:
            StreamEndedError: The client has closed the WebSocket.
        """
        if self._protocol.state is not State.OPEN:
            raise StreamEndedError
        self._protocol.send_binary(data)
        await self._flush()

    def close(self) -> None:
        """Send the frame that closes it, as far as the buffers take it."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.GOING_AWAY)
            self._below.write(b"".join(self._protocol.data_to_send()))

    async def _taken(self, received: bytes) -> Iterable[object]:
        """Return the events of what was received; nothing is the end."""
        if received:
            self._protocol.receive_data(received)
        else:
            self._protocol.receive_eof()
        await self._flush()
        if self._protocol.parser_exc is not None and received:
            raise RefusalError("malformed", f"no WebSocket: {self._protocol.parser_exc}")
        return self._protocol.events_received()

    async def _flush(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            await self._below.send(data)


def _data(events: Iterable[object]) -> bytes:
    pieces = []
    for event in events:
        if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
            raise RefusalError("malformed", "the client sends text over a WebSocket")
        if isinstance(event, Frame) and event.opcode in _DATA:
            pieces.append(bytes(event.data))
    return b"".join(pieces)


Link = TcpLink | WebSocketLink
