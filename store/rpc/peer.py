"""``Peer``, as this node serves it: hands calls to `store.sync.session.exchange`."""

from __future__ import annotations

import asyncio

import grpc

from store.domain.places import Caller
from store.domain.ports import PeerFailed
from store.rpc.call import RpcCall
from store.rpc.identity import NODE_ID, STORE_ID
from store.serving.failure import CallerGoneError, CallError

_GONE = "the peer is gone"


class CallerStream:
    """The stream of a call that this node serves: `store.domain.ports.FrameStream`."""

    def __init__(self, call: RpcCall) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        """Return the caller's next frame; None when it has half-closed."""
        try:
            return await self._call.next_request()
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise PeerFailed(_GONE) from None
        except CallError as gave_way:
            raise PeerFailed(gave_way.sentence) from None

    async def write(self, frame: bytes) -> None:
        """Send a frame to the caller."""
        try:
            await self._call.send(frame)
        except CallerGoneError:
            raise PeerFailed(_GONE) from None

    async def half_close(self) -> None:
        """Leave the end to the status of the call, since this side is the callee."""


def calling_peer(call: RpcCall) -> Caller:
    """Return the peer whose call has been admitted."""
    fields, rules = call.fields, call.node.peers
    trusted = rules is not None and rules.trusted
    return Caller(fields[NODE_ID], fields[STORE_ID], call.remote.name, trusted)
