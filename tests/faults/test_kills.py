"""``kill -9`` of the embedded Postgres, whole or in part, and of a node while it starts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random

import grpc
import psutil

from chaos.checker.history import History
from chaos.soak.postgres import find_postmaster, kill_machine
from tests.faults.processes import log_size, logged, metrics, until
from tests.support.clients import (
    acknowledged,
    check_nodes,
    follower,
    following,
    publisher,
    publishing,
    receives,
)
from tests.support.command import Command
from tests.support.node import NodeProcess

PUBLISHERS = 3
STARTS = 4
STEPS = ("postgres_started", "serving", "maintenance_taken")
"""Events of a start."""


def kill_postmaster(node: NodeProcess, _rng: Random) -> bool:
    """Kill the postmaster alone; its children end by themselves."""
    find_postmaster(node.pid).kill()
    return True


def kill_all(node: NodeProcess, _rng: Random) -> bool:
    kill_machine(find_postmaster(node.pid))
    return True


def backends_of(node: NodeProcess) -> list[psutil.Process]:
    """Return the backends of the node; none while Postgres recovers."""
    try:
        return [
            child
            for child in find_postmaster(node.pid).children()
            if any("storenode storenode 127.0.0.1" in part for part in child.cmdline())
        ]
    except psutil.NoSuchProcess:
        return []


def kill_backend(node: NodeProcess, rng: Random) -> bool:
    """Kill one backend, if there is one: the postmaster ends the others and recovers."""
    with suppress(psutil.NoSuchProcess, IndexError):
        rng.choice(backends_of(node)).kill()
        return True
    return False


async def kill_when(node: NodeProcess, step: str) -> None:
    """Start a node and kill it when its log names a step; at once when that is empty."""
    already = log_size(node)
    node.launch()
    if step:
        await logged(node, step, already)
    node.kill()


async def test_a_node_outlives_its_postgres_and_starts_again_where_it_was_killed(
    node: NodeProcess, rng: Random
) -> None:
    history = History()
    node.start()
    server = psutil.Process(node.process.pid)
    publishers = [publisher(node.listen, history, Random(rng.random())) for _ in range(PUBLISHERS)]
    reader = follower(node.listen)
    async with following(reader):
        async with publishing(publishers):
            for kill in (kill_postmaster, kill_all, kill_backend):
                await acknowledged(history, rng.randint(200, 2_000))
                await until(lambda: bool(backends_of(node)))
                logged_bytes = log_size(node)
                # Backends seen before may have ended with the server that was killed.
                await until(partial(kill, node, rng))
                if kill is not kill_backend:
                    await logged(node, "postgres_restarted", logged_bytes)
            await acknowledged(history, 500)
        assert metrics(node)["storenode_database_events_total", "away"] >= 1
        stored = await check_nodes(history, node.listen)
        await receives(reader, stored)
        assert reader.stored == stored == history.published.keys()
    # A client that does not retry: after an error the message may be stored or not.
    for _ in range(2):
        calls = [asyncio.create_task(publishers[0].attempt()) for _ in range(8)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        kill_all(node, rng)
        for error in await asyncio.gather(*calls):
            assert error is None or error.code() is grpc.StatusCode.UNAVAILABLE, error
        await check_nodes(history, node.listen)
    assert server.is_running()
    for _ in range(STARTS):
        node.kill()
        await kill_when(node, rng.choice(["", *STEPS]))
    await asyncio.to_thread(node.start)
    assert await check_nodes(history, node.listen) >= stored
    Command().ok("db", "check", "--data-dir", str(node.data_dir))
