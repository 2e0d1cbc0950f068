"""mplex 6.7.0 as the side that accepts streams: the only multiplexer that js-waku speaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store.gateway.faults import Fault
from store.gateway.limits import MAX_FRAME_BYTES
from store.gateway.multiplexing import Aborted, Body, Event, Finished, Noted, Opened
from store.gateway.varints import decode_varint, delimited
from storenode.message.varint import varint

PROTOCOL: Final = "/mplex/6.7.0"

_OPEN, _MESSAGE, _CLOSE, _RESET = 0, 2, 4, 6
"""Of streams that the client opened, and sent by it; the answers' flags are one less."""

_MAX_NAME_BYTES: Final = 256
"""Of a stream that is opened; other frames without data have none."""


class Mplex:
    """Frames of one connection; of one that is not complete, only its head is held."""

    window_bytes: int | None = None

    def __init__(self) -> None:
        self._held = bytearray()
        self._body = Body()

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of what is complete now.

        Raises:
            Fault: A frame is none.
        """
        self._held += data
        at = 0
        try:
            while True:
                event, at = self._next(at)
                if event is None:
                    return
                yield event
        finally:
            del self._held[:at]

    def _next(self, at: int) -> tuple[Event | None, int]:
        return self._body.take(self._held, at) if self._body.missing else self._head(at)

    def _head(self, at: int) -> tuple[Event | None, int]:
        try:
            header = decode_varint(self._held, at)
            length = None if header is None else decode_varint(self._held, header[1])
        except ValueError as error:
            raise Fault("malformed", f"a frame of mplex is broken: {error}") from error
        if header is None or length is None:
            return None, at
        (stream, flag), (size, start) = divmod(header[0], 8), length
        if flag == _MESSAGE and size:
            if size > MAX_FRAME_BYTES:
                raise Fault("too_large", f"a frame of mplex has {size:,} bytes")
            self._body = Body(stream, size)
            return self._body.take(self._held, start)
        if size > _MAX_NAME_BYTES:
            raise Fault("too_large", f"the name of a stream has {size:,} bytes")
        if start + size > len(self._held):
            return None, at
        return _event(stream, flag), start + size

    def accepted(self, stream: int) -> bytes:  # noqa: ARG002 - as the protocol has it
        """Nothing: mplex has no such frame."""
        return b""

    def data(self, stream: int, data: bytes) -> bytes:
        """A frame with data."""
        return varint(stream << 3 | _MESSAGE - 1) + delimited(data)

    def credit(self, stream: int, size_bytes: int) -> bytes:  # noqa: ARG002
        """Nothing: mplex has no flow control."""
        return b""

    def finished(self, stream: int) -> bytes:
        """The end of what is sent."""
        return varint(stream << 3 | _CLOSE - 1) + b"\x00"

    def aborted(self, stream: int) -> bytes:
        """The end of both ways."""
        return varint(stream << 3 | _RESET - 1) + b"\x00"

    def goodbye(self) -> bytes:
        """Nothing: mplex has no such frame."""
        return b""


def _event(stream: int, flag: int) -> Event:
    if flag == _OPEN:
        return Opened(stream)
    if flag == _CLOSE:
        return Finished(stream)
    if flag == _RESET:
        return Aborted(stream)
    # An empty message, or a frame of a stream that the gateway opened, of which there are none.
    return Noted()
