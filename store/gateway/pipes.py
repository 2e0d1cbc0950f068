"""Bytes both ways, read in exact sizes: TCP, or a WebSocket on it, and the negotiation on them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from store.domain.quota import Bucket
from store.gateway import limits
from store.gateway.clients import charge
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.wire import decode_varint, delimited

MULTISTREAM: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"
_DATA: Final = Opcode.BINARY, Opcode.CONT


class Pipe(ABC):
    """Bytes both ways: a TCP connection, the encryption on it, or a stream of it.

    What was received and not asked for is held: at most what was asked for, and one piece.
    """

    def __init__(self) -> None:
        self._received = bytearray()

    @abstractmethod
    async def receive(self) -> bytes:
        """Return the next piece, at least one byte; nothing at the end."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Send, and wait while the other side does not read."""

    async def exactly(self, size_bytes: int) -> bytes:
        """Return exactly that many bytes; raise StreamEndedError if there are less."""
        while len(self._received) < size_bytes:
            await self._receive_more()
        data = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return data

    async def length(self, most_bytes: int) -> int:
        """Return the length that comes first; raise RefusalError if it is too large."""
        while True:
            try:
                found = decode_varint(self._received, 0)
            except ValueError as error:
                raise RefusalError("malformed", str(error)) from error
            if found is not None:
                break
            await self._receive_more()
        size_bytes, end = found
        if size_bytes > most_bytes:
            raise RefusalError(
                "too_large", f"{size_bytes:,} bytes are more than the {most_bytes:,} allowed"
            )
        del self._received[:end]
        return size_bytes

    async def delimited(self, most_bytes: int) -> bytes:
        """Return bytes behind their length; raises as `length` does."""
        return await self.exactly(await self.length(most_bytes))

    async def any(self) -> bytes:
        """Return what has arrived; nothing at the end."""
        if self._received:
            data = bytes(self._received)
            self._received.clear()
            return data
        return await self.receive()

    async def _receive_more(self) -> None:
        piece = await self.receive()
        if not piece:
            raise StreamEndedError
        self._received += piece


async def negotiate(pipe: Pipe, protocols: Collection[str]) -> str:
    """Return the first proposal that is one of ``protocols``.

    Raises:
        RefusalError: It is no negotiation, or nothing that was proposed is known.
    """
    if await _line(pipe) != MULTISTREAM:
        raise RefusalError("malformed", "the client does not begin with /multistream/1.0.0")
    await pipe.send(_message(MULTISTREAM))
    for _ in range(limits.MAX_PROPOSALS):
        proposal = await _line(pipe)
        if proposal in protocols:
            await pipe.send(_message(proposal))
            return proposal
        await pipe.send(_message(_NOT_AVAILABLE))
    raise RefusalError("no_protocol", f"none of {limits.MAX_PROPOSALS} proposed protocols is known")


async def propose(pipe: Pipe, protocol: str) -> None:
    """Propose a protocol as the side that opened the pipe, and wait for the agreement.

    Raises:
        RefusalError: The other side does not speak it, or answers with something else.
    """
    await pipe.send(_message(MULTISTREAM) + _message(protocol))
    if await _line(pipe) != MULTISTREAM:
        raise RefusalError("malformed", "the client does not answer with /multistream/1.0.0")
    answer = await _line(pipe)
    if answer == _NOT_AVAILABLE:
        raise RefusalError("no_protocol", f"the client does not speak {protocol}")
    if answer != protocol:
        raise RefusalError("malformed", f"the client answers a proposal of {protocol} with another")


async def _line(pipe: Pipe) -> str:
    line = await pipe.delimited(limits.MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise RefusalError("malformed", "a line of the negotiation has no end")
    return line[:-1].decode("utf-8", "replace")


def _message(text: str) -> bytes:
    return delimited(text.encode() + b"\n")


class TcpLink(Pipe):
    """Bytes of a TCP stream, or of TLS on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end."""
        return await self._reader.read(limits.READ_BYTES)

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client does not read."""
        self._writer.write(data)
        await self._writer.drain()


class WebSocketLink(TcpLink):
    """The binary messages of a WebSocket as a stream; how they are divided means nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._empty_frames = Bucket(limits.FRAMES_PER_S, "frames of a WebSocket")
        self._protocol = ServerProtocol(max_size=(None, limits.MAX_WEBSOCKET_FRAME_BYTES))

    async def accept(self) -> None:
        """Accept the request that opens the WebSocket."""
        request = None
        while request is None:
            received = await super().receive()
            if not received:
                raise StreamEndedError
            events = await self._events(received)
            request = next((each for each in events if isinstance(each, Request)), None)
            if self._protocol.close_expected():
                raise RefusalError("malformed", "the client sends no request for a WebSocket")
        self._protocol.send_response(self._protocol.accept(request))
        await self._flush()
        if self._protocol.state is not State.OPEN:
            raise RefusalError("malformed", "the client asks for something else than a WebSocket")

    async def receive(self) -> bytes:
        """Return what has arrived; raise RefusalError if it breaks the protocol of WebSockets."""
        data = bytearray()
        while not data:
            for event in await self._events(await super().receive()):
                if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    raise RefusalError("malformed", "the client sends text over a WebSocket")
                found = event.data if isinstance(event, Frame) and event.opcode in _DATA else b""
                data += found
                if not found:
                    charge(self._empty_frames, time.monotonic_ns(), "flood")
            if self._protocol.state is not State.OPEN:
                break
        return bytes(data)

    async def send(self, data: bytes) -> None:
        """Send as one message; raise StreamEndedError if the client has closed the WebSocket."""
        if self._protocol.state is not State.OPEN:
            raise StreamEndedError
        self._protocol.send_binary(data)
        await self._flush()

    def close(self) -> None:
        """Send the frame that closes it, as far as the buffers take it."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.GOING_AWAY)
            self._writer.write(b"".join(self._protocol.data_to_send()))

    async def _events(self, received: bytes) -> Iterable[object]:
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
            await super().send(data)
