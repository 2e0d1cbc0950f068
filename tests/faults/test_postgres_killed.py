"""``kill -9`` of the embedded Postgres, whole or in part, while clients publish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import psutil
import pytest

from storenode.client.types import PublishResult
from tests.faults.processes import Readiness, postmaster_of, until
from tests.support.acknowledged import (
    Follower,
    Ledger,
    Publisher,
    attempted,
    check_node,
    following,
    publishing,
)
from tests.support.cluster import kill_machine
from tests.support.command import Command
from tests.support.node import NodeProcess

PUBLISHERS = 3


def kill_postmaster(node: NodeProcess, _dice: Random) -> bool:
    """The postmaster alone; its children notice by themselves."""
    postmaster_of(node).kill()
    return True


def kill_all(node: NodeProcess, _dice: Random) -> bool:
    """Everything at once."""
    kill_machine(postmaster_of(node))
    return True


def backends_of(node: NodeProcess) -> list[psutil.Process]:
    """Those that serve the node; none while Postgres recovers."""
    try:
        return [
            child
            for child in postmaster_of(node).children()
            if any("storenode storenode 127.0.0.1" in part for part in child.cmdline())
        ]
    except psutil.NoSuchProcess:
        return []


def kill_backend(node: NodeProcess, dice: Random) -> bool:
    """One that serves the node, if there is one: the postmaster ends all others and recovers."""
    with suppress(psutil.NoSuchProcess, IndexError):
        dice.choice(backends_of(node)).kill()
        return True
    return False


@asynccontextmanager
async def readiness_of(node: NodeProcess) -> AsyncIterator[Readiness]:
    """The changes of a node's readiness, from ready on."""
    readiness = Readiness(node)
    try:
        await readiness.is_ready()
        yield readiness
    finally:
        await asyncio.to_thread(readiness.close)


@pytest.mark.parametrize("kill", [kill_postmaster, kill_all, kill_backend])
async def test_the_node_outlives_its_postgres(
    node: NodeProcess, dice: Random, kill: object
) -> None:
    assert callable(kill)
    ledger = Ledger()
    node.start()
    server = psutil.Process(node.process.pid)
    publishers = [Publisher(node.listen, ledger, Random(dice.random())) for _ in range(PUBLISHERS)]
    follower = Follower(node.listen)
    async with following(follower), readiness_of(node) as readiness:
        async with publishing(publishers):
            for _ in range(2):
                await ledger.more(dice.randint(200, 2_000))
                await until(lambda: bool(backends_of(node)))
                # Those of a moment ago may be gone, with the server that was killed before.
                await until(lambda: kill(node, dice))
                if kill is not kill_backend:
                    # Otherwise recovery may be over before anybody asks.
                    await readiness.was_away()
            await ledger.more(500)
        held = await check_node(node.listen, ledger)
        await follower.has_all(held)
        assert set(follower.hashes) == held == ledger.sent
    assert server.is_running()
    assert ledger.outcomes.keys() <= {PublishResult.STORED, PublishResult.DUPLICATE}
    Command().ok("db", "check", "--data-dir", str(node.data_dir))


async def test_a_single_publish_is_acknowledged_or_fails(node: NodeProcess, dice: Random) -> None:
    """Without a client that tries again: an error says nothing, an answer is true."""
    ledger = Ledger()
    node.start()
    publisher = Publisher(node.listen, ledger, dice)
    for _ in range(3):
        calls = [asyncio.create_task(attempted(publisher)) for _ in range(8)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        kill_all(node, dice)
        for error in await asyncio.gather(*calls):
            assert error is None or error.code == "UNAVAILABLE", error
        async with readiness_of(node):
            await check_node(node.listen, ledger)
