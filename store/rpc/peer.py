"""``Peer``, as this node serves it: hands calls to `store.sync.session.responder.Responder`.

`CallerStream` is the stream of such a call: `store.domain.ports.FrameStream`.
"""

from __future__ import annotations

import asyncio

import grpc

from store.domain.places import Caller
from store.domain.ports import PeerFailed
from store.rpc.call import Call, CallerGone, Context, send
from store.rpc.identity import NODE_ID, STORE_ID
from store.serving.failure import CallFailure
from store.serving.remote import remote
from store.sync.session.exchange import Exchange
from store.sync.session.responder import Responder

_GONE = "the peer is gone"


class CallerStream:
    """The stream of a call that this node serves."""

    def __init__(self, call: Call, context: Context) -> None:
        self._call = call
        self._context = context

    async def read(self) -> bytes | None:
        """The caller's next frame; None when it has half-closed."""
        try:
            return await self._call.next_request(self._context)
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            raise PeerFailed(_GONE) from None
        except CallFailure as gave_way:
            raise PeerFailed(gave_way.sentence) from None

    async def write(self, frame: bytes) -> None:
        """Send a frame to the caller."""
        try:
            await send(self._context, frame)
        except CallerGone:
            raise PeerFailed(_GONE) from None

    async def half_close(self) -> None:
        """A callee ends the call by its status."""


class PeerService:
    """The handlers of the two methods; the calls have been let in, so their metadata are there."""

    def __init__(self, exchange: Exchange) -> None:
        self._responder = Responder(exchange)

    async def reconcile(self, call: Call, context: Context) -> None:
        """Answer ``Reconcile``."""
        await self._responder.reconcile(calling(call, context), CallerStream(call, context))

    async def transfer(self, call: Call, context: Context) -> None:
        """Answer ``Transfer``."""
        await self._responder.transfer(calling(call, context), CallerStream(call, context))


def calling(call: Call, context: Context) -> Caller:
    """The peer whose call has been let in."""
    told, rules = call.metadata.told, call.node.peers
    trusted = rules is not None and rules.trusted
    return Caller(told[NODE_ID], told[STORE_ID], remote(context.peer()).name, trusted)
