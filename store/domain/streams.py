"""A stream of frames each way, as the two sides of a call between nodes see it.

What goes wrong in it is a `PeerFailed` on either side: the other one is gone, or ended the call.
``store.rpc`` implements these over gRPC.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from store.domain.ports import PeerAddress, PeerFailed


class CallFailed(PeerFailed):
    """A call ended with an error; one sentence for the operator.

    ``aborted``: the peer lets another session go first.
    """

    aborted = False


class NameLearned(CallFailed):
    """The callee gave a name for which its connection was not verified.

    The next call is made on one that is.
    """


class FrameStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `PeerFailed` when the call has failed.
    """

    @property
    def secure(self) -> bool:
        """Nobody else reads or changes the frames: TLS, and both sides have shown certificates."""

    async def read(self) -> bytes | None:
        """The next frame; None after the last."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side does not read."""

    async def half_close(self) -> None:
        """Say that this side sends no more; a callee says so by ending the call."""


class Named(Protocol):
    """Who answers a call."""

    @property
    def node_id(self) -> str:
        """The ID of the node."""

    @property
    def store_id(self) -> str:
        """The ID of its database."""


class CalleeStream(FrameStream, Protocol):
    """The stream of a call that this node made.

    A callee may give its names with its first answer only: frames can be sent before, and none is
    read before.
    """

    async def identify(self) -> Named:
        """Wait until the callee has said who it is.

        Raises:
            CallFailed: it does not say it in time, or is not who it should be.
        """


class Connector(Protocol):
    """Makes calls of peers."""

    def call(self, peer: PeerAddress, method: str) -> AbstractAsyncContextManager[CalleeStream]:
        """Begin a call with a stream each way; it is cancelled at the end if it still goes on.

        ``method`` is the full name, as in ``/storenode.v1.Peer/Reconcile``.

        Raises:
            CallFailed: as the methods of the stream do.
        """

    def node_id(self, peer: PeerAddress) -> str:
        """The ID that a peer gave when it last answered; until then the configured one, or ""."""
