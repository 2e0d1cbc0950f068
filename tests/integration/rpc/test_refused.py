"""What a call leaves behind that was refused by an answer of its own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import grpc
import pytest

from store.rpc.call import CallWrapper
from store.serving.call import Call
from store.serving.failure import busy
from store.serving.methods.reads import QUERY, refuse_query
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.rpc.harness import Node


class Decoded:
    """A stand-in for a request of megabytes that was decoded."""


@pytest.fixture
def by_counting_references() -> Iterator[None]:
    """Disable the collector, which would come too late for requests of 16 MiB."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("by_counting_references")
async def test_a_request_that_was_refused_is_not_kept(node: Node) -> None:
    kept: list[weakref.ref[Decoded]] = []

    async def refused(_call: Call, _request: bytes) -> bytes:
        decoded = Decoded()
        kept.append(weakref.ref(decoded))
        raise busy("no room")

    query = CallWrapper("client", node.context).unary(QUERY, refused, refuse_query)
    server = grpc.aio.server()
    handlers = grpc.method_handlers_generic_handler("storenode.v1.Store", {"Query": query})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        response = await StoreStub(channel).Query(StoreQueryRequest(request_id="one"))
    await server.stop(None)
    assert (response.request_id, response.status_desc) == ("one", "no room")
    assert [each() for each in kept] == [None]
