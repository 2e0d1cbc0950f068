"""mplex 6.7.0, the only multiplexer that js-waku speaks.

Both sides number their streams independently. A stream that the gateway opened has the number
``~n`` here, where ``n`` is its number on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from store.gateway.faults import RefusalError
from store.gateway.limits import MAX_FRAME_BYTES
from store.gateway.multiplexing import Aborted, Body, Event, Finished, Multiplexer, Noted, Opened
from store.gateway.wire import decode_varint, delimited
from storenode.message.varint import varint

PROTOCOL: Final = "/mplex/6.7.0"

_OPEN, _MESSAGE, _CLOSE, _RESET = 0, 2, 4, 6
"""Flags of the side that opened a stream; those of the other side are one less."""

_MAX_NAME_BYTES: Final = 256
"""Of a stream that is opened; other frames without data have none."""


class Mplex(Multiplexer):
    """Frames of one connection without flow control; of an incomplete one only its head is held."""

    window_bytes: int | None = None

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._body = Body()
        self._opened = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events of what is complete now.

        Raises:
            RefusalError: A frame is none.
        """
        self._buffer += data
        at = 0
        try:
            while True:
                event, at = self._next(at)
                if event is None:
                    return
                yield event
        finally:
            del self._buffer[:at]

    def _next(self, at: int) -> tuple[Event | None, int]:
        return self._body.take(self._buffer, at) if self._body.missing else self._head(at)

    def _head(self, at: int) -> tuple[Event | None, int]:
        try:
            header = decode_varint(self._buffer, at)
            length = None if header is None else decode_varint(self._buffer, header[1])
        except ValueError as error:
            raise RefusalError("malformed", f"a frame of mplex is broken: {error}") from error
        if header is None or length is None:
            return None, at
        (number, flag), (size, start) = divmod(header[0], 8), length
        stream, flag = (~number, flag + 1) if flag % 2 else (number, flag)
        if flag == _MESSAGE and size:
            if size > MAX_FRAME_BYTES:
                raise RefusalError("too_large", f"a frame of mplex has {size:,} bytes")
            self._body = Body(stream, size)
            return self._body.take(self._buffer, start)
        if size > _MAX_NAME_BYTES:
            raise RefusalError("too_large", f"the name of a stream has {size:,} bytes")
        if start + size > len(self._buffer):
            return None, at
        return _event(stream, flag), start + size

    def open(self) -> tuple[int, bytes]:
        """Return a new stream of the gateway, and the frame that opens it."""
        number, self._opened = self._opened, self._opened + 1
        return ~number, varint(number << 3 | _OPEN) + delimited(b"%d" % number)

    def data(self, stream: int, data: bytes) -> bytes:
        """Return a frame with data."""
        return _header(stream, _MESSAGE) + delimited(data)

    def finished(self, stream: int) -> bytes:
        """Return the frame that ends what the gateway sends."""
        return _header(stream, _CLOSE) + b"\x00"

    def aborted(self, stream: int) -> bytes:
        """Return the frame that gives a stream up, both ways."""
        return _header(stream, _RESET) + b"\x00"


def _header(stream: int, flag: int) -> bytes:
    return varint(~stream << 3 | flag) if stream < 0 else varint(stream << 3 | flag - 1)


def _event(stream: int, flag: int) -> Event:
    if flag == _OPEN:
        return Opened(stream)
    if flag == _CLOSE:
        return Finished(stream)
    if flag == _RESET:
        return Aborted(stream)
    return Noted()  # an empty message, or a flag that does not exist
