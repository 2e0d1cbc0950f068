"""Exact sizes and varints from what arrives in pieces, and the negotiation of protocols."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

from store.gateway.faults import Ended, Fault
from store.gateway.limits import MAX_NEGOTIATION_BYTES, MAX_PROPOSALS
from store.gateway.varints import decode_varint, delimited


class Pipe(Protocol):
    """Bytes both ways."""

    async def receive(self) -> bytes:
        """Return what has arrived, at least one byte; nothing at the end."""

    async def send(self, data: bytes) -> None:
        """Send, and wait while the other side does not read."""


class Reader:
    """Holds what was received and not asked for: at most what was asked for, and one piece."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._buffer = bytearray()

    async def exactly(self, size_bytes: int) -> bytes:
        """Return exactly that many bytes.

        Raises:
            Ended: The other side has sent less.
        """
        while len(self._buffer) < size_bytes:
            await self._more()
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    async def length(self, most_bytes: int) -> int:
        """Return the length that comes first of what is delimited.

        Raises:
            Fault: It is more than ``most_bytes``, or no varint.
            Ended: The other side has sent less.
        """
        while True:
            try:
                found = decode_varint(self._buffer, 0)
            except ValueError as error:
                raise Fault("malformed", str(error)) from error
            if found is not None:
                break
            await self._more()
        size_bytes, end = found
        if size_bytes > most_bytes:
            raise Fault(
                "too_large", f"{size_bytes:,} bytes are more than the {most_bytes:,} allowed"
            )
        del self._buffer[:end]
        return size_bytes

    async def delimited(self, most_bytes: int) -> bytes:
        """Return bytes behind their length; raises as `length` does."""
        return await self.exactly(await self.length(most_bytes))

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
            raise Ended
        self._buffer += data


MULTISTREAM: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"


async def negotiate(reader: Reader, pipe: Pipe, protocols: Collection[str]) -> str:
    """Return the first proposal that is one of ``protocols``.

    Raises:
        Fault: It is no negotiation, or nothing that was proposed is known.
        Ended: The client has gone.
    """
    if await _line(reader) != MULTISTREAM:
        raise Fault("malformed", "the client does not begin with /multistream/1.0.0")
    await pipe.send(_message(MULTISTREAM))
    for _ in range(MAX_PROPOSALS):
        proposal = await _line(reader)
        if proposal in protocols:
            await pipe.send(_message(proposal))
            return proposal
        await pipe.send(_message(_NOT_AVAILABLE))
    raise Fault("no_protocol", f"none of {MAX_PROPOSALS} proposed protocols is known")


async def propose(reader: Reader, pipe: Pipe, protocol: str) -> None:
    """Propose a protocol as the side that opened the pipe, and wait for the agreement.

    Raises:
        Fault: The other side does not speak it, or answers with something else.
        Ended: The other side has gone.
    """
    await pipe.send(_message(MULTISTREAM) + _message(protocol))
    if await _line(reader) != MULTISTREAM:
        raise Fault("malformed", "the client does not answer with /multistream/1.0.0")
    answer = await _line(reader)
    if answer == _NOT_AVAILABLE:
        raise Fault("no_protocol", f"the client does not speak {protocol}")
    if answer != protocol:
        raise Fault("malformed", f"the client answers a proposal of {protocol} with another")


async def _line(reader: Reader) -> str:
    line = await reader.delimited(MAX_NEGOTIATION_BYTES)
    if not line.endswith(b"\n"):
        raise Fault("malformed", "a line of the negotiation has no end")
    return line[:-1].decode("utf-8", "replace")


def _message(text: str) -> bytes:
    return delimited(text.encode() + b"\n")
