"""A stream of frames each way, as the two sides of a call between nodes see it.

What goes wrong in it is a `PeerFailed` on either side: the other one is gone, or ended the call.
``store.rpc`` implements these over gRPC.
"""

from __future__ import annotations

from collections.abc import Callable
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


class Connector(Protocol):
    """Makes calls of peers."""

    def call(
        self, peer: PeerAddress, method: str, identified: Callable[[Named], None]
    ) -> AbstractAsyncContextManager[FrameStream]:
        """Begin a call with a stream each way; it is cancelled at the end if it still goes on.

        ``method`` is the full name, as in ``/storenode.v1.Peer/Reconcile``. ``identified`` is told
        who answers, before a frame is read: a callee may give its names with its first answer
        only, when frames have been sent.

        Raises:
            CallFailed: as the methods of the stream do; the callee does not say in time who it
                is, or is not who it should be.
        """

    def node_id(self, peer: PeerAddress) -> str:
        """The ID that a peer gave when it last answered; until then the configured one, or ""."""
