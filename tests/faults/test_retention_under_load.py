"""Partitions are dropped while clients publish, query and scan: no call fails or waits long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from random import Random

import psycopg

from chaos.soak.postgres import ClusterServer
from storenode.client.messages import hash_of, new_message
from storenode.client.node import NodeClient, connect
from tests.support.command import Command
from tests.support.ledger import (
    PUBSUB,
    TOPICS,
    Follower,
    Ledger,
    Publisher,
    following,
    found_by_hash,
    hashes_of,
    publishing,
)
from tests.support.node import NodeProcess

DAYS = 18
PER_DAY = 200
DAY_NS = 86_400 * 10**9
KEPT_DAYS = 5
STEP_DAYS = 3
LONG_MS = 3_000
"""A wait for a lock that is too long: ten times that of a drop, and its own time."""

WAITED = "still waiting for"
"""Postgres's log of a wait that is longer than its `deadlock_timeout`."""


async def fill(client: NodeClient, rng: Random) -> dict[int, list[bytes]]:
    """Publish messages of the last days, and return their hashes by age in days."""
    stored: dict[int, list[bytes]] = {}
    now_ns = time.time_ns()
    for age in range(DAYS):
        messages = [
            new_message(rng.randbytes(500), rng.choice(TOPICS), PUBSUB, at)
            for at in range(now_ns - age * DAY_NS, now_ns - age * DAY_NS + PER_DAY)
        ]
        await client.publish(messages)
        stored[age] = [hash_of(message) for message in messages]
    return stored


async def repeat(work: Callable[[], Awaitable[object]], stop: asyncio.Event) -> int:
    times = 0
    while not stop.is_set():
        await work()
        times += 1
    return times


async def prune(server: ClusterServer, retention: str) -> dict[str, object]:
    """Drop older messages by the command, and return its report."""
    limits = ("--retention", retention, "--retention-confirm")
    ended = await asyncio.to_thread(
        Command(), "db", "prune", "--json", "--database-url", server.url, *limits
    )
    assert ended.code in (0, 1), ended
    report: dict[str, object] = json.loads(ended.out)
    return report


async def test_dropping_disturbs_no_client(
    server: ClusterServer, nodes: list[NodeProcess], rng: Random
) -> None:
    server.reload(log_lock_waits="on", deadlock_timeout=f"{LONG_MS}ms")
    node = nodes[0]
    node.database_url = server.url
    node.args = ("--max-clock-drift", "off")
    node.start()
    stop, ledger = asyncio.Event(), Ledger()
    async with connect(node.listen) as client, asyncio.TaskGroup() as group:
        stored = await fill(client, rng)
        kept = {digest for age in range(KEPT_DAYS - 1) for digest in stored[age]}
        everything = {digest for day in stored.values() for digest in day}

        async def scan() -> None:
            found = [digest async for page in client.scan() for digest in hashes_of(page)]
            assert len(found) == len(set(found))
            assert kept <= set(found) <= everything | ledger.sent

        async def query() -> None:
            some = rng.sample(sorted(everything), 500)
            found = await found_by_hash(client, some)
            assert kept.intersection(some) <= found <= set(some)

        work = [group.create_task(repeat(each, stop)) for each in (scan, scan, query, query)]
        follower = Follower(node.listen)
        async with following(follower):
            async with publishing([Publisher(node.listen, ledger, rng)]):
                await hold_one_and_prune(server, KEPT_DAYS + 10)
                for days in range(DAYS - 1, KEPT_DAYS - 1, -STEP_DAYS):
                    await prune(server, f"{days}d")
                    await ledger.more(50)
            await follower.has_all(ledger.sent)
        stop.set()
        assert all([await each for each in work])
        assert await found_by_hash(client, everything) >= kept
        gone = {digest for age in range(KEPT_DAYS + 2, DAYS) for digest in stored[age]}
        assert await found_by_hash(client, gone) == set()
    assert WAITED not in server.data.log.read_text()
    Command().ok("db", "check", "--database-url", server.url)


async def hold_one_and_prune(server: ClusterServer, days: int) -> None:
    """Prune during a long read of an old partition: the drop gives up."""
    with psycopg.connect(server.url) as connection:
        connection.execute("select count(*) from storenode.messages")
        report = await prune(server, f"{days}d")
    assert report["dropped"] == [], report
    assert "could not be dropped" in str(report["problems"])
