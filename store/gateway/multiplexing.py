"""The streams of one connection: frames of mplex and yamux, without a socket or a clock.

A stream is a number of the connection, which differs for streams of the client and of the gateway.
The data of a frame passes through as it arrives: of an incomplete frame only the head is held.

Source: mplex 6.7.0, the only multiplexer that js-waku speaks; yamux, version 0.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import IntEnum, auto
from typing import ClassVar, Final, NamedTuple

from store.gateway import limits
from store.gateway.faults import RefusalError
from store.gateway.wire import decode_varint, delimited
from storenode.message.varint import varint


class FrameType(IntEnum):
    """The meaning of a frame."""

    OPEN = auto()
    ACCEPT = auto()
    """A stream of the other side is accepted."""
    DATA = auto()
    CREDIT = auto()
    """``value`` more bytes are taken on a stream."""
    CLOSE = auto()
    """The sender sends no more on a stream."""
    RESET = auto()
    """The sender gives a stream up, both ways."""
    PING = auto()
    """The frame asks for a `PONG` with its ``value``."""
    PONG = auto()
    GOODBYE = auto()
    """The sender ends the connection."""


class Frame(NamedTuple):
    """A frame, or a piece of one with data; ``stream`` is 0 in one about the connection."""

    kind: FrameType
    stream: int = 0
    data: bytes = b""
    value: int = 0


class Multiplexer(ABC):
    """A frame format, and what was received of the next frame."""

    window_bytes: ClassVar[int | None] = None
    """The bytes that a stream sends before the first CREDIT; None without flow control."""

    def __init__(self, opened: int = 0, step: int = -1) -> None:
        """Number the streams that the gateway opens in steps after ``opened``."""
        self._opened = opened
        self._step = step
        self._buffer = bytearray()
        self._stream = 0
        self._missing_bytes = 0
        self._ending: Frame | None = None

    def decode(self, data: bytes) -> Iterator[Frame]:
        """Yield what is complete of the frames, at least once for each.

        Raises:
            RefusalError: The bytes are not a frame that the client may send.
        """
        self._buffer += data
        at = 0
        try:
            while True:
                if self._missing_bytes:
                    piece = bytes(self._buffer[at : at + self._missing_bytes])
                    if not piece:
                        return
                    at += len(piece)
                    self._missing_bytes -= len(piece)
                    yield Frame(FrameType.DATA, self._stream, piece)
                elif self._ending is not None:
                    ending, self._ending = self._ending, None
                    yield ending
                else:
                    start = at
                    at, frames = self._decode_head(at)
                    if at == start:
                        return
                    yield from frames
        finally:
            del self._buffer[:at]

    @abstractmethod
    def _decode_head(self, at: int) -> tuple[int, list[Frame]]:
        """Return where the head of a frame ends, or ``at``, and its frames before the data."""

    def _begin_data(self, stream: int, size_bytes: int) -> None:
        """Pass on the next ``size_bytes`` as data of a stream; raise RefusalError for too many."""
        if size_bytes > limits.MAX_FRAME_BYTES:
            raise RefusalError("too_large", f"a frame has {size_bytes:,} bytes")
        self._stream, self._missing_bytes = stream, size_bytes

    def new_stream(self) -> int:
        """Return the number of a stream that the gateway opens."""
        self._opened += self._step
        return self._opened

    @abstractmethod
    def encode(self, frame: Frame) -> bytes:
        """Encode a frame; empty if the format has no such frame."""


class Mplex(Multiplexer):
    """mplex: both sides number their streams independently; the gateway's ``n`` is ``~n`` here."""

    PROTOCOL: Final = "/mplex/6.7.0"

    _MESSAGE: Final = 2
    _FLAGS: Final = {
        FrameType.OPEN: 0,
        FrameType.DATA: _MESSAGE,
        FrameType.CLOSE: 4,
        FrameType.RESET: 6,
    }
    """Flags of the side that opened a stream; the other side's are one less."""

    _KINDS: Final = {flag: kind for kind, flag in _FLAGS.items()}
    _MAX_NAME_BYTES: Final = 256
    """The name of a stream that is opened; other frames without data have none."""

    def _decode_head(self, at: int) -> tuple[int, list[Frame]]:
        try:
            header = decode_varint(self._buffer, at)
            length = None if header is None else decode_varint(self._buffer, header[1])
        except ValueError as error:
            raise RefusalError("malformed", f"a frame of mplex is broken: {error}") from error
        if header is None or length is None:
            return at, []
        (number, flag), (size, end) = divmod(header[0], 8), length
        stream, flag = (~number, flag + 1) if flag % 2 else (number, flag)
        # A flag that does not exist has no consequences, as a frame without data has none.
        kind = self._KINDS.get(flag, FrameType.DATA)
        if flag == self._MESSAGE:
            self._begin_data(stream, size)
            return end, [Frame(kind, stream)]
        if size > self._MAX_NAME_BYTES:
            raise RefusalError("too_large", f"the name of a stream has {size:,} bytes")
        if end + size > len(self._buffer):
            return at, []
        return end + size, [Frame(kind, stream)]

    def encode(self, frame: Frame) -> bytes:
        """Encode a frame; empty if the format has no such frame."""
        flag = self._FLAGS.get(frame.kind)
        if flag is None:
            return b""
        is_own = frame.stream < 0
        head = varint(~frame.stream << 3 | flag if is_own else frame.stream << 3 | flag - 1)
        is_opening = frame.kind is FrameType.OPEN
        return head + delimited(b"%d" % ~frame.stream if is_opening else frame.data)


class Yamux(Multiplexer):
    """yamux: the streams of the side that connected have odd numbers."""

    PROTOCOL: Final = "/yamux/1.0.0"
    window_bytes: ClassVar[int | None] = limits.WINDOW_BYTES

    _HEADER: Final = struct.Struct(">BBHII")
    _DATA, _WINDOW, _PING, _GO_AWAY = range(4)
    _SYN, _ACK, _FIN, _RST = 1, 2, 4, 8
    _HEADS: Final = {
        FrameType.OPEN: (_WINDOW, _SYN),
        FrameType.ACCEPT: (_WINDOW, _ACK),
        FrameType.DATA: (_DATA, 0),
        FrameType.CREDIT: (_WINDOW, 0),
        FrameType.CLOSE: (_DATA, _FIN),
        FrameType.RESET: (_WINDOW, _RST),
        FrameType.PING: (_PING, _SYN),
        FrameType.PONG: (_PING, _ACK),
        FrameType.GOODBYE: (_GO_AWAY, 0),
    }

    def __init__(self, *, is_outbound: bool = False) -> None:
        super().__init__(-1 if is_outbound else 0, 2)
        self._parity = int(is_outbound)

    def _decode_head(self, at: int) -> tuple[int, list[Frame]]:
        if len(self._buffer) - at < self._HEADER.size:
            return at, []
        version, kind, flags, stream, length = self._HEADER.unpack_from(self._buffer, at)
        if version != 0 or kind > self._GO_AWAY:
            raise RefusalError("malformed", "a frame of yamux is of no known kind")
        if kind == self._GO_AWAY:
            raise RefusalError("goodbye", "the client ends the connection")
        at += self._HEADER.size
        if kind == self._PING:
            is_ping = flags & self._SYN
            return at, [Frame(FrameType.PING if is_ping else FrameType.PONG, value=length)]
        is_own = stream % 2 == self._parity
        if stream == 0 or (is_own and (flags & self._SYN or stream > self._opened)):
            raise RefusalError("malformed", f"the client may not open the stream {stream}")
        frames = [Frame(FrameType.OPEN, stream)] if flags & self._SYN else []
        if kind == self._WINDOW:
            frames.append(Frame(FrameType.CREDIT, stream, value=length))
        else:
            frames.append(Frame(FrameType.DATA, stream))
            self._begin_data(stream, length)
        if flags & (self._FIN | self._RST):
            is_reset = flags & self._RST
            self._ending = Frame(FrameType.RESET if is_reset else FrameType.CLOSE, stream)
        return at, frames

    def encode(self, frame: Frame) -> bytes:
        """Encode a frame."""
        kind, flags = self._HEADS[frame.kind]
        value = len(frame.data) or frame.value
        return self._HEADER.pack(0, kind, flags, frame.stream, value) + frame.data
