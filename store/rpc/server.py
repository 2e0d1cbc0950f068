"""The methods of each listener.

`build_handlers` gives what a ``grpc.aio`` server is made with. ``client`` listeners serve all of
``Store``, ``peer`` listeners its reads, ``admin`` listeners ``Admin``. ``Peer`` is where peers may
call: on their own listener, or on that of the clients when they have none. Health and reflection
are everywhere. Methods of the contract that a node does not serve are UNIMPLEMENTED by gRPC itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from store.domain.access import Right
from store.domain.ports import Services
from store.domain.quota import CallKind
from store.rpc import health, reflection
from store.rpc.admin import AdminService
from store.rpc.call import CallWrapper, ListenerKind
from store.rpc.context import RpcContext
from store.rpc.gossip import GossipService
from store.rpc.listeners import ServiceHandler
from store.rpc.peer import PeerService
from store.rpc.publish_stream import publish_stream
from store.serving.call import Method
from store.serving.methods import publish, reads
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
WATCH_STATUS: Final = _admin("WatchStatus", always=True)
SYNCHRONIZE: Final = _admin("Synchronize")
FETCH_MESSAGES: Final = _admin("FetchMessages", max_request_bytes=MAX_REQUEST_BYTES)

CHECK: Final = Method("Check", None, CallKind.CALL, always=True)
WATCH: Final = Method("Watch", None, CallKind.STREAM, always=True, endless=True)
REFLECTION: Final = Method("ServerReflectionInfo", None, CallKind.STREAM, always=True)

_Handlers: TypeAlias = "list[tuple[Method, grpc.RpcMethodHandler[Any, Any]]]"


def build_handlers(
    listener: ListenerKind, services: Services, context: RpcContext
) -> list[ServiceHandler]:
    """Return the handlers of one listener.

    Requests and responses are bytes, so servers need no serializers. ``services`` and ``context``
    are shared by all listeners of a node.
    """
    wrapper = CallWrapper(listener, context)
    served: dict[str, _Handlers] = {}
    if listener == "admin":
        admin = AdminService(context)
        served[ADMIN] = [
            (GET_STATUS, wrapper.unary(GET_STATUS, admin.get_status)),
            (WATCH_STATUS, wrapper.unary(WATCH_STATUS, admin.watch_status)),
            (SYNCHRONIZE, wrapper.unary(SYNCHRONIZE, admin.synchronize)),
            (FETCH_MESSAGES, wrapper.unary(FETCH_MESSAGES, admin.fetch_messages)),
        ]
    else:
        query = reads.ReadService(services).query
        served[STORE] = [
            (reads.QUERY, wrapper.unary(reads.QUERY, query, reads.refuse_query)),
            *(
                (method, wrapper.stream(method, handle))
                for method, handle in reads.stream_methods(services, context).items()
            ),
        ]
        if context.sessions is not None and context.peers is not None:
            peer, gossip = PeerService(context.sessions), GossipService(context.gossip)
            served[PEER] = [
                (RECONCILE, wrapper.bidi(RECONCILE, peer.reconcile)),
                (TRANSFER, wrapper.bidi(TRANSFER, peer.transfer)),
                (GOSSIP, wrapper.bidi(GOSSIP, gossip.gossip)),
            ]
    if listener == "client":
        publisher, stream = publish.PublishService(services), publish.PUBLISH_STREAM
        served[STORE] += [
            (publish.PUBLISH, wrapper.unary(publish.PUBLISH, publisher.publish)),
            (stream, wrapper.bidi(stream, partial(publish_stream, publisher))),
        ]
    names = frozenset(served)
    probes = health.HealthService(context, names)
    served[health.SERVICE] = [
        (CHECK, wrapper.unary(CHECK, probes.check)),
        (WATCH, wrapper.stream(WATCH, probes.watch)),
    ]
    described = reflection.ReflectionService(names | {health.SERVICE, reflection.SERVICE})
    served[reflection.SERVICE] = [(REFLECTION, wrapper.bidi(REFLECTION, described.info))]
    return [
        ServiceHandler(service, {method.name: handler for method, handler in handlers})
        for service, handlers in served.items()
    ]
