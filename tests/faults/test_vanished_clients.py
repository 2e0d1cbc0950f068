"""Clients that are killed in the middle of a stream."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest

from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.sds import codec
from tests.faults.processes import metrics, until
from tests.faults.stream_client import METHODS
from tests.support.acknowledged import PUBSUB, TOPICS, Ledger, Publisher, attempted
from tests.support.node import NodeProcess
from tests.support.postgres import copy_cluster

ROOT = Path(__file__).parents[2]
CHANNEL = "vanishing"
MESSAGES = 400
CONTENT_BYTES = 30_000
"""12 MB in all: more than the buffers between a node and a client that does not read."""

MAX_STREAMS = 3
ROUNDS = 2
"""Rounds: if the node kept a stream of the first, one of the second would be refused."""


@contextmanager
def stuck(node: NodeProcess, method: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client in the middle of as many streams as are allowed, and kill it at the end."""
    ids = [f"id-{number}" for number in range(MESSAGES)]
    script = str(Path(__file__).with_name("stream_client.py"))
    process = subprocess.Popen(
        [sys.executable, script, node.listen, method, str(MAX_STREAMS), CHANNEL, *ids],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process
    finally:
        process.kill()
        process.communicate()


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


@pytest.mark.parametrize("method", list(METHODS))
async def test_nothing_is_kept_for_a_client_that_vanished(
    filled: NodeProcess, rng: Random, method: str
) -> None:
    node = filled
    if ("storenode_calls_total", "OK", "Publish") not in metrics(node):
        await fill(node)
    for _ in range(ROUNDS):
        # Of clients that left in good order too: the kernel tells the node in its own time.
        await until(lambda: connections(node) == 0)
        with stuck(node, method):
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
