"""Server reflection (``grpc.reflection.v1alpha``), by which grpcurl learns the services."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

from store.rpc.call import BidiMethod, RpcCall
from store.serving.call import Call
from store.serving.failure import malformed

SERVICE: Final = reflection.SERVICE_NAME


class _Pool:
    """The pool of all schemas; unlike protobuf's own, it also finds the file of a method."""

    def __init__(self) -> None:
        self._pool: Any = Default()

    def FindFileContainingSymbol(self, symbol: str) -> FileDescriptor:  # noqa: N802 - protobuf's
        """Return the file that declares a symbol.

        Raises:
            KeyError: none does.
        """
        service, _, method = symbol.rpartition(".")
        try:
            found = self._pool.FindServiceByName(service)
        except KeyError:
            file: FileDescriptor = self._pool.FindFileContainingSymbol(symbol)
        else:
            file = found.methods_by_name[method].containing_service.file
        return file

    def __getattr__(self, name: str) -> object:
        found: object = getattr(self._pool, name)
        return found


def reflect(services: Collection[str]) -> BidiMethod:
    """Return the handler of ``ServerReflectionInfo`` of a listener that serves ``services``."""
    # The type stubs do not know of the servicer for asyncio.
    library: Any = reflection
    servicer = library.aio.ReflectionServicer(sorted(services), _Pool())

    async def info(rpc: RpcCall, call: Call) -> None:
        async for answer in servicer.ServerReflectionInfo(_requests(rpc, call), rpc.context):
            await rpc.send(answer.SerializeToString())

    return info


async def _requests(rpc: RpcCall, call: Call) -> AsyncGenerator[Any, None]:
    """Yield the requests, read where others are that need no token."""
    node, name = rpc.node, call.client.name
    while (
        request := await node.incomplete.read(rpc.context, name, node.open_requests)
    ) is not None:
        call.charge(len(request), counted=False)
        try:
            parsed = reflection_pb2.ServerReflectionRequest.FromString(request)
        except DecodeError:
            raise malformed("the request is no ServerReflectionRequest: send one") from None
        yield parsed
