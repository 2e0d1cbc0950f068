"""Which listener serves which methods.

`build_handlers` gives what a ``grpc.aio`` server is made with. ``client`` listeners serve all of
``Store``, ``peer`` listeners its reads, ``admin`` listeners ``Admin``. ``Peer`` is where peers may
call: on their own listener, or on that of the clients when they have none. Health and reflection
are everywhere. What the contract names and a node does not serve is UNIMPLEMENTED by gRPC itself.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, TypeAlias

import grpc

from store.domain.access import Right
from store.domain.ports import Services
from store.domain.quota import CallKind
from store.rpc import health, reflection
from store.rpc.admin import fetch_messages, get_status, synchronize, watch_status
from store.rpc.call import ListenerKind, Wrapper
from store.rpc.context import RpcContext
from store.rpc.gossiping import GossipService
from store.rpc.grpc_server import ServiceHandler
from store.rpc.peer import PeerService
from store.rpc.publish import publish_stream
from store.serving.methods import table
from store.serving.methods.coverage import CoverageService
from store.serving.methods.publish import Publisher
from store.serving.methods.reads import Reads, refuse_query
from store.serving.methods.table import Method
from storenode.message.limits import MAX_REQUEST_BYTES
from storenode.wire.storenode.v1 import admin_pb2, peer_pb2, store_pb2

STORE: Final = store_pb2.DESCRIPTOR.services_by_name["Store"].full_name
PEER: Final = peer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name
ADMIN: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name

_Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"


def build_handlers(
    listener: ListenerKind, services: Services, context: RpcContext
) -> list[ServiceHandler]:
    """The handlers of one listener.

    Requests and responses are bytes, so servers need no serializers. Everything a call needs
    comes from ``services`` and ``context``; both are shared by all listeners of a node.
    """
    wrapper = Wrapper(listener, context)
    served: dict[str, _Handlers] = {}
    if listener == "admin":
        served[ADMIN] = _admin(wrapper)
    else:
        served[STORE] = _reads(wrapper, Reads(services))
        if context.coverage is not None:
            served[STORE] |= _coverage(wrapper, CoverageService(context.coverage))
        if context.sessions is not None and context.peers is not None:
            served[PEER] = _peer(wrapper, PeerService(context.sessions))
            served[PEER] |= _gossip(wrapper, GossipService(context.gossip))
    if listener == "client":
        served[STORE] |= _publishing(wrapper, Publisher(services))
    names = frozenset(served)
    served[health.SERVICE] = _health(wrapper, health.HealthService(context.health, names))
    served[reflection.SERVICE] = _reflection(
        wrapper, reflection.ReflectionService(names | {health.SERVICE, reflection.SERVICE})
    )
    return [ServiceHandler(service, handlers) for service, handlers in served.items()]


def _reads(wrapper: Wrapper, reads: Reads) -> _Handlers:
    return {
        table.QUERY.name: wrapper.unary(table.QUERY, reads.query, refuse_query),
        table.SCAN.name: wrapper.stream(table.SCAN, reads.scan),
        table.FOLLOW.name: wrapper.stream(table.FOLLOW, reads.follow),
        table.SDS_MESSAGES.name: wrapper.stream(table.SDS_MESSAGES, reads.sds_messages),
        table.CAUSAL_HISTORY.name: wrapper.stream(table.CAUSAL_HISTORY, reads.causal_history),
    }


def _coverage(wrapper: Wrapper, service: CoverageService) -> _Handlers:
    return {table.COVERAGE.name: wrapper.stream(table.COVERAGE, service.coverage)}


def _publishing(wrapper: Wrapper, publisher: Publisher) -> _Handlers:
    stream = table.PUBLISH_STREAM
    return {
        table.PUBLISH.name: wrapper.unary(table.PUBLISH, publisher.publish),
        stream.name: wrapper.bidi(stream, partial(publish_stream, publisher)),
    }


def _peer(wrapper: Wrapper, service: PeerService) -> _Handlers:
    # The rights of peers are not in the token file: a client with any right is no peer.
    reconcile = Method("Reconcile", Right.READ, CallKind.STREAM, peers=True, peers_only=True)
    transfer = Method("Transfer", Right.READ, CallKind.STREAM, peers=True, peers_only=True)
    return {
        reconcile.name: wrapper.bidi(reconcile, service.reconcile),
        transfer.name: wrapper.bidi(transfer, service.transfer),
    }


def _gossip(wrapper: Wrapper, service: GossipService) -> _Handlers:
    gossip = Method(
        "Gossip", Right.READ, CallKind.STREAM, peers=True, peers_only=True, endless=True
    )
    return {gossip.name: wrapper.bidi(gossip, service.gossip)}


def _admin(wrapper: Wrapper) -> _Handlers:
    status = Method("GetStatus", Right.ADMIN, CallKind.CALL, always=True)
    watch = Method("WatchStatus", Right.ADMIN, CallKind.CALL, always=True)
    session = Method("Synchronize", Right.ADMIN, CallKind.CALL)
    fetch = Method("FetchMessages", Right.ADMIN, CallKind.CALL, max_request_bytes=MAX_REQUEST_BYTES)
    return {
        status.name: wrapper.unary(status, get_status),
        watch.name: wrapper.unary(watch, watch_status),
        session.name: wrapper.unary(session, synchronize),
        fetch.name: wrapper.unary(fetch, fetch_messages),
    }


def _health(wrapper: Wrapper, service: health.HealthService) -> _Handlers:
    check = Method("Check", None, CallKind.CALL, always=True)
    watch = Method("Watch", None, CallKind.STREAM, always=True, endless=True)
    return {
        check.name: wrapper.unary(check, service.check),
        watch.name: wrapper.stream(watch, service.watch),
    }


def _reflection(wrapper: Wrapper, service: reflection.ReflectionService) -> _Handlers:
    info = Method("ServerReflectionInfo", None, CallKind.STREAM, always=True)
    return {info.name: wrapper.bidi(info, service.info)}
