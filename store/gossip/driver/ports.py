"""The protocols behind the driver of gossip, which the edges and the simulator implement.

Methods of the database raise `NotServingError` while it does not serve;
to do again what was done does no harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from store.domain.hub import CommitRow, OwnCommits
from store.domain.ports import PeerAddress
from store.domain.unread import Confirmed, UnreadEvent
from store.gossip.events import Committed, FrameIn
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from storenode.common.bounded_dict import BoundedDict
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame

# Transport


class GossipStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `store.domain.ports.PeerError` when the stream has failed.
    """

    async def read(self) -> FrameIn | None:
        """Return the next frame, its messages admitted or refused; None after the last.

        Raises:
            FrameRejectedError: it cannot be read.
        """

    async def write(self, frame: RawGossipFrame) -> None:
        """Send a frame; waits while the peer does not read."""


@dataclass(frozen=True, slots=True)
class GossipConnection:
    """A stream that this node began, and who answered."""

    stream: GossipStream
    node_id: str
    store_id: str


class GossipConnector(Protocol):
    """Begins streams with peers."""

    def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[RawGossipFrame]]
    ) -> AbstractAsyncContextManager[GossipConnection]:
        """Open a stream with a peer; it is closed on exit.

        ``greeting`` makes a frame for a peer that says who it is in its first answer only.

        Raises:
            PeerError: it cannot be reached, or refuses (`PeerRefusedError`,
                `PeerHasStreamError`).
        """

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that a peer last answered with, or the configured one; "": unknown."""


# Database


class Messages(Protocol):
    """The messages of the database."""

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Return the first of these, encoded, in order, up to ``max_bytes`` but at least one.

        None stands for a message that is not held.
        """

    async def content_digests(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the content digest of each message; None: it is not stored."""

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Return the messages that some commits have added, as far as they are still stored."""

    async def newest(self, limit: int) -> Committed:
        """Return the newest messages, oldest first."""


class UnreadTable(Protocol):
    """The unread events that nodes on one database share."""

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """Return the newest, at most ``limit``, without those that have expired."""

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Return the rows of some messages, unread or expired, in any order."""

    async def is_shared(self) -> bool:
        """Return True if another node shares this database."""

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations; those of messages that are not unread change nothing."""

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Wait for confirmations of these no more, though they have not come."""


@dataclass(frozen=True, slots=True)
class DriverDatabase:
    """The database of a driver.

    ``unread_hashes``: the newest messages that certainly have an unread row. ``persist`` stores a
    batch that a peer has sent.
    """

    messages: Messages
    own: OwnCommits
    unread_hashes: BoundedDict[bytes, None]
    unread: UnreadTable
    persist: Callable[[RecordBatch], Awaitable[StoreResult]]
