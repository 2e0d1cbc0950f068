"""What a message costs a node: published alone, delivered to live followers, and read by a scan.

One client publishes ``--messages`` messages of 400 bytes, each in a call of its own, to a topic
that nobody follows, then as many deliveries to 20 and 200 followers, each on a connection of its
own. Printed are microseconds of processor time of the node and its Postgres, per message or per
delivery beyond the publishing, and the memory of a follower.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc
import psutil

from bench.data import PUBSUB_TOPIC
from bench.support import Bench, bench_node, options, report, used
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    PublishRequest,
    ScanRequest,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

FOLLOWERS = (20, 200)
SCANS = 10
PAYLOAD = bytes(400)
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per message of the node and of Postgres; bytes of the node's memory."""

    node_us: float
    postgres_us: float
    memory_bytes: int


def content_filter(followers: int) -> ContentFilter:
    """A topic for this number of followers."""
    return ContentFilter(
        pubsub_topic=PUBSUB_TOPIC, content_topics=[f"/bench/1/followers-{followers}/proto"]
    )


async def delivered(bench: Bench, followers: int, count: int) -> Cost:
    """Publish messages one by one to followers, and wait until all have all."""
    channels = [
        grpc.aio.insecure_channel(bench.node.listen, options=_OWN_CONNECTION)
        for _ in range(followers + 1)
    ]
    live = asyncio.Semaphore(0)

    async def follow(channel: grpc.aio.Channel) -> None:
        left = count
        request = FollowRequest(filter=content_filter(followers), include_data=True)
        async for page in StoreStub(channel).Follow(request):
            if page.live and not page.messages:
                live.release()
            left -= len(page.messages)
            if not left:
                return

    tasks = [asyncio.create_task(follow(channel)) for channel in channels[1:]]
    for _ in tasks:
        await live.acquire()
    memory = psutil.Process(bench.node.process.pid).memory_info().rss
    before = used(bench)
    await publish(channels[0], followers, count)
    await asyncio.gather(*tasks)
    spent = used(bench).since(before, count)
    for channel in channels:
        await channel.close(grace=None)
    return Cost(spent["node_cpu_us"], spent["postgres_cpu_us"], memory)


async def publish(channel: grpc.aio.Channel, followers: int, count: int) -> None:
    """Publish messages, one in a call."""
    (topic,) = content_filter(followers).content_topics
    for _ in range(count):
        request = PublishRequest()
        item = request.messages.add(pubsub_topic=PUBSUB_TOPIC)
        item.message.payload, item.message.content_topic = PAYLOAD, topic
        item.message.timestamp = time.time_ns()
        await StoreStub(channel).Publish(request)


def scanned(bench: Bench) -> dict[str, float]:
    """Scan everything some times; what a message costs."""
    before, count = used(bench), 0
    with bench.channel() as channel:
        for _ in range(SCANS):
            pages = StoreStub(channel).Scan(ScanRequest(include_data=True))
            count += sum(len(page.messages) for page in pages)
    return used(bench).since(before, count)


def main() -> None:
    """Measure the three, one after the other."""
    count = options(__doc__ or "", messages=2_000).messages
    with bench_node() as bench:
        costs = {
            followers: asyncio.run(delivered(bench, followers, count // max(followers // 10, 1)))
            for followers in (0, *FOLLOWERS)
        }
        scan = scanned(bench)
    alone, few, many = (costs[followers] for followers in (0, *FOLLOWERS))
    report(
        benchmark="followers",
        publish_node_us=alone.node_us,
        publish_postgres_us=alone.postgres_us,
        delivery_20_us=(few.node_us - alone.node_us) / FOLLOWERS[0],
        delivery_200_us=(many.node_us - alone.node_us) / FOLLOWERS[1],
        follower_bytes=(many.memory_bytes - few.memory_bytes) / (FOLLOWERS[1] - FOLLOWERS[0]),
        scan_node_us=scan["node_cpu_us"],
        scan_postgres_us=scan["postgres_cpu_us"],
    )


if __name__ == "__main__":
    main()
