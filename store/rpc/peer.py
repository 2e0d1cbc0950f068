"""``Peer``, as this node serves it: hands calls to `store.sync.session.responder.Responder`."""

from __future__ import annotations

from store.domain.places import Caller
from store.rpc.call import Call, Context
from store.rpc.identity import NODE_ID, STORE_ID
from store.rpc.streams import CallerStream
from store.serving.remote import remote
from store.sync.session.exchange import Exchange
from store.sync.session.responder import Responder


class PeerService:
    """The handlers of the two methods; the calls have been let in, so their metadata are there."""

    def __init__(self, exchange: Exchange) -> None:
        self._responder = Responder(exchange)

    async def reconcile(self, call: Call, context: Context) -> None:
        """Answer ``Reconcile``."""
        await self._responder.reconcile(calling(call, context), _stream(call, context))

    async def transfer(self, call: Call, context: Context) -> None:
        """Answer ``Transfer``."""
        await self._responder.transfer(calling(call, context), _stream(call, context))


def calling(call: Call, context: Context) -> Caller:
    """The peer whose call has been let in."""
    told, rules = call.metadata.told, call.node.peers
    trusted = rules is not None and rules.trusted
    return Caller(told[NODE_ID], told[STORE_ID], remote(context.peer()).name, trusted)


def _stream(call: Call, context: Context) -> CallerStream:
    rules = call.node.peers
    return CallerStream(call, context, secure=rules is not None and rules.tls)
