"""``grpc.health.v1.Health``: the service of probes, on every listener and without a token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from store.rpc.context import RpcContext
from store.serving.failure import CallError, Code, malformed

SERVICE: Final = "grpc.health.v1.Health"


class HealthService:
    """The handlers of a listener that serves ``services``, which share the state of the node.

    So does the empty name, which stands for the node.
    """

    def __init__(self, node: RpcContext, services: frozenset[str]) -> None:
        self._node = node
        self._services = services | {"", SERVICE}

    async def check(self, _call: object, request: bytes) -> bytes:
        """Serve ``Check``."""
        service = _service(request)
        if service not in self._services:
            raise CallError(
                Code.NOT_FOUND,
                "there is no such service on this listener: reflection lists those that are",
            )
        return self._status(service)

    async def watch(self, _call: object, request: bytes) -> AsyncGenerator[bytes, None]:
        """Serve ``Watch``: the state now, and again whenever it changes."""
        service = _service(request)
        last, revision = b"", 0
        while True:
            revision = await self._node.await_revision(revision)
            status = self._status(service)
            if status != last:
                last = status
                yield status

    def _status(self, service: str) -> bytes:
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if self._node.health().ready else states.NOT_SERVING
        if service not in self._services:
            status = states.SERVICE_UNKNOWN
        return bytes(states(status=status).SerializeToString())


def _service(request: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(request).service)
    except DecodeError:
        raise malformed("the request is no HealthCheckRequest: send one") from None
