"""A call that gRPC ends before a node takes it up, as it does when too many wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from storenode.client.node import connect
from storenode.client.retry import Retry
from storenode.connection.errors import ConnectionLost
from storenode.wire.storenode.v1.store_pb2 import PublishResponse

HASTY = Retry(attempts=3, first_delay_s=0.01, max_delay_s=0.01)


class Dropping:
    """A service that ends its first calls as gRPC itself would."""

    def __init__(self, times: int) -> None:
        self.calls = 0
        self._times = times

    async def publish(self, _request: bytes, context: Any) -> bytes:  # noqa: ANN401
        """Answer once enough calls have been dropped."""
        self.calls += 1
        if self.calls <= self._times:
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        return bytes(PublishResponse().SerializeToString())


@asynccontextmanager
async def serving(service: Dropping) -> AsyncIterator[str]:
    """The address at which it is served."""
    handler = grpc.unary_unary_rpc_method_handler(service.publish)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("storenode.v1.Store", {"Publish": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_it_is_made_again() -> None:
    service = Dropping(2)
    async with serving(service) as address, connect(address, retry=HASTY) as client:
        await client.publish(())
    assert service.calls == 3


async def test_it_is_made_again_a_few_times_only() -> None:
    service = Dropping(1_000)
    async with serving(service) as address, connect(address, retry=HASTY) as client:
        with pytest.raises(ConnectionLost):
            await client.publish(())
    assert service.calls == 4
