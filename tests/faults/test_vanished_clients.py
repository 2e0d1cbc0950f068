"""Clients that vanish in the middle of a stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import psutil
import pytest
from google.protobuf.message import Message

from chaos.attacks.calls import STORE
from chaos.attacks.http2 import MESSAGE_HEAD, connected
from storenode.client.messages import new_message, new_request
from storenode.client.node import connect
from storenode.sds import codec
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    FollowRequest,
    GetCausalHistoryRequest,
    GetSdsMessagesRequest,
    ScanRequest,
)
from tests.faults.processes import metrics, until
from tests.support.ledger import PATIENCE_S, PUBSUB, TOPICS, Ledger, Publisher, attempted
from tests.support.node import NodeProcess
from tests.support.postgres import copy_cluster

CHANNEL = "vanishing"
MESSAGES = 400
CONTENT_BYTES = 30_000
"""12 MB in all: more than the buffers between a node and a client that does not read."""

MAX_STREAMS = 3
ROUNDS = 2
"""Rounds: if the node kept a stream of the first, one of the second would be refused."""


IDS = [f"id-{number}" for number in range(MESSAGES)]
REQUESTS: dict[str, Message] = {
    "PublishStream": new_request([new_message(b"vanishing", TOPICS[0], PUBSUB, time.time_ns())]),
    "Scan": ScanRequest(include_data=True),
    "Follow": FollowRequest(from_beginning=True, include_data=True),
    "GetSdsMessages": GetSdsMessagesRequest(
        channel_id=CHANNEL, entries=[HistoryEntry(message_id=each) for each in IDS]
    ),
    "GetCausalHistory": GetCausalHistoryRequest(
        channel_id=CHANNEL, heads=[HistoryEntry(message_id=IDS[-1])]
    ),
}


@asynccontextmanager
async def stuck(node: NodeProcess, method: str) -> AsyncIterator[None]:
    """Open as many streams as are allowed, read until their windows are full, and vanish."""
    data = REQUESTS[method].SerializeToString()
    async with AsyncExitStack() as stack:
        for _ in range(MAX_STREAMS):
            connection = await stack.enter_async_context(connected(node.listen))
            stream = connection.open(STORE + method)
            head = MESSAGE_HEAD.pack(False, len(data))
            connection.send(stream, head + data, last=method != "PublishStream")
            async with asyncio.timeout(PATIENCE_S):
                await connection.answered.wait()
        yield


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Start a node that serves each client three streams at a time."""
    directory = tmp_path_factory.mktemp("vanished") / "data"
    node = NodeProcess(copy_cluster(directory), ("--max-streams", str(MAX_STREAMS)))
    try:
        yield node.start()
    finally:
        node.close()


async def fill(node: NodeProcess) -> None:
    """Publish a chain of SDS messages, each with the one before as its parent."""
    async with connect(node.listen) as client:
        for start in range(0, MESSAGES, 100):
            await client.publish(
                new_message(payload(number), TOPICS[0], PUBSUB, time.time_ns())
                for number in range(start, start + 100)
            )


def payload(number: int) -> bytes:
    parents = [(f"id-{number - 1}", None)] if number else []
    return codec.encode(
        CHANNEL,
        f"id-{number}",
        lamport=number,
        parents=parents,
        content=Random(number).randbytes(CONTENT_BYTES),
    )


@pytest.mark.parametrize("method", REQUESTS)
async def test_nothing_is_kept_for_a_client_that_vanished(
    filled: NodeProcess, rng: Random, method: str
) -> None:
    node = filled
    if ("storenode_calls_total", "OK", "Publish") not in metrics(node):
        await fill(node)
    for _ in range(ROUNDS):
        # The kernel reports closed connections to the node in its own time.
        await until(lambda: connections(node) == 0)
        async with stuck(node, method):
            assert connections(node) == MAX_STREAMS
            if method == "Follow":
                assert metrics(node)[("storenode_followers",)] == MAX_STREAMS
        await until(lambda: connections(node) == 0)
        await until(lambda: nothing_is_kept(node))
    assert await attempted(Publisher(node.listen, Ledger(), rng)) is None


def connections(node: NodeProcess) -> int:
    port = int(node.listen.rsplit(":", 1)[1])
    return sum(
        each.status == psutil.CONN_ESTABLISHED and each.laddr.port == port
        for each in psutil.Process(node.process.pid).net_connections("tcp")
    )


def nothing_is_kept(node: NodeProcess) -> bool:
    """Return True if no stream, batch or connection of the database is in use."""
    seen = metrics(node)
    used = [seen[("storenode_pool_connections", pool, "used")] for pool in ("write", "bulk")]
    return (
        seen[("storenode_followers",)] == seen[("storenode_publishes_in_flight",)] == sum(used) == 0
    )
