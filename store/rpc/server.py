"""The methods of each listener.

`build_handlers` gives what a ``grpc.aio`` server is made with. ``client`` listeners serve all of
``Store``, ``peer`` listeners its reads, ``admin`` listeners ``Admin``. ``Peer`` is where peers may
call: on their own listener, or on that of the clients when they have none. Health and reflection
are everywhere. Methods of the contract that a node does not serve are UNIMPLEMENTED by gRPC itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from store.domain.access import Right
from store.domain.places import Caller
from store.domain.quota import CallKind
from store.rpc import admin, probes
from store.rpc.call import Handler, ListenerKind, RpcCall, RpcContext, ServedMethod
from store.rpc.gossip import serve_gossip
from store.rpc.listeners import Services
from store.rpc.publish_stream import publish_stream
from store.serving.call import Method
from store.serving.methods import publish, reads
from store.sync.peers import FrameStream
from storenode.message.limits import MAX_REQUEST_BYTES
from storenode.wire.storenode.v1 import admin_pb2, peer_pb2, store_pb2

STORE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
PEER: Final = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name

# The rights of peers are not in the token file: a client with any right is no peer.
_peer = partial(Method, right=Right.READ, kind=CallKind.STREAM, peers=True, peers_only=True)
RECONCILE: Final = _peer("Reconcile")
TRANSFER: Final = _peer("Transfer")
GOSSIP: Final = _peer("Gossip", endless=True)

_admin = partial(Method, right=Right.ADMIN, kind=CallKind.CALL)
GET_STATUS: Final = _admin("GetStatus", always=True)
WATCH_STATUS: Final = _admin("WatchStatus", always=True, endless=True)
SYNCHRONIZE: Final = _admin("Synchronize")
FETCH_MESSAGES: Final = _admin("FetchMessages", max_request_bytes=MAX_REQUEST_BYTES)

CHECK: Final = Method("Check", None, CallKind.CALL, always=True)
WATCH: Final = Method("Watch", None, CallKind.STREAM, always=True, endless=True)
REFLECTION: Final = Method("ServerReflectionInfo", None, CallKind.STREAM, always=True)


def build_handlers(listener: ListenerKind, node: RpcContext, port: int) -> Services:
    """Return the handlers of one listener.

    Requests and responses are bytes, so servers need no serializers. ``node`` is shared by all
    listeners of a node, but for who may call. ``port``: that of the listener.
    """
    on = partial(ServedMethod, listener, node, port)
    served: dict[str, list[Handler]] = {}
    if listener == "admin":
        served[ADMIN] = [
            on(GET_STATUS).unary(admin.get_status),
            on(WATCH_STATUS).unary(admin.watch_status),
            on(SYNCHRONIZE).unary(admin.synchronize),
            on(FETCH_MESSAGES).unary(admin.fetch_messages),
        ]
    else:
        served[STORE] = [on(reads.QUERY).unary(reads.query, reads.refuse_query)]
        served[STORE] += [on(method).stream(handle) for method, handle in reads.STREAMS.items()]
        if node.sessions is not None and node.peers is not None:
            served[PEER] = [
                on(RECONCILE).bidi(partial(_serve_frames, node.sessions.serve_reconcile)),
                on(TRANSFER).bidi(partial(_serve_frames, node.sessions.serve_transfer)),
                on(GOSSIP).bidi(serve_gossip),
            ]
    if listener == "client":
        served[STORE] += [
            on(publish.PUBLISH).unary(publish.publish),
            on(publish.PUBLISH_STREAM).bidi(publish_stream),
        ]
    names = frozenset({"", probes.HEALTH, *served})
    served[probes.HEALTH] = [
        on(CHECK).unary(partial(probes.check_health, names)),
        on(WATCH).stream(partial(probes.watch_health, names)),
    ]
    described = partial(probes.reflect, frozenset({*served, probes.REFLECTION}))
    served[probes.REFLECTION] = [on(REFLECTION).bidi(described)]
    return {service: dict(handlers) for service, handlers in served.items()}


async def _serve_frames(
    serve: Callable[[Caller, FrameStream], Awaitable[None]], call: RpcCall
) -> None:
    await serve(await call.begin_peer(), call)
