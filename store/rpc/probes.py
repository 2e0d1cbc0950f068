"""Health and reflection, which every listener serves without a token.

``grpc.health.v1.Health`` is for probes; by ``grpc.reflection.v1alpha`` grpcurl learns the services.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from google.protobuf.descriptor_pool import Default
from grpc_health.v1 import health_pb2

from store.rpc.call import RpcCall, RpcContext
from store.serving.failure import CallError, Code
from store.serving.methods.decode import decode

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"


async def check_health(services: Collection[str], call: RpcCall, request: bytes) -> bytes:
    """Serve ``Check`` of a listener with these services, which share the state of the node.

    So does the empty name, which stands for the node.
    """
    if decode(health_pb2.HealthCheckRequest, request).service not in services:
        raise CallError(
            Code.NOT_FOUND,
            "there is no such service on this listener: reflection lists those that are",
        )
    return _status(call.node)


async def watch_health(
    services: Collection[str], call: RpcCall, request: bytes
) -> AsyncGenerator[bytes, None]:
    """Serve ``Watch``: the state now, and again whenever it changes."""
    node = call.node
    is_known = decode(health_pb2.HealthCheckRequest, request).service in services
    last, revision = b"", 0
    while True:
        revision = await node.health.await_revision(revision)
        status = _status(node) if is_known else _STATES["SERVICE_UNKNOWN"]
        if status != last:
            last = status
            yield status


_STATES: Final[dict[str, bytes]] = {
    name: health_pb2.HealthCheckResponse(status=name).SerializeToString()
    for name in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
}


def _status(node: RpcContext) -> bytes:
    return _STATES["SERVING" if node.health.ready else "NOT_SERVING"]


async def reflect(services: Collection[str], call: RpcCall) -> None:
    """Serve ``ServerReflectionInfo``, whose library the first call imports."""
    library = import_module("grpc_reflection.v1alpha.reflection")
    servicer = library.aio.ReflectionServicer(sorted(services))
    async for answer in servicer.ServerReflectionInfo(_requests(call), call.context):
        await call.send(answer.SerializeToString())


async def _requests(call: RpcCall) -> AsyncGenerator[Any, None]:
    """Yield the requests; one for a method, which protobuf finds no file of, as for its service."""
    kinds = import_module("grpc_reflection.v1alpha.reflection_pb2")
    while (request := await call.next_request(is_first=True)) is not None:
        call.charge_next(len(request))
        parsed = decode(kinds.ServerReflectionRequest, request)
        service, _, method = parsed.file_containing_symbol.rpartition(".")
        with suppress(KeyError):
            if method in Default().FindServiceByName(service).methods_by_name:
                parsed.file_containing_symbol = service
        yield parsed
