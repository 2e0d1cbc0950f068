"""The stream of a call of a peer that this node serves: `store.domain.streams.FrameStream`."""

from __future__ import annotations

import asyncio

import grpc

from store.domain.ports import PeerFailed
from store.rpc.call import Call, CallerGone, Context, send
from store.rpc.failure import RpcFailure

_GONE = "the peer is gone"


class CallerStream:
    """The stream of a call that this node serves."""

    def __init__(self, call: Call, context: Context, *, secure: bool = False) -> None:
        self.secure = secure
        self._call = call
        self._context = context

    async def read(self) -> bytes | None:
        """The caller's next frame; None when it has half-closed."""
        try:
            return await self._call.next_request(self._context)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise PeerFailed(_GONE) from None
        except RpcFailure as gave_way:
            raise PeerFailed(gave_way.sentence) from None

    async def write(self, frame: bytes) -> None:
        """Send a frame to the caller."""
        try:
            await send(self._context, frame)
        except CallerGone:
            raise PeerFailed(_GONE) from None

    async def half_close(self) -> None:
        """A callee ends the call by its status."""
