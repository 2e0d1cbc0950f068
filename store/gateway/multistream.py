"""Bytes both ways, read in exact sizes, and the negotiation of what they mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Final

from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import MAX_NEGOTIATION_BYTES, MAX_PROPOSALS
from store.gateway.wire import decode_varint, delimited

MULTISTREAM: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"


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
        """Return exactly that many bytes.

        Raises:
            StreamEndedError: The other side has sent less.
        """
        while len(self._received) < size_bytes:
            await self._receive_more()
        data = bytes(self._received[:size_bytes])
        del self._received[:size_bytes]
        return data

    async def length(self, most_bytes: int) -> int:
        """Return the length that comes first of what is delimited.

        Raises:
            RefusalError: It is more than ``most_bytes``, or no varint.
            StreamEndedError: The other side has sent less.
        """
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
        StreamEndedError: The client has gone.
    """
    if await _line(pipe) != MULTISTREAM:
        raise RefusalError("malformed", "the client does not begin with /multistream/1.0.0")
    await pipe.send(_message(MULTISTREAM))
    for _ in range(MAX_PROPOSALS):
        proposal = await _line(pipe)
        if proposal in protocols:
            await pipe.send(_message(proposal))
            return proposal
        await pipe.send(_message(_NOT_AVAILABLE))
    raise RefusalError("no_protocol", f"none of {MAX_PROPOSALS} proposed protocols is known")


async def propose(pipe: Pipe, protocol: str) -> None:
    """Propose a protocol as the side that opened the pipe, and wait for the agreement.

    Raises:
        RefusalError: The other side does not speak it, or answers with something else.
        StreamEndedError: The other side has gone.
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
    line = await pipe.delimited(MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise RefusalError("malformed", "a line of the negotiation has no end")
    return line[:-1].decode("utf-8", "replace")


def _message(text: str) -> bytes:
    return delimited(text.encode() + b"\n")
