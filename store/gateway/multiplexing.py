"""What both multiplexers have in common: bytes in, events out, without a socket or a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Opened:
    """The client opened a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Received:
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
class Answer:
    """What the multiplexer itself has to send."""

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

    def take(self, held: bytearray, at: int) -> tuple[Received | None, int]:
        """What is held of it from ``at`` on, None where that is nothing, and where it ends."""
        end = min(at + self.missing, len(held))
        self.missing -= end - at
        return (Received(self.stream, bytes(held[at:end])) if end > at else None), end


Event = Opened | Received | Finished | Aborted | Credit | Answer | Noted


class Multiplexer(Protocol):
    """Streams that the client opens; the gateway opens none."""

    window_bytes: int | None
    """What may be sent on a stream before the first `Credit`; None: there is no flow control."""

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of what is complete now, at least one for each frame.

        Raises:
            Fault: A frame is none.
        """

    def accepted(self, stream: int) -> bytes:
        """The frame that says that a stream is accepted; empty where there is none."""

    def data(self, stream: int, data: bytes) -> bytes:
        """A frame with data."""

    def credit(self, stream: int, size_bytes: int) -> bytes:
        """The frame that lets the client send more; empty where there is no flow control."""

    def finished(self, stream: int) -> bytes:
        """The frame that says that the gateway sends no more on a stream."""

    def aborted(self, stream: int) -> bytes:
        """The frame that gives a stream up, both ways."""

    def goodbye(self) -> bytes:
        """The frame that ends the connection; empty where there is none."""
