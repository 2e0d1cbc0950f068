"""What the driver of gossip is given: the edges implement these protocols, and so does a simulator.

Methods of the database raise `store.domain.ports.StoreUnavailable` or `StoreBusy` while it does not
serve; to do again what was done does no harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from store.domain.hub import CommitRow
from store.domain.ports import PeerAddress
from store.domain.unread import Confirmed, OwnBatch, UnreadEvent
from store.gossip.events import Committed, Counted, FrameIn, FrameOut
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch

# Transport


class FrameStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `store.domain.ports.PeerFailed` when the stream has failed.
    """

    async def read(self) -> FrameIn | None:
        """The next frame, its messages judged; None after the last.

        Raises:
            FrameRejected: it cannot be read.
        """

    async def write(self, frame: FrameOut) -> None:
        """Send a frame; waits while the peer does not read."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A stream that this node began, and who answered."""

    stream: FrameStream
    node_id: str
    store_id: str


class Connector(Protocol):
    """Begins streams with peers."""

    def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[FrameOut]]
    ) -> AbstractAsyncContextManager[Connection]:
        """A stream with a peer, which is ended on the way out.

        ``greeting`` makes a frame for a peer that says who it is in its first answer only.

        Raises:
            PeerFailed: it cannot be reached (`PeerRefused`, `PeerHasStream`: it will not).
        """

    def node_id(self, peer: PeerAddress) -> str:
        """The ID that a peer gave when it last answered, or the configured one; "": unknown."""


# Database


class Messages(Protocol):
    """The messages of the database."""

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """The first of these, encoded, in order, up to ``max_bytes`` but at least one.

        None stands for a message that is not held.
        """

    async def held(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the content digest of each message; None: it is not held."""

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """What some commits have added, as far as it is held."""

    async def newest(self, limit: int) -> Committed:
        """The newest messages, oldest first."""

    def cache(self, batch: RecordBatch, places: Sequence[int], size_bytes: int) -> None:
        """Keep some messages of a batch in memory: peers will ask for them."""


class Tracking(Protocol):
    """What this node knows of its own transactions."""

    def wake(self) -> None:
        """Keep batches from now on until their commit is reported."""

    def rest(self) -> None:
        """Keep none any more."""

    def take(self, token: int) -> OwnBatch | None:
        """The batch of a commit that is reported; None: another node's, or it was not kept."""

    def is_tracked(self, digest: bytes) -> bool:
        """True for a message that became unread for certain."""

    def remember(self, hashes: Iterable[bytes]) -> None:
        """These are unread."""

    def forget(self, hashes: Iterable[bytes]) -> None:
        """As many stores have confirmed these as anybody wants."""


class UnreadTable(Protocol):
    """The unread events that nodes on one database share."""

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """The newest, at most ``limit``; those that have expired are none."""

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Those of some messages that are unread or have expired, in any order."""

    async def is_shared(self) -> bool:
        """Does another node work on the database, whose peers may confirm too?"""

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations; those of messages that are not unread change nothing."""

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Wait for confirmations of these no more, though they have not come."""

    async def wait_for(self, parents: Mapping[bytes, Sequence[bytes]]) -> None:
        """Note which parents are missing, by the hash of the event that waits."""

    async def sweep(self) -> object:
        """Delete what expired long ago."""


@dataclass(frozen=True, slots=True)
class DriverDatabase:
    """``persist`` stores a batch that a peer (its node ID) has sent."""

    messages: Messages
    tracking: Tracking
    unread: UnreadTable
    persist: Callable[[RecordBatch, str], Awaitable[StoreResult]]


# Metrics


class Meter(Protocol):
    """Counts for the metrics."""

    def count(self, counted: Counted) -> None:
        """Something happened so many times."""

    def body_bytes(self, direction: str, count: int) -> None:
        """Bytes of messages were ``sent`` or ``received``."""
