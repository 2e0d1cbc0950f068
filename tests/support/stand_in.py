"""A node of this process whose calls one function handles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

Behaviour = Callable[[str, AsyncIterator[bytes], Any], AsyncIterator[bytes]]
"""Yields the answers to a call, of a method, its requests and its context."""


class Service(grpc.GenericRpcHandler):  # type: ignore[type-arg] # no generic when it runs
    """A service that counts its calls."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.calls = 0
        self._behaviour = behaviour

    def service(self, details: Any) -> Any:  # noqa: ANN401 - grpc's, untyped
        """Return the handler of a method."""
        method = details.method.rpartition("/")[2]

        async def handle(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401
            self.calls += 1
            async for answer in self._behaviour(method, requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(handle)


@asynccontextmanager
async def serving(behaviour: Behaviour | Service, tls: Any = None) -> AsyncIterator[str]:  # noqa: ANN401
    """Yield the address of a node that ends with the block."""
    service = behaviour if isinstance(behaviour, Service) else Service(behaviour)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
