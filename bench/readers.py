"""Benchmark of many followers of one node: ``--followers`` calls on ``--connections`` connections.

All follow one topic. Messages are published to it one at a time, each after all followers have
received the previous one, and then to a topic that one more follower has for itself. Memory is that
of the node's process. ``--messages`` has no effect.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Final

import psutil

from bench.data import PUBSUB_TOPIC
from bench.support import Bench, bench_node, options, report, used
from storenode.client.messages import new_message
from storenode.client.node import NodeClient, connect, content_filter

CROWD: Final = "/bench/1/followed/proto"
ALONE: Final = "/bench/1/alone/proto"
SENT: Final = 20
SENT_ALONE: Final = 200
OPENING: Final = 64
"""Followers that begin side by side."""

KIB: Final = 1024
MIB: Final = 1024 * KIB
_MANY: Final = "100000"
_ROOM: Final = ("--max-connections", _MANY, "--max-streams", _MANY, "--max-calls", _MANY)
"""Options that let many readers call from one host, which is one client without tokens."""


@dataclass(slots=True)
class Waiting:
    """A counter of followers: ``begun`` when one is live, ``seen`` with each message received."""

    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    seen: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))


def node_bytes(bench: Bench) -> int:
    """Return the resident memory of the node."""
    return int(psutil.Process(bench.node.process.pid).memory_info().rss)


async def grpc_follower(client: NodeClient, topic: str, waiting: Waiting) -> None:
    """Follow until cancelled."""
    begun = False
    async with aclosing(client.follow(filter=content_filter(PUBSUB_TOPIC, topic))) as pages:
        async for page in pages:
            if page.live and not begun:
                begun = True
                waiting.begun.release()
            for _ in page.messages:
                waiting.seen.release()


async def publish_timed(
    client: NodeClient, topic: str, waiting: Waiting, each: int, count: int = SENT
) -> list[float]:
    """Publish one message at a time to ``each`` followers; milliseconds until the last has it."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        await client.publish([new_message(b"%d" % number, topic, PUBSUB_TOPIC, time.time_ns())])
        for _ in range(each):
            await waiting.seen.acquire()
        taken.append((time.perf_counter() - began) * 1e3)
    return taken


async def begin_all(
    group: asyncio.TaskGroup, followers: list[Coroutine[object, object, None]], waiting: Waiting
) -> list[asyncio.Task[None]]:
    """Begin followers, `OPENING` at the same time; all are live afterwards."""
    tasks = []
    for number, work in enumerate(followers):
        tasks.append(group.create_task(work))
        if number >= OPENING:
            await waiting.begun.acquire()
    for _ in followers[-OPENING:]:
        await waiting.begun.acquire()
    return tasks


async def followers(bench: Bench, count: int, connections: int) -> None:
    """Measure ``count`` followers on ``connections`` connections."""
    crowd, alone = Waiting(), Waiting()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(bench.node.listen))
            for _ in range(connections + 1)
        ]
        before_bytes, began = node_bytes(bench), time.perf_counter()
        work = [
            grpc_follower(clients[1 + number % connections], CROWD, crowd)
            for number in range(count)
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = await begin_all(group, work, crowd)
        begun_s, used_bytes = time.perf_counter() - began, node_bytes(bench) - before_bytes
        tasks += await begin_all(group, [grpc_follower(clients[0], ALONE, alone)], alone)
        before = used(bench.node)
        to_all = await publish_timed(clients[0], CROWD, crowd, count)
        costs = used(bench.node).since(before, SENT * count)
        before = used(bench.node)
        to_one = await publish_timed(clients[0], ALONE, alone, 1, SENT_ALONE)
        alone_costs = used(bench.node).since(before, SENT_ALONE)
        for task in tasks:
            task.cancel()
    report(
        benchmark="readers",
        followers=count,
        connections=connections,
        all_live_s=begun_s,
        follower_kib=used_bytes / count / KIB,
        node_mib=node_bytes(bench) / MIB,
        last_follower_ms=statistics.median(to_all),
        slowest_ms=max(to_all),
        beside_an_idle_crowd_ms=statistics.median(to_one),
        **costs,
        **{f"alone_{name}": cost for name, cost in alone_costs.items()},
    )


def main() -> None:
    """Measure."""
    given = options(__doc__, 0, followers=1_000, connections=50)
    with bench_node(*_ROOM, "--max-clock-drift", "off") as bench:
        asyncio.run(followers(bench, given.followers, given.connections))
