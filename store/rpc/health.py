"""``grpc.health.v1.Health``: the service of probes, on every listener and without a token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from store.serving.failure import CallError, Code, malformed

SERVICE: Final = "grpc.health.v1.Health"


class Health:
    """The state of the node as probes see it, at first not serving.

    All services share it, and so does the empty name, which stands for the node.
    """

    def __init__(self) -> None:
        self.serving = False
        self._changed = asyncio.Event()

    def set_serving(self, *, serving: bool) -> None:
        """Set the state, and notify the calls that watch it."""
        if serving != self.serving:
            self.serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()


class HealthService:
    """The handlers of a listener that serves ``services``."""

    def __init__(self, health: Health, services: frozenset[str]) -> None:
        self._health = health
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
        last = b""
        while True:
            status = self._status(service)
            if status != last:
                last = status
                yield status
            # Looked at again first: it may have changed while the reader took its time.
            if self._status(service) == last:
                await self._health.changed()

    def _status(self, service: str) -> bytes:
        states = health_pb2.HealthCheckResponse
        status = states.SERVING if self._health.serving else states.NOT_SERVING
        if service not in self._services:
            status = states.SERVICE_UNKNOWN
        return bytes(states(status=status).SerializeToString())


def _service(request: bytes) -> str:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(request).service)
    except DecodeError:
        raise malformed("the request is no HealthCheckRequest: send one") from None
