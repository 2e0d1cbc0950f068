"""The interface of the networks that can carry a channel.

A `Transport` is where a channel can be reached; `open` gives a `Link` for one channel. A link has
a feed of what is published; if the transport stores messages, it can be scanned and queried too.
Participants verify what a link returns: one that returns invalid data loses its turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from storenode.common.backoff import Backoff
from storenode.common.errors import StorenodeError
from storenode.sds.codec import Entry
from storenode.sds.limits import FIRST_DELAY_S, MAX_DELAY_S


class TransportError(StorenodeError):
    """A link cannot serve, now or at all; ``sentence`` says why and what to do.

    ``final`` is the cause where another attempt cannot help, such as a wrong token.
    """

    def __init__(self, sentence: str, final: StorenodeError | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.final = final


class FeedCursorRefusedError(TransportError):
    """The feed cannot continue from this cursor: it is another store's, or too old."""


@dataclass(frozen=True, slots=True)
class Route:
    """The topics under which the messages of one channel are published."""

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
class PublishResult:
    """The result of publishing: stored under ``hint``, or refused for a ``reason``."""

    stored: bool
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
    """New messages; ``cursor`` continues after them, and ``live`` says that no more are waiting."""

    messages: Sequence[Fetched]
    cursor: bytes
    live: bool


class Link(Protocol):
    """A link to one channel at one transport. Every method may raise `TransportError`.

    Generators may be closed early, which ends the call. Methods with a body are inherited by links
    that have nothing better.
    """

    @property
    def name(self) -> str:
        """The name for users; cursors are stored under it."""

    async def publish(self, batch: Sequence[Outbound]) -> Sequence[PublishResult]:
        """Publish a batch, and return the results in its order when it is durable."""

    def follow(self, cursor: bytes) -> AsyncGenerator[FeedPage, None]:
        """Yield what is published after a cursor, or from now on; the first page at once.

        Raises:
            FeedCursorRefusedError: the cursor is not one that can be served.
        """

    def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield what is stored from a time on, in ascending order of time."""

    def by_hint(self, hints: Sequence[bytes]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield messages by their hints, 1,000 at most."""

    def by_id(self, entries: Sequence[Entry]) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield messages by their IDs, 1,000 at most."""

    def closure(
        self, heads: Sequence[Entry], known_ids: Sequence[str]
    ) -> AsyncGenerator[Sequence[Fetched], None]:
        """Yield heads (100 at most) and their causes, parents first, not past ``known_ids``."""

    async def close(self) -> None:
        """End all calls."""

    async def holds(self, hints: Sequence[bytes]) -> set[bytes]:
        """Return the hints of messages that are stored, of 1,000 at most."""
        stored: set[bytes] = set()
        async with aclosing(self.by_hint(hints)) as pages:
            async for page in pages:
                stored.update(each.hint for each in page)
        return stored


class Transport(Protocol):
    """A place that carries channels: a store node, or a bus in memory."""

    @property
    def name(self) -> str:
        """The name for users."""

    def open(self, route: Route) -> Link:
        """Make a link; it connects when it is used. Called inside the event loop."""


class Rotation:
    """A choice of one link until it fails, with a pause when all have failed in a row."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = links
        self._at = 0
        self._failures = 0
        self._backoff = Backoff(FIRST_DELAY_S, MAX_DELAY_S)

    @property
    def link(self) -> Link:
        """The link to use now."""
        return self._links[self._at]

    def worked(self) -> None:
        """Record a success of the link."""
        self._failures = 0
        self._backoff.reset()

    def failed(self) -> float:
        """Record a failure, turn to the next link, and return the pause in seconds."""
        self._failures += 1
        self._at = (self._at + 1) % len(self._links)
        return 0.0 if self._failures % len(self._links) else self._backoff.take()

    def in_turn(self) -> list[Link]:
        """Return all links, beginning with the one to use now."""
        return [*self._links[self._at :], *self._links[: self._at]]
