"""Callers without a token, and hosts with many connections, beside an honest client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest

from chaos.attacks.calls import STORE, UNFINISHED_REQUESTS
from chaos.attacks.http2 import MESSAGE_HEAD, connected
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.credentials import token_file
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PAUSE_S

TOKEN = "token-of-a"
PER_HOST = 64
PATIENCE_S = 60
CALLS = 48


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Start a node with a token file and a small limit of connections per host."""
    directory = tmp_path_factory.mktemp("guarded")
    tokens = directory / "tokens.toml"
    tokens.write_text(token_file({"a": 'rights = ["read", "publish"]'}))
    args = ("--client-token-file", str(tokens), "--max-connections", str(4 * PER_HOST))
    with running_node(directory / "data", *args, database_url=new_store()) as node:
        yield node


@asynccontextmanager
async def served(node: NodeProcess) -> AsyncIterator[None]:
    """Query with the token for the length of the block, and after it; no call may fail."""
    metadata, ended = [("authorization", f"Bearer {TOKEN}")], asyncio.Event()
    async with grpc.aio.insecure_channel(node.listen) as channel, asyncio.TaskGroup() as group:
        store: Any = StoreStub(channel)

        async def query() -> None:
            while True:
                is_last = ended.is_set()
                request = StoreQueryRequest(request_id="x")
                await store.Query(request, timeout=PATIENCE_S, metadata=metadata)
                if is_last:
                    return
                await asyncio.sleep(PAUSE_S)

        group.create_task(query())
        yield
        ended.set()


async def test_requests_without_a_token_are_not_read(guarded: NodeProcess) -> None:
    async with served(guarded):
        report = await UNFINISHED_REQUESTS.run({"listen": guarded.listen}, Random(1), CALLS)
    assert f"ended {CALLS}" in report
    # Of the 768 MiB that the requests have.
    assert int(report.split()[3]) < 16, report


async def test_connections_of_one_host_leave_room_for_others(guarded: NodeProcess) -> None:
    async with served(guarded), AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(connected(guarded.listen)) for _ in range(99)]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(each.lost.wait() for each in crowd[PER_HOST:]))
        assert not crowd[0].lost.is_set(), "the oldest stay"
        other = await stack.enter_async_context(connected(guarded.listen, source="127.0.0.2"))
        assert other.greeted.is_set()
        async with asyncio.timeout(PATIENCE_S), connected(guarded.listen) as late:
            await late.lost.wait()
        assert not other.lost.is_set()


async def test_names_that_are_no_utf8_end_their_own_call(guarded: NodeProcess) -> None:
    """Check that such a path, which once ended the listener of gRPC for Python, ends one call."""
    path, stray = f"{STORE}Query", "\udcff" * 100
    calls: list[tuple[str, tuple[str, ...]]] = [
        (path + stray, ()),
        (stray, ()),
        (path, ("x-anything", stray)),
        (path, ("authorization", stray)),
        (f"{STORE}NoSuchMethod", ()),
    ]
    before = guarded.log()
    async with served(guarded), connected(guarded.listen) as connection:
        for each, fields in calls:
            connection.reset(connection.open("/dropped/at_once" + each))
            connection.send(connection.open(each, fields), MESSAGE_HEAD.pack(False, 0), last=True)
        async with asyncio.timeout(PATIENCE_S):
            while connection.ended < len(calls):  # noqa: ASYNC110 - no event
                await asyncio.sleep(PAUSE_S)
    log = guarded.log().removeprefix(before)
    assert not [word for word in ("Traceback", '"error"', "xff") if word in log]
