"""What a call leaves behind that was refused by an answer of its own."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from store.domain.access import Access
from store.observe.metrics import Metrics
from store.rpc.call import Call, Wrapper
from store.rpc.context import RpcContext
from store.rpc.health import Health
from store.serving.context import NodeIdentity, NodeState
from store.serving.failure import busy
from store.serving.methods import table
from store.serving.methods.reads import refuse_query
from storenode.message.rules import Policy
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

REQUEST = StoreQueryRequest(request_id="one").SerializeToString()


@dataclass
class Rules:
    """Everybody may do everything, and the node is ready."""

    access: Access = field(default_factory=Access.open)
    unready: str | None = None


@dataclass
class Context:
    """What gRPC gives of a call with one request."""

    ended: list[Callable[[object], None]] = field(default_factory=list)

    def peer(self) -> str:
        """Who calls."""
        return "ipv4:127.0.0.1:5000"

    def invocation_metadata(self) -> tuple[()]:
        """None was sent."""
        return ()

    async def read(self) -> bytes:
        """The request."""
        return REQUEST

    def add_done_callback(self, done: Callable[[object], None]) -> None:
        """Tell of the end."""
        self.ended.append(done)


class Held:
    """Stands for a request of megabytes that was decoded."""


@pytest.fixture
def by_counting_references() -> Iterator[None]:
    """Without the collector, which would come too late for requests of 16 MiB."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def wrapper() -> Wrapper:
    """Of a node that serves nothing."""

    async def state() -> NodeState:
        return NodeState(True, 0, 0, 0, 0)

    return Wrapper(
        "client",
        RpcContext(
            identity=NodeIdentity("a", "b", "1"),
            policy=lambda: Policy(max_drift_ns=None),
            tokens=Rules(),
            now_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
            readiness=Rules(),
            state=state,
            metrics=Metrics("1"),
            health=Health(),
        ),
    )


@pytest.mark.usefixtures("by_counting_references")
def test_a_request_that_was_refused_is_not_kept() -> None:
    kept: list[weakref.ref[Held]] = []

    async def refused(_call: Call, _request: bytes) -> bytes:
        held = Held()
        kept.append(weakref.ref(held))
        raise busy("no room")

    async def called() -> bytes:
        handler: Any = wrapper().unary(table.QUERY, refused, refuse_query)
        context = Context()
        response: bytes = await handler.stream_unary(None, context)
        for done in context.ended:
            done(context)
        return response

    response = StoreQueryResponse.FromString(asyncio.run(called()))
    assert (response.request_id, response.status_desc) == ("one", "no room")
    assert [each() for each in kept] == [None]
