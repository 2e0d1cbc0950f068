"""Live gossip between real nodes: a triangle of three, one of which clients publish at.

Two figures. ``gossip``: batches of 100 through ``PublishStream`` at the first node, until all three
databases hold everything, against the same load on one node without peers; and the bytes of
messages that the nodes sent each other, as a multiple of one copy per link. ``gossip_latency``: a
message every 10 ms, from its publishing at the first node to a follower of the second.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path

import grpc

from bench.data import Row, batches, publish_request, rows
from bench.support import (
    Bench,
    bench_node,
    bench_node_on,
    options,
    publish_requests,
    report,
    seconds,
    used,
)
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.faults.processes import metrics
from tests.support.fleet import exchanging

BATCH = 100
NODES = 3
INTERVAL_S = 0.01
STORED = "select coalesce(sum(messages), 0)::bigint from storenode.commits"
OPEN = ("--max-clock-drift", "off")


@contextmanager
def triangle() -> Iterator[list[Bench]]:
    """Start three nodes, each with a stream to both others."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory, ExitStack() as stack:
        nodes: list[Bench] = []
        for number in range(NODES):
            peers = [part for bench in nodes for part in ("--peer", bench.node.peer)]
            data_dir = Path(directory, f"node-{number}")
            nodes.append(stack.enter_context(bench_node_on(data_dir, *OPEN, *peers)))
        for bench in nodes:
            exchanging(bench.node, NODES - 1)
        yield nodes


def publish(bench: Bench, requests: Sequence[store_pb2.PublishRequest]) -> None:
    """Publish prepared batches; all of them must be stored."""
    with bench.channel() as channel:
        publish_requests(channel, requests, sum(len(request.messages) for request in requests))


def stored(bench: Bench) -> int:
    """Count the messages in a node's database."""
    ((count,),) = bench.connection.execute(STORED).fetchall()
    return int(count)


def wait_until_stored(nodes: Sequence[Bench], count: int) -> None:
    """Wait until each holds that many."""
    deadline = time.monotonic() + 600
    for bench in nodes:
        while stored(bench) < count:
            assert time.monotonic() < deadline, [stored(each) for each in nodes]
            time.sleep(0.02)


def sent_bytes(bench: Bench) -> float:
    """Return the bytes of messages that a node has sent to its peers."""
    return metrics(bench.node).get(("storenode_gossip_body_bytes_total", "sent"), 0.0)


def alone(requests: Sequence[store_pb2.PublishRequest]) -> float:
    """Return the messages a second of the same load on one node without peers."""
    with bench_node(*OPEN) as bench:
        taken = seconds(lambda: publish(bench, requests))
    return sum(len(request.messages) for request in requests) / taken


def spread(nodes: Sequence[Bench], requests: Sequence[store_pb2.PublishRequest]) -> None:
    """Publish at the first of three, until all hold everything."""
    count = sum(len(request.messages) for request in requests)
    copy_bytes = sum(message.ByteSize() for request in requests for message in request.messages)
    baseline = alone(requests)
    before, cpu = sum(map(sent_bytes, nodes)), [used(bench.node) for bench in nodes]
    start = stored(nodes[0])

    def work() -> None:
        publish(nodes[0], requests)
        wait_until_stored(nodes, start + count)

    taken = seconds(work)
    each = [used(bench.node).since(then, count) for bench, then in zip(nodes, cpu, strict=True)]
    links = len(list(combinations(nodes, 2)))
    report(
        benchmark="gossip",
        messages=count,
        seconds=taken,
        spread_per_s=count / taken,
        alone_per_s=baseline,
        ratio=count / taken / baseline,
        copies_per_link=(sum(map(sent_bytes, nodes)) - before) / (links * copy_bytes),
        **{
            f"{name}_{part}_cpu_us": cost[f"{part}_cpu_us"]
            for name, cost in zip(("publisher", "second", "third"), each, strict=True)
            for part in ("node", "postgres")
        },
    )


def latency(nodes: Sequence[Bench], count: int) -> None:
    """Measure the milliseconds from a publish to a follower at a peer, every `INTERVAL_S`."""
    arrived: dict[bytes, float] = {}
    live = threading.Event()
    done = threading.Event()

    def follow() -> None:
        with grpc.insecure_channel(nodes[1].node.listen) as channel:
            call = StoreStub(channel).Follow
            for page in call(store_pb2.FollowRequest()):
                now = time.perf_counter()
                live.set()
                arrived.update((message.message_hash, now) for message in page.messages)
                if len(arrived) == count:
                    done.set()
                    return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert live.wait(60)
    sent = dict(paced(nodes[0], rows(count, seed=7)))
    assert done.wait(60), f"{len(arrived)} of {count} have come"
    follower.join()
    taken = sorted(1000 * (arrived[digest] - start) for digest, start in sent.items())
    report(
        benchmark="gossip_latency",
        messages=count,
        p50_ms=taken[count // 2],
        p99_ms=taken[count * 99 // 100],
        most_ms=taken[-1],
    )


def paced(bench: Bench, data: Sequence[Row]) -> Iterator[tuple[bytes, float]]:
    """Publish messages one by one; the hash of each, and when it was sent."""
    with bench.channel() as channel:
        call = StoreStub(channel).Publish
        pending = []
        began = time.perf_counter()
        for number, row in enumerate(data):
            time.sleep(max(0.0, began + number * INTERVAL_S - time.perf_counter()))
            now = time.perf_counter()
            pending.append((call.future(publish_request([row])), now))
        for future, now in pending:
            yield future.result().results[0].message_hash, now


def main() -> None:
    """Measure both."""
    count = options(__doc__, messages=200_000).messages
    data = rows(count)
    requests = [publish_request(batch) for batch in batches(data, BATCH)]
    with triangle() as nodes:
        latency(nodes, min(1_000, count))
        spread(nodes, requests)
