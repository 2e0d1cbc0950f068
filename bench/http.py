"""What HTTP costs: a page against the same page by gRPC, and a crowd of followers.

Pages of 1,000 messages with data are read forward, by four ways in turn, the best of three rounds.
Then 1,000 followers by server-sent events wait for messages that are published one at a time, each
when all have the one before: the time from the publishing to the last follower.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from collections.abc import Callable

import psutil

from bench.data import PUBSUB_TOPIC, rows
from bench.support import Bench, Used, bench_node, options, publish, report, settle, used
from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse

PAGE_MESSAGES = 1_000
ROUNDS = 3
FOLLOWERS = 1_000
SENT = 50
TOPIC = "/bench/1/followed/proto"

Reader = Callable[[Bench], int]


def by_grpc(bench: Bench) -> int:
    """Read all pages; how many messages there were."""
    request = StoreQueryRequest(
        include_data=True, pagination_forward=True, pagination_limit=PAGE_MESSAGES
    )
    count = 0
    with bench.channel() as channel:
        query = StoreStub(channel).Query
        while True:
            response = query(request)
            count += len(response.messages)
            if not response.HasField("pagination_cursor"):
                return count
            request.pagination_cursor = response.pagination_cursor


def by_connect(bench: Bench) -> int:
    """The same requests and responses by Connect."""
    connection = http.client.HTTPConnection(bench.node.http, timeout=60)
    request = StoreQueryRequest(
        include_data=True, pagination_forward=True, pagination_limit=PAGE_MESSAGES
    )
    count, headers = 0, {"content-type": "application/proto"}
    while True:
        body = request.SerializeToString()
        connection.request("POST", "/storenode.v1.Store/Query", body, headers)
        response = StoreQueryResponse.FromString(connection.getresponse().read())
        count += len(response.messages)
        if not response.HasField("pagination_cursor"):
            connection.close()
            return count
        request.pagination_cursor = response.pagination_cursor


def by_http(bench: Bench, path: str, cursor_name: str) -> int:
    """The same over one connection of HTTP."""
    connection = http.client.HTTPConnection(bench.node.http, timeout=60)
    count, cursor = 0, ""
    while True:
        connection.request("GET", f"{path}{cursor}")
        found = json.loads(connection.getresponse().read())
        count += len(found["messages"])
        if cursor_name not in found:
            connection.close()
            return count
        cursor = f"&cursor={found[cursor_name]}"


def by_api(bench: Bench) -> int:
    """By ``/api/v1/messages``."""
    path = f"/api/v1/messages?forward=true&limit={PAGE_MESSAGES}"
    return by_http(bench, path, "cursor")


def by_waku(bench: Bench) -> int:
    """By ``/store/v3/messages``, whose pages have 100 messages."""
    path = "/store/v3/messages?includeData=true&pageSize=100"
    return by_http(bench, path, "paginationCursor")


def pages(bench: Bench, count: int) -> None:
    """Measure the four ways."""
    publish(bench, rows(count))
    settle(bench)
    ways: dict[str, Reader] = {
        "grpc": by_grpc,
        "connect": by_connect,
        "api": by_api,
        "waku": by_waku,
    }
    best: dict[str, tuple[float, Used, Used]] = {}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            before, began = used(bench), time.perf_counter()
            assert read(bench) == count
            taken = time.perf_counter() - began
            if name not in best or taken < best[name][0]:
                best[name] = (taken, before, used(bench))
    for name, (taken, before, after) in best.items():
        report(
            benchmark="http",
            way=name,
            messages=count,
            message_us=taken / count * 1e6,
            **after.since(before, count),
        )


async def follower(bench: Bench, begun: asyncio.Semaphore, seen: asyncio.Semaphore) -> None:
    """Follow until cancelled; release ``begun`` with every page, ``seen`` with every message."""
    host, _, port = bench.node.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"GET /api/v1/follow?contentTopics={TOPIC} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    )
    try:
        while line := await reader.readline():
            if line.startswith(b'data: {"messageHash'):
                seen.release()
            elif line.startswith(b'data: {"live":true'):
                begun.release()
    finally:
        writer.close()


async def crowd(bench: Bench) -> None:
    """Measure the followers."""
    begun, seen = asyncio.Semaphore(0), asyncio.Semaphore(0)
    node = psutil.Process(bench.node.process.pid)
    alone_bytes = node.memory_info().rss
    tasks = [asyncio.create_task(follower(bench, begun, seen)) for _ in range(FOLLOWERS)]
    for _ in range(FOLLOWERS):
        await begun.acquire()
    held_bytes = node.memory_info().rss - alone_bytes
    taken, before = [], used(bench)
    async with connect(bench.node.listen) as client:
        for number in range(SENT):
            began = time.perf_counter()
            message = new_message(b"%d" % number * 50, TOPIC, PUBSUB_TOPIC, time.time_ns())
            await client.publish([message])
            for _ in range(FOLLOWERS):
                await seen.acquire()
            taken.append((time.perf_counter() - began) * 1e3)
    after = used(bench)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    report(
        benchmark="http",
        followers=FOLLOWERS,
        messages=SENT,
        last_follower_ms=statistics.median(taken),
        slowest_ms=max(taken),
        follower_kib=held_bytes / FOLLOWERS / 1024,
        **after.since(before, SENT * FOLLOWERS),
    )


def main() -> None:
    """Measure pages, then followers."""
    count = options(__doc__ or "", messages=100_000).messages
    with bench_node("--http-listen", "127.0.0.1:0", "--max-clock-drift", "off") as bench:
        pages(bench, count)
        asyncio.run(crowd(bench))


if __name__ == "__main__":
    main()
