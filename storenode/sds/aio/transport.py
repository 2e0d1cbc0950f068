"""What a participant needs of whatever carries its channel.

A `Transport` is where a channel can be reached; `open` gives a `Link` for one channel. A link has
a feed of what is published, and may remember: then it can be scanned and asked. What a link gives
is judged by whoever receives it; a link that gives strange things loses its turn, nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from storenode.sds.codec import Entry


class TransportError(Exception):
    """A link cannot serve, now or at all; ``sentence`` says why and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class CursorRefused(TransportError):
    """The feed cannot go on from this cursor: it is another store's, or too old."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the messages of one channel are published."""

    channel_id: str
    pubsub_topic: str
    content_topic: str


@dataclass(frozen=True, slots=True)
class Outbound:
    """A message to publish. The same payload and time (nanoseconds) are the same message again."""

    payload: bytes
    timestamp_ns: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an `Outbound`: held under ``hint``, or refused for a ``reason``."""

    held: bool
    hint: bytes
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A message that a link gave.

    ``hint`` (32 bytes) is the hash of just these fields; empty for one that no node stores.
    """

    payload: bytes
    hint: bytes
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class FeedPage:
    """New messages; ``cursor`` goes on after them, and ``live`` says that no more are waiting."""

    messages: Sequence[Fetched]
    cursor: bytes
    live: bool


class Link(Protocol):
    """One channel at one transport. Every method may raise `TransportError`.

    Generators may be closed early, which ends the call.
    """

    @property
    def name(self) -> str:
        """What users know it by; cursors are kept under it."""

    def publish(
        self, batches: AsyncIterator[Sequence[Outbound]]
    ) -> AsyncGenerator[Sequence[Verdict], None]:
        """Publish batches as they come; verdicts on each batch, in order, when it is durable."""

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """What is published from a cursor on, or with none from now on; the first page at once.

        Raises:
            CursorRefused: the cursor is not one that can be served.
        """

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """What is remembered from a time on, in ascending order of time."""

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Messages by their hints, 1,000 at most."""

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Messages by their IDs, 1,000 at most."""

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Heads (100 at most) and what they depend on, parents first, not past ``known_ids``."""

    async def close(self) -> None:
        """End all calls."""


@runtime_checkable
class HoldingLink(Protocol):
    """A link that can be asked what it holds without fetching it."""

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Return the hints of messages that are held, of 1,000 at most.

        Raises:
            TransportError: the link cannot serve.
        """


class Transport(Protocol):
    """Where a channel can be reached: a store node, or a bus in memory."""

    @property
    def name(self) -> str:
        """What users know it by."""

    def open(self, route: Route) -> Link:
        """Make a link; it connects when it is used. Called inside the event loop."""
