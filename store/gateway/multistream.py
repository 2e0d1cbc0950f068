"""Exact sizes and varints from what arrives in pieces, and the negotiation of protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import MAX_NEGOTIATION_BYTES, MAX_PROPOSALS, REQUEST_TIMEOUT_S
from store.gateway.wire import decode_varint, delimited


class Pipe(Protocol):
    """Bytes both ways."""

    async def receive(self) -> bytes:
        """Return what has arrived, at least one byte; nothing at the end."""

    async def send(self, data: bytes) -> None:
        """Send, and wait while the other side does not read."""


class ByteReader:
    """Holds what was received and not asked for: at most what was asked for, and one piece."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._buffer = bytearray()

    async def exactly(self, size_bytes: int) -> bytes:
        """Return exactly that many bytes.

        Raises:
            StreamEndedError: The other side has sent less.
        """
        while len(self._buffer) < size_bytes:
            await self._more()
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    async def length(self, most_bytes: int) -> int:
        """Return the length that comes first of what is delimited.

        Raises:
            RefusalError: It is more than ``most_bytes``, or no varint.
            StreamEndedError: The other side has sent less.
        """
        while True:
            try:
                found = decode_varint(self._buffer, 0)
            except ValueError as error:
                raise RefusalError("malformed", str(error)) from error
            if found is not None:
                break
            await self._more()
        size_bytes, end = found
        if size_bytes > most_bytes:
            raise RefusalError(
                "too_large", f"{size_bytes:,} bytes are more than the {most_bytes:,} allowed"
            )
        del self._buffer[:end]
        return size_bytes

    async def delimited(self, most_bytes: int) -> bytes:
        """Return bytes behind their length; raises as `length` does."""
        return await self.exactly(await self.length(most_bytes))

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

    async def any(self) -> bytes:
        """Return what has arrived; nothing at the end."""
        if self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        return await self._pipe.receive()

    async def _more(self) -> None:
        data = await self._pipe.receive()
        if not data:
            raise StreamEndedError
        self._buffer += data


MULTISTREAM: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"


async def negotiate(reader: ByteReader, pipe: Pipe, protocols: Collection[str]) -> str:
    """Return the first proposal that is one of ``protocols``.

    Raises:
        RefusalError: It is no negotiation, or nothing that was proposed is known.
        StreamEndedError: The client has gone.
    """
    if await _line(reader) != MULTISTREAM:
        raise RefusalError("malformed", "the client does not begin with /multistream/1.0.0")
    await pipe.send(_message(MULTISTREAM))
    for _ in range(MAX_PROPOSALS):
        proposal = await _line(reader)
        if proposal in protocols:
            await pipe.send(_message(proposal))
            return proposal
        await pipe.send(_message(_NOT_AVAILABLE))
    raise RefusalError("no_protocol", f"none of {MAX_PROPOSALS} proposed protocols is known")


async def propose(reader: ByteReader, pipe: Pipe, protocol: str) -> None:
    """Propose a protocol as the side that opened the pipe, and wait for the agreement.

    Raises:
        RefusalError: The other side does not speak it, or answers with something else.
        StreamEndedError: The other side has gone.
    """
    await pipe.send(_message(MULTISTREAM) + _message(protocol))
    if await _line(reader) != MULTISTREAM:
        raise RefusalError("malformed", "the client does not answer with /multistream/1.0.0")
    answer = await _line(reader)
    if answer == _NOT_AVAILABLE:
        raise RefusalError("no_protocol", f"the client does not speak {protocol}")
    if answer != protocol:
        raise RefusalError("malformed", f"the client answers a proposal of {protocol} with another")


async def _line(reader: ByteReader) -> str:
    line = await reader.delimited(MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise RefusalError("malformed", "a line of the negotiation has no end")
    return line[:-1].decode("utf-8", "replace")


def _message(text: str) -> bytes:
    return delimited(text.encode() + b"\n")
