"""``grpc.health.v1.Health``: the service of probes, on every listener and without a token."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from store.rpc.context import RpcContext
from store.serving.failure import CallError, Code, malformed

SERVICE: Final = "grpc.health.v1.Health"


async def check(
    node: RpcContext, services: Collection[str], _call: object, request: bytes
) -> bytes:
    """Serve ``Check`` of a listener with these services, which share the state of the node.

    So does the empty name, which stands for the node.
    """
    service = _service(request)
    if service not in services:
        raise CallError(
            Code.NOT_FOUND,
            "there is no such service on this listener: reflection lists those that are",
        )
    return _status(node, is_known=True)


async def watch(
    node: RpcContext, services: Collection[str], _call: object, request: bytes
) -> AsyncGenerator[bytes, None]:
    """Serve ``Watch``: the state now, and again whenever it changes."""
    is_known = _service(request) in services
    last, revision = b"", 0
    while True:
        revision = await node.await_revision(revision)
        status = _status(node, is_known=is_known)
        if status != last:
            last = status
            yield status


def _status(node: RpcContext, *, is_known: bool) -> bytes:
    states = health_pb2.HealthCheckResponse
    status = states.SERVING if node.health().ready else states.NOT_SERVING
    if not is_known:
        status = states.SERVICE_UNKNOWN
    return bytes(states(status=status).SerializeToString())


def _service(request: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(request).service)
    except DecodeError:
        raise malformed("the request is no HealthCheckRequest: send one") from None
