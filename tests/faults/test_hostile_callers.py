"""Callers without a token, and hosts with many connections, beside an honest client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random
from typing import Any

import grpc
import psutil
import pytest

from chaos.attacks.calls import UNFINISHED_REQUESTS
from chaos.attacks.http2 import MESSAGE_HEAD, connected
from chaos.attacks.target import Target
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PAUSE_S

TOKEN = "of-a-client"
PER_HOST = 64
MIB = 1024**2


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Start a node with a token file and a small limit of connections per host."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = directory / "tokens.toml"
    tokens.write_text(
        f'[clients.a]\ntoken_sha256 = "{sha256(TOKEN.encode()).hexdigest()}"\n'
        'rights = ["read", "publish"]\n'
    )
    args = ("--client-token-file", str(tokens), "--max-connections", str(4 * PER_HOST))
    with running_node(directory / "data", *args, database_url=new_store()) as node:
        yield node


@dataclass
class Honest:
    """The observations of a client that queries continuously and does not retry."""

    failures: list[str] = field(default_factory=list)
    grown_mib: float = 0.0

    async def call(self, store: Any) -> None:  # noqa: ANN401 - a stub of grpc.aio
        """Make one call and record its failure."""
        metadata = [("authorization", f"Bearer {TOKEN}")]
        try:
            await store.Query(StoreQueryRequest(request_id="x"), timeout=60, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")


@asynccontextmanager
async def honest(node: NodeProcess) -> AsyncIterator[Honest]:
    """Watch a node while the block attacks it."""
    seen, process = Honest(), psutil.Process(node.process.pid)
    async with grpc.aio.insecure_channel(node.listen) as channel:
        store: Any = StoreStub(channel)
        for _ in range(20):
            await seen.call(store)
        before = process.memory_info().rss

        async def watch() -> None:
            while True:
                await seen.call(store)
                grown = (process.memory_info().rss - before) / MIB
                seen.grown_mib = max(seen.grown_mib, grown)
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_requests_without_a_token_are_not_read(guarded: NodeProcess) -> None:
    place = Target(guarded.listen, guarded.peer, guarded.metrics, "")
    async with honest(guarded) as seen:
        report = await UNFINISHED_REQUESTS.run(place, Random(1), 48)
    assert "ended 48" in report
    assert seen.failures == []
    assert seen.grown_mib < 100, report


async def test_connections_of_one_host_leave_room_for_others(guarded: NodeProcess) -> None:
    async with honest(guarded) as seen, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(connected(guarded.listen)) for _ in range(99)]
        async with asyncio.timeout(30):
            await asyncio.gather(*(each.lost.wait() for each in crowd[PER_HOST:]))
        assert not crowd[0].lost.is_set(), "the oldest stay"
        other = await stack.enter_async_context(connected(guarded.listen, source="127.0.0.2"))
        assert other.greeted.is_set()
        async with asyncio.timeout(30), connected(guarded.listen) as late:
            await late.lost.wait()
        assert not other.lost.is_set()
    assert seen.failures == []


async def test_names_that_are_no_utf8_end_their_own_call(guarded: NodeProcess) -> None:
    """Check that such a path, which once ended the listener of gRPC for Python, ends one call."""
    path, stray = "/storenode.v1.Store/Query", "\udcff" * 100
    calls: list[tuple[str, tuple[str, ...]]] = [
        (path + stray, ()),
        (stray, ()),
        (path, ("x-anything", stray)),
        (path, ("authorization", stray)),
        ("/storenode.v1.Store/NoSuchMethod", ()),
    ]
    before = guarded.log()
    async with connected(guarded.listen) as connection:
        for each, fields in calls:
            connection.reset(connection.open("/dropped/at_once" + each))
            connection.send(connection.open(each, fields), MESSAGE_HEAD.pack(False, 0), last=True)
        async with asyncio.timeout(60):
            while connection.ended < len(calls):  # noqa: ASYNC110 - no event
                await asyncio.sleep(PAUSE_S)
    honest = Honest()
    async with grpc.aio.insecure_channel(guarded.listen) as channel:
        await honest.call(StoreStub(channel))
    assert honest.failures == []
    log = guarded.log().removeprefix(before)
    assert "a caller has sent metadata that are no UTF-8" in log
    assert [
        word for word in ("Traceback", '"error"', "xff", "Invalid encoding") if word in log
    ] == []
