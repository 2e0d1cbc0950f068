"""Reads exact sizes and varints from what arrives in pieces."""

from __future__ import annotations

from typing import Protocol

from store.gateway.faults import Ended, Fault
from store.gateway.varints import decode_varint


class Pipe(Protocol):
    """Bytes both ways."""

    async def receive(self) -> bytes:
        """What has arrived, at least one byte; nothing at the end."""

    async def send(self, data: bytes) -> None:
        """Send, and wait while the other side does not read."""


class Reader:
    """Holds what was received and not asked for: at most what was asked for, and one piece."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._held = bytearray()

    async def exactly(self, size_bytes: int) -> bytes:
        """So many bytes.

        Raises:
            Ended: The other side has sent less.
        """
        while len(self._held) < size_bytes:
            await self._more()
        data = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        return data

    async def length(self, most_bytes: int) -> int:
        """The length that comes first of what is delimited.

        Raises:
            Fault: It is more than ``most_bytes``, or no varint.
            Ended: The other side has sent less.
        """
        while True:
            try:
                found = decode_varint(self._held, 0)
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
        del self._held[:end]
        return size_bytes

    async def delimited(self, most_bytes: int) -> bytes:
        """Bytes behind their length; raises as `length` does."""
        return await self.exactly(await self.length(most_bytes))

    async def any(self) -> bytes:
        """What has arrived; nothing at the end."""
        if self._held:
            data = bytes(self._held)
            self._held.clear()
            return data
        return await self._pipe.receive()

    async def _more(self) -> None:
        data = await self._pipe.receive()
        if not data:
            raise Ended
        self._held += data
