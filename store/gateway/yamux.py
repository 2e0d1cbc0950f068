"""yamux (version 0). The streams of the side that connected have odd numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from store.gateway.faults import RefusalError
from store.gateway.limits import MAX_FRAME_BYTES, WINDOW_BYTES
from store.gateway.multiplexing import Aborted, Body, Credit, Event, Finished, Noted, Opened, Pong

PROTOCOL: Final = "/yamux/1.0.0"

_HEADER: Final = struct.Struct(">BBHII")
_DATA, _WINDOW, _PING, _GO_AWAY = range(4)
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
_SESSION: Final = 0


class Yamux:
    """Frames of one connection; of one that is not complete, only its head is held."""

    window_bytes: int | None = WINDOW_BYTES

    def __init__(self, *, is_outbound: bool = False) -> None:
        self._buffer = bytearray()
        self._body = Body()
        self._ending: Event | None = None
        self._parity = int(is_outbound)
        self._opened = self._parity - 2 if is_outbound else 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events of what is complete now.

        Raises:
            RefusalError: A frame is none.
        """
        self._buffer += data
        at = 0
        try:
            while True:
                if self._body.missing:
                    received, at = self._body.take(self._buffer, at)
                    if received is None:
                        return
                    yield received
                elif self._ending is not None:
                    ending, self._ending = self._ending, None
                    yield ending
                elif len(self._buffer) - at >= _HEADER.size:
                    head = _HEADER.unpack_from(self._buffer, at)
                    at += _HEADER.size
                    yield from self._events(*head)
                else:
                    return
        finally:
            del self._buffer[:at]

    def _events(
        self, version: int, kind: int, flags: int, stream: int, length: int
    ) -> Iterator[Event]:
        """Yield the events of a head; its data and then the stream's end are to come."""
        if version != 0 or kind > _GO_AWAY:
            raise RefusalError("malformed", "a frame of yamux is of no known kind")
        if kind == _GO_AWAY:
            raise RefusalError("goodbye", "the client ends the connection")
        if kind == _PING:
            yield (Pong(self._frame(_PING, _ACK, _SESSION, length)) if flags & _SYN else Noted())
            return
        is_own = stream % 2 == self._parity
        if stream == _SESSION or (is_own and (flags & _SYN or stream > self._opened)):
            raise RefusalError("malformed", f"the client may not open the stream {stream}")
        if flags & _SYN:
            yield Opened(stream)
        yield Credit(stream, length) if kind == _WINDOW else Noted()
        if kind == _DATA:
            if length > MAX_FRAME_BYTES:
                raise RefusalError("too_large", f"a frame of yamux has {length:,} bytes")
            self._body = Body(stream, length)
        if flags & _RST:
            self._ending = Aborted(stream)
        elif flags & _FIN:
            self._ending = Finished(stream)

    def open(self) -> tuple[int, bytes]:
        """Return a new stream of the gateway, and the frame that opens it."""
        self._opened += 2
        return self._opened, self._frame(_WINDOW, _SYN, self._opened, 0)

    def accepted(self, stream: int) -> bytes:
        """Return the acknowledgement of a stream."""
        return self._frame(_WINDOW, _ACK, stream, 0)

    def data(self, stream: int, data: bytes) -> bytes:
        """Return a frame with data."""
        return self._frame(_DATA, 0, stream, len(data)) + data

    def credit(self, stream: int, size_bytes: int) -> bytes:
        """Return an update of the window."""
        return self._frame(_WINDOW, 0, stream, size_bytes)

    def finished(self, stream: int) -> bytes:
        """Return the frame that ends what the gateway sends."""
        return self._frame(_DATA, _FIN, stream, 0)

    def aborted(self, stream: int) -> bytes:
        """Return the frame that gives a stream up, both ways."""
        return self._frame(_WINDOW, _RST, stream, 0)

    def goodbye(self) -> bytes:
        """Return the frame that ends the connection, without an error."""
        return self._frame(_GO_AWAY, 0, _SESSION, 0)

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, length: int) -> bytes:
        return _HEADER.pack(0, kind, flags, stream, length)
