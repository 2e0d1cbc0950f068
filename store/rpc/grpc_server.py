"""A ``grpc.aio`` server that looks up methods in gRPC's core, by their bytes.

grpcio decodes the name of a method that is not registered in the loop that accepts calls: one
request whose path is no UTF-8 ends that loop, and all calls of the listener with it. Here every
method that is served is registered, and other calls end UNIMPLEMENTED without a look at their name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined] # compiled

_NOT_FOUND: Final = "this listener does not serve such a method: see its reflection service"


class ServiceHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg] # not generic when run
    """The handlers of the methods of one service; ``name`` is its full name."""

    def __init__(self, name: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        self.name = name
        self.methods = dict(methods)

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method by its path."""
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        return self.methods.get(method) if service == self.name else None


class _Server(cygrpc.AioServer):  # type: ignore[misc] # compiled, without types
    def _make_request_call_future(self, method: bytes | None) -> Any:  # noqa: ANN401
        if method is None:
            return asyncio.ensure_future(self._refuse_unknown_methods())
        return super()._make_request_call_future(method)

    async def _refuse_unknown_methods(self) -> None:
        """Refuse calls of methods that are not registered, until the server shuts down."""
        refusing: set[asyncio.Task[None]] = set()
        while True:
            call = await self._request_call()
            task = asyncio.ensure_future(_refuse(call))
            refusing.add(task)
            task.add_done_callback(refusing.discard)


async def _refuse(call: Any) -> None:  # noqa: ANN401 - a compiled class
    """End a call UNIMPLEMENTED; its caller may have dropped it meanwhile."""
    with suppress(cygrpc.ExecuteBatchError):
        # Nothing public answers a call without its name.
        await cygrpc._send_error_status_from_server(
            call,
            cygrpc.StatusCode.unimplemented,
            _NOT_FOUND,
            (),
            cygrpc.SendInitialMetadataOperation((), 0),
            asyncio.get_running_loop(),
        )


def make_server(
    handlers: Sequence[ServiceHandler], options: Sequence[tuple[str, int]]
) -> grpc.aio.Server:
    """Make a server of these services."""
    usual = cygrpc.AioServer
    cygrpc.AioServer = _Server
    try:
        server: Any = grpc.aio.server(options=options)  # its stubs are older
    finally:
        cygrpc.AioServer = usual
    for each in handlers:
        server.add_registered_method_handlers(each.name, each.methods)
    return cast("grpc.aio.Server", server)
