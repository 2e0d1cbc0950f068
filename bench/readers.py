"""Benchmark of many readers of one node: followers, and scans in turn.

Measured are, each on a node of its own:

- ``followers``: ``--followers`` calls of ``Follow`` on ``--connections`` connections;
- ``scans``: ``--scans`` scans in turn, each of a day of one channel.

Names choose some of them; each prints one line of JSON. All followers follow one topic. Messages
are published to it one at a time, each after all followers have received the previous one, and
then to a topic that one more follower has for itself. Memory is that of the node's process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Final

import psutil

from bench.data import PUBSUB_TOPIC
from bench.support import Bench, bench_node, publish_requests, report, settle, used
from storenode.client.messages import new_message
from storenode.client.node import NodeClient, connect, content_filter
from storenode.wire.storenode.v1.store_pb2 import PublishRequest

PARTS: Final = ("followers", "scans")
CROWD: Final = "/bench/1/followed/proto"
ALONE: Final = "/bench/1/alone/proto"
SENT: Final = 20
SENT_ALONE: Final = 200
PAYLOAD: Final = bytes(500)
OPENING: Final = 64
"""Followers that begin side by side."""

A_DAY: Final = 20
"""Messages of a participant a day, and participants of a channel, as docs/scaling.md has them."""

CHANNELS_OF_ONE: Final = 3
DAY_NS: Final = 86_400 * 10**9
BATCH: Final = 1_000
KIB: Final = 1024
MIB: Final = 1024 * KIB
_MANY: Final = "100000"
_ROOM: Final = (
    *("--max-connections", _MANY),
    *("--max-streams", _MANY, "--max-calls", _MANY),
)
"""Options that let many readers call from one host, which is one client without tokens."""


@dataclass(slots=True)
class Waiting:
    """A counter of followers: ``begun`` when one is live, ``seen`` with each message received."""

    begun: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    seen: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))


def node_bytes(bench: Bench) -> int:
    """Return the resident memory of the node."""
    return int(psutil.Process(bench.node.process.pid).memory_info().rss)


# Followers


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
        part="followers",
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


# Reads of a day


def channel_name(number: int) -> str:
    """Return the content topic of a channel."""
    return f"/bench/1/channel-{number}/proto"


def fill_day(bench: Bench, participants: int) -> int:
    """Publish the last day of all participants; return the number of their channels."""
    channels = max(CHANNELS_OF_ONE, participants * CHANNELS_OF_ONE // A_DAY)
    total = participants * A_DAY
    first_ns, step_ns = time.time_ns() - DAY_NS, DAY_NS // total

    def requests() -> Iterator[PublishRequest]:
        for start in range(0, total, BATCH):
            request = PublishRequest()
            for number in range(start, min(start + BATCH, total)):
                item = request.messages.add(pubsub_topic=PUBSUB_TOPIC)
                item.message.content_topic = channel_name(number % channels)
                item.message.timestamp = first_ns + number * step_ns
                item.message.payload = PAYLOAD
            yield request

    with bench.channel() as channel:
        publish_requests(channel, requests(), total)
    settle(bench)
    return channels


async def read_channel(client: NodeClient, number: int) -> int:
    """Scan a channel; return the number of its messages."""
    count = 0
    topics = content_filter(PUBSUB_TOPIC, channel_name(number))
    async with aclosing(client.scan(filter=topics)) as pages:
        async for page in pages:
            count += len(page.messages)
    return count


async def scans(bench: Bench, count: int, participants: int) -> None:
    """Measure scans in turn."""
    channels = fill_day(bench, participants)
    taken, read = [], 0
    async with connect(bench.node.listen) as client:
        await read_channel(client, 0)
        before, first_bytes = used(bench.node), node_bytes(bench)
        for number in range(count):
            began = time.perf_counter()
            read += await read_channel(client, number % channels)
            taken.append((time.perf_counter() - began) * 1e3)
    report(
        benchmark="readers",
        part="scans",
        scans=count,
        messages_each=read / count,
        p50_ms=statistics.median(taken),
        p99_ms=statistics.quantiles(taken, n=100)[98],
        grew_mib=(node_bytes(bench) - first_bytes) / MIB,
        **{f"scan_{name}": value for name, value in used(bench.node).since(before, count).items()},
    )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    sizes = {"followers": 1_000, "connections": 50, "scans": 300, "participants": 200}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, help="default: %(default)s")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if min(getattr(given, name) for name in sizes) < CHANNELS_OF_ONE:
        parser.error(f"choose numbers of at least {CHANNELS_OF_ONE}")
    for part in given.parts or PARTS:
        with bench_node(*_ROOM, "--max-clock-drift", "off") as bench:
            if part == "followers":
                asyncio.run(followers(bench, given.followers, given.connections))
            else:
                asyncio.run(scans(bench, given.scans, given.participants))
