"""Short runs of all attacks: the node lives, and an honest client gets what it is owed.

Attackers vanish in the middle of their calls; nothing is kept for them. What an attack costs in
memory is bounded; how long an honest call takes is a figure that `make hostile` prints.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import grpc
import pytest
import pytest_asyncio

from chaos.attacks import honest
from chaos.attacks.__main__ import OPTIONS, attack_node, run_node
from chaos.attacks.calls import STORE, UNFINISHED_REQUESTS
from chaos.attacks.catalog import ATTACKS
from chaos.attacks.http2 import MESSAGE_HEAD, connected
from chaos.node import NodeProcess as Process
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.faults.processes import metrics, until
from tests.support.credentials import token_file
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST = ("unfinished_requests", "silent_calls", "compressed_requests")
"""Attacks that fill a node's memory most: what it keeps of it would hide what the others take."""

LEAST_CALLS = {"rapid_resets": 20}
"""Calls of the honest client during an attack."""

PAUSE_S = 0.5
"""Pause between calls of the honest client, where they are not counted."""

SAW = {
    "idle_connections": "of 100 connections that could be made the node has closed 90",
    "compressed_requests": "8 of 8 ended UNIMPLEMENTED",
    # Else broken requests would not reach what lies behind the checks.
    "broken_requests": r"requests to 35 methods; calls: .*\b\d{3,} OK",
}
"""Patterns in the final sentences of some attacks."""

PLANTED = """
import sys
from store.serving.methods import reads
from storenode.cli.main import main

sound = reads.query

async def query(call, request):
    if len(request) % 3 == 0:
        raise ZeroDivisionError
    return await sound(call, request)

reads.query = query
sys.argv[0] = "storenode"
main()
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(new_store: Callable[[], str]) -> AsyncIterator[Process]:
    """Run a node for all attacks, with the options of each."""
    async with run_node((*OPTIONS, "--database-url", new_store())) as node:
        yield node


@pytest.mark.parametrize("name", [*FIRST, *(each for each in ATTACKS if each not in FIRST)])
async def test_a_node_serves_on_under_attack(name: str, shared: Process) -> None:
    pause_s = honest.PAUSE_S if name in LEAST_CALLS else PAUSE_S
    outcome = await attack_node(shared, name, ATTACKS[name].short, seed=1, pause_s=pause_s)
    assert outcome.alive
    assert outcome.failures == {}
    assert outcome.violations == []
    assert outcome.growth_mib < 400, "short runs take no more, whatever full ones may"
    assert outcome.calls > LEAST_CALLS.get(name, 0)
    assert re.search(SAW.get(name, ""), outcome.saw), outcome.saw
    await until(lambda: is_nothing_kept(shared))


async def test_a_planted_fault_is_reported(new_store: Callable[[], str]) -> None:
    options = (*OPTIONS, "--database-url", new_store())
    async with run_node(options, (sys.executable, "-c", PLANTED)) as node:
        outcome = await attack_node(node, "broken_requests", 2_000, seed=1, pause_s=PAUSE_S)
    assert "/storenode.v1.Store/Query ended INTERNAL" in str(outcome)
    assert "ZeroDivisionError" in str(outcome)


def is_nothing_kept(node: Process) -> bool:
    """Return True if no stream, batch or connection of the database is in use."""
    seen = metrics(node)
    used = [seen["storenode_pool_connections", pool, "used"] for pool in ("write", "bulk")]
    streams = seen["storenode_followers",], seen["storenode_publishes_in_flight",]
    return not any((*streams, *used))


# Callers without a token, and hosts with many connections

TOKEN = "token-of-a"
PER_HOST = 64
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
                await asyncio.sleep(honest.PAUSE_S)

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
        await until(lambda: all(each.lost.is_set() for each in crowd[PER_HOST:]))
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
        await until(lambda: connection.ended >= len(calls))
    log = guarded.log().removeprefix(before)
    assert not [word for word in ("Traceback", '"error"', "xff") if word in log]
