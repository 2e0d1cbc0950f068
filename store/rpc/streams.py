"""A stream of frames each way, as the two sides of a call see it.

What goes wrong in it is a `PeerFailed` on either side: the other one is gone, or ended the call.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc

from store.domain.ports import PeerFailed
from store.rpc.call import CallerGone, Context, receive, send

_GONE = "the peer is gone"


class FrameStream(Protocol):
    """Frames to and from a peer; one reader and one writer at a time.

    Every method raises `PeerFailed` when the call has failed.
    """

    async def read(self) -> bytes | None:
        """The next frame; None after the last."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send a frame; waits while the other side does not read."""
        ...

    async def half_close(self) -> None:
        """Say that this side sends no more; a callee says so by ending the call."""
        ...


class CallerStream:
    """The stream of a call that this node serves."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next: bytes | None = None

    def put_back(self, frame: bytes) -> None:
        """Let a frame that was read be the next one that is read."""
        self._next = frame

    async def read(self) -> bytes | None:
        """The caller's next frame; None when it has half-closed."""
        if self._next is not None:
            frame, self._next = self._next, None
            return frame
        try:
            return await receive(self._context)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise PeerFailed(_GONE) from None

    async def write(self, frame: bytes) -> None:
        """Send a frame to the caller."""
        try:
            await send(self._context, frame)
        except CallerGone:
            raise PeerFailed(_GONE) from None

    async def half_close(self) -> None:
        """A callee ends the call by its status."""
