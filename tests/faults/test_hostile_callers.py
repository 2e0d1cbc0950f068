"""Callers that hold a node up below the level of calls, beside a client that means well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil
import pytest

from bench.hostile.attacks import (
    compressed_requests,
    half_sent_probes,
    idle_connections,
    rapid_resets,
    silent_calls,
    unfinished_requests,
)
from bench.hostile.http2 import connected
from bench.hostile.target import Target
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.node import NodeProcess

TOKEN = "of-a-client"
PER_HOST = 40
MIB = 1024**2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with default options."""
    node = NodeProcess(tmp_path_factory.mktemp("hostile") / "data")
    try:
        yield node.start()
    finally:
        node.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with a token file, which lets each host make few connections."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[clients.a]\ntoken_sha256 = "{sha256(TOKEN.encode()).hexdigest()}"\n'
        'rights = ["read", "publish"]\n'
    )
    args = ("--client-token-file", str(tokens), "--max-connections-per-host", str(PER_HOST))
    node = NodeProcess(tmp_path / "data", args)
    try:
        yield node.start()
    finally:
        node.close()


@dataclass
class Honest:
    """What a client sees that queries all the time, and does not try again."""

    calls: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    grown_mib: float = 0.0

    async def call(self, store: Any, token: str | None) -> None:  # noqa: ANN401 - a stub of grpc.aio
        """Make one call, and note how it went."""
        metadata = [("authorization", f"Bearer {token}")] if token else []
        began_s = time.monotonic()
        try:
            await store.Query(StoreQueryRequest(request_id="x"), timeout=60, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")
        self.calls += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


@asynccontextmanager
async def honest(node: NodeProcess, token: str | None = None) -> AsyncIterator[Honest]:
    """Watch a node while the block attacks it."""
    seen, process = Honest(), psutil.Process(node.process.pid)
    async with grpc.aio.insecure_channel(node.listen) as channel:
        store: Any = StoreStub(channel)
        for _ in range(20):
            await seen.call(store, token)
        before = process.memory_info().rss

        async def watch() -> None:
            while True:
                await seen.call(store, token)
                grown = (process.memory_info().rss - before) / MIB
                seen.grown_mib = max(seen.grown_mib, grown)
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def target(node: NodeProcess, token: str | None = None) -> Target:
    """The node as an attack is told of it."""
    return Target(node.listen, node.peer, node.metrics, token, node.process.pid)


async def test_requests_that_are_never_whole_keep_few_places(node: NodeProcess) -> None:
    async with honest(node) as seen:
        told = await unfinished_requests.attack(target(node), Random(1), unfinished_requests.SHORT)
    assert seen.failures == []
    assert seen.grown_mib < 350, told


async def test_requests_without_a_token_are_not_read(guarded: NodeProcess) -> None:
    async with honest(guarded, TOKEN) as seen:
        told = await unfinished_requests.attack(target(guarded), Random(1), 48)
    assert "ended 48" in told
    assert seen.failures == []
    assert seen.grown_mib < 100, told


async def test_dropped_calls_of_one_client_end_none_of_another(node: NodeProcess) -> None:
    async with honest(node) as seen:
        await rapid_resets.attack(target(node), Random(1), rapid_resets.SHORT)
    assert seen.calls > 20
    assert seen.failures == []


async def test_calls_that_send_nothing_end_none_of_another(node: NodeProcess) -> None:
    async with honest(node) as seen:
        told = await silent_calls.attack(target(node), Random(1), silent_calls.SHORT)
    assert seen.failures == []
    assert seen.grown_mib < 150, told


async def test_compressed_requests_are_refused_and_not_unpacked(node: NodeProcess) -> None:
    async with honest(node) as seen:
        told = await compressed_requests.attack(target(node), Random(1), compressed_requests.SHORT)
    assert told == f"{compressed_requests.SHORT} of {compressed_requests.SHORT} ended UNIMPLEMENTED"
    assert seen.failures == []
    assert seen.grown_mib < 50


async def test_half_sent_probes_keep_no_probe_out(node: NodeProcess) -> None:
    told = await half_sent_probes.attack(target(node), Random(1), half_sent_probes.SHORT)
    assert "answered 20 with 200" in told


async def test_connections_of_one_host_leave_room_for_others(guarded: NodeProcess) -> None:
    async with honest(guarded, TOKEN) as seen, AsyncExitStack() as stack:
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


async def test_connections_that_say_nothing_are_closed(node: NodeProcess) -> None:
    async with honest(node) as seen:
        told = await idle_connections.attack(target(node), Random(1), 100)
    assert told == "of 100 connections that could be made the node has closed 90"
    assert seen.failures == []
