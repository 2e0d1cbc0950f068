"""The calls of peers, as the edge for peers and the simulator offer them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from store.domain.ports import HistoryEntry, PeerAddress


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """A page of a peer's scan of a time range: encoded ``WakuMessageAndTopic``, at least one.

    ``hashes`` are theirs as the peer names them. ``cursor`` continues after the page at this peer;
    empty: it gave none. ``reached_ns`` is the timestamp of the last message.
    """

    messages: list[bytes]
    hashes: list[bytes]
    cursor: bytes
    reached_ns: int


class FrameStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `PeerError` when the call has failed.
    """

    async def read(self) -> bytes | None:
        """Return the next frame; None after the last."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side does not read."""

    async def half_close(self) -> None:
        """End this side's direction; a callee does so by ending the call."""


class Connector(Protocol):
    """Makes calls of peers."""

    def call(
        self, peer: PeerAddress, method: str, identified: Callable[[str, str], None]
    ) -> AbstractAsyncContextManager[FrameStream]:
        """Begin a call with a stream each way; it is cancelled at the end if it still continues.

        ``method`` is the full name, as in ``/storenode.v1.Peer/Reconcile``. ``identified`` receives
        the IDs of the callee and its store before a frame is read: a callee may give them with its
        first answer only, when frames have been sent.

        Raises:
            CallFailedError: as the methods of the stream do; the callee does not say in time who it
                is, or is not who it should be.
        """

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID of a peer's last answer; until then the configured one, or ""."""


class PeerCaller(Connector, Protocol):
    """Calls peers, and reads what they hold."""

    def scan(
        self, peer: PeerAddress, start_ns: int, end_ns: int, cursor: bytes
    ) -> AsyncGenerator[ScannedPage, None]:
        """Yield what a peer holds of a time range.

        The call continues until the generator is closed. ``cursor`` is one that this peer has sent;
        an empty one begins at the start.

        Raises:
            PeerError: the call failed.
            CursorOutOfRangeError: the peer does not serve this cursor.
        """

    def lookup(
        self, peer: PeerAddress, channel_id: bytes, entries: Sequence[HistoryEntry]
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield what a peer holds of some SDS messages: pages of encoded ``WakuMessageAndTopic``.

        Raises:
            PeerError: the call failed, or the peer does not keep to its rules.
        """
