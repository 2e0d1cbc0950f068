"""Partitions are dropped while clients publish, query and scan: no call fails or waits long."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from random import Random

import psycopg

from chaos.checker.clients import new_messages
from chaos.checker.history import History
from chaos.soak.postgres import ClusterServer
from tests.support.clients import (
    acknowledged,
    follower,
    following,
    found,
    publisher,
    publishing,
    receives,
    scanned,
)
from tests.support.command import Command
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


async def fill(node: NodeProcess, rng: Random) -> dict[int, set[bytes]]:
    """Publish messages of the last days, and return their hashes by age in days."""
    stored: dict[int, set[bytes]] = {}
    now_ns = time.time_ns()
    for age in range(DAYS):
        newest_ns = now_ns - age * DAY_NS
        history = History()
        client = publisher(node.listen, history, rng)
        await client.publish(
            new_messages(rng, PER_DAY, range(newest_ns, newest_ns + PER_DAY), max_bytes=1_000)
        )
        stored[age] = set(history.acks)
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
    stop, history = asyncio.Event(), History()
    async with asyncio.TaskGroup() as group:
        stored = await fill(node, rng)
        kept = {digest for age in range(KEPT_DAYS - 1) for digest in stored[age]}
        everything = {digest for day in stored.values() for digest in day}

        async def scan() -> None:
            seen = await scanned(node.listen)
            assert kept <= seen <= everything | history.published.keys()

        async def query() -> None:
            some = rng.sample(sorted(everything), 500)
            assert kept.intersection(some) <= await found(node.listen, some) <= set(some)

        work = [group.create_task(repeat(each, stop)) for each in (scan, scan, query, query)]
        reader = follower(node.listen)
        async with following(reader):
            async with publishing([publisher(node.listen, history, rng)]):
                await hold_one_and_prune(server, KEPT_DAYS + 10)
                for days in range(DAYS - 1, KEPT_DAYS - 1, -STEP_DAYS):
                    await prune(server, f"{days}d")
                    await acknowledged(history, 50)
            await receives(reader, history.published)
        stop.set()
        assert all([await each for each in work])
        assert await found(node.listen, everything) >= kept
        gone = {digest for age in range(KEPT_DAYS + 2, DAYS) for digest in stored[age]}
        assert await found(node.listen, gone) == set()
    assert WAITED not in server.data.log.read_text()
    Command().ok("db", "check", "--database-url", server.url)


async def hold_one_and_prune(server: ClusterServer, days: int) -> None:
    """Prune during a long read of an old partition: the drop gives up."""
    with psycopg.connect(server.url) as connection:
        connection.execute("select count(*) from storenode.messages")
        report = await prune(server, f"{days}d")
    assert report["dropped"] == [], report
    assert "could not be dropped" in str(report["problems"])
