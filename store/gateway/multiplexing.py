"""The interface of both multiplexers: bytes in, events out, without a socket or a clock.

A stream is a number of the connection: each multiplexer chooses it so that streams of the
client and of the gateway differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Opened:
    """The client opened a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes of a stream."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The client will send no more on a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """The client gave a stream up, both ways."""

    stream: int


@dataclass(frozen=True, slots=True)
class Credit:
    """The client takes so many bytes more on a stream."""

    stream: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pong:
    """A frame that the multiplexer itself sends."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Noted:
    """A frame without consequences: it counts, and that is all."""


class Body:
    """The data of a frame, of which ``missing`` bytes have not come."""

    __slots__ = ("missing", "stream")

    def __init__(self, stream: int = 0, missing: int = 0) -> None:
        self.stream = stream
        self.missing = missing

    def take(self, buffered: bytearray, at: int) -> tuple[DataReceived | None, int]:
        """Return what is buffered of it from ``at`` on, or None, and where that ends."""
        end = min(at + self.missing, len(buffered))
        self.missing -= end - at
        return (DataReceived(self.stream, bytes(buffered[at:end])) if end > at else None), end


Event = Opened | DataReceived | Finished | Aborted | Credit | Pong | Noted


class Multiplexer(Protocol):
    """The streams of one connection, whichever side opened them."""

    window_bytes: int | None
    """What may be sent on a stream before the first `Credit`; None: there is no flow control."""

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events of what is complete now, at least one for each frame.

        Raises:
            Fault: A frame is none.
        """

    def open(self) -> tuple[int, bytes]:
        """Return a new stream of the gateway, and the frame that opens it."""

    def accepted(self, stream: int) -> bytes:  # noqa: ARG002
        """Return the frame that accepts a stream of the client; empty where there is none."""
        return b""

    def data(self, stream: int, data: bytes) -> bytes:
        """Return a frame with data."""

    def credit(self, stream: int, size_bytes: int) -> bytes:  # noqa: ARG002
        """Return the frame that lets the client send more; empty without flow control."""
        return b""

    def finished(self, stream: int) -> bytes:
        """Return the frame that ends what the gateway sends on a stream."""

    def aborted(self, stream: int) -> bytes:
        """Return the frame that gives a stream up, both ways."""

    def goodbye(self) -> bytes:
        """Return the frame that ends the connection; empty where there is none."""
        return b""
