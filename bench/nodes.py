"""Reads of one Postgres by one, two and three nodes, and by one that reads its standby.

``python -m bench nodes`` starts a Postgres and a standby, and publishes ``--messages`` messages.
Then one, two and three nodes are put on the primary, and last a ``--read-only`` node on the
standby. `CLIENTS` processes per node read from it for `SECONDS`: single messages by hash, pages of
100, and scans of one topic. Printed is, per read, the processor time of the nodes and of the
Postgres that they read, and how many reads a second there were.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import grpc

from bench.data import PUBSUB_TOPIC, batches, content_topic, hashes, publish_request, rows
from bench.pipeline.cpu import tree_cpu_s
from bench.support import options, publish_requests, report
from storenode.wire.storenode.v1.store_pb2 import ContentFilter, ScanRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.cluster import ClusterServer, Pair
from tests.support.node import NodeProcess, running_node

NODES: Final = (1, 2, 3)
CLIENTS: Final = 2
SECONDS: Final = 4.0
PAGE: Final = 100
KNOWN: Final = 1_000
READS: Final = ("hash", "page", "scan")
_OPTIONS: Final = ("--log-level", "warning", "--max-clock-drift", "off", "--gossip", "off")

Read = Callable[[StoreStub, int], None]


def by_hash(known: list[bytes]) -> Read:
    """Look-ups of one message each."""

    def read(stub: StoreStub, number: int) -> None:
        wanted = known[number % len(known)]
        request = StoreQueryRequest(include_data=True, message_hashes=[wanted])
        assert len(stub.Query(request).messages) == 1

    return read


def page(stub: StoreStub, number: int) -> None:
    """A page of one topic."""
    topics = [content_topic(number)]
    request = StoreQueryRequest(
        include_data=True,
        pubsub_topic=PUBSUB_TOPIC,
        content_topics=topics,
        pagination_forward=True,
        pagination_limit=PAGE,
    )
    assert stub.Query(request).messages


def scan(stub: StoreStub, number: int) -> None:
    """All of one topic."""
    topics = ContentFilter(pubsub_topic=PUBSUB_TOPIC, content_topics=[content_topic(number)])
    for _ in stub.Scan(ScanRequest(filter=topics, include_data=True)):
        pass


def reading(address: str, kind: str, known: list[bytes]) -> tuple[int, float]:
    """Read from a node for `SECONDS`; how often, and how often in a second."""
    read = {"hash": by_hash(known), "page": page, "scan": scan}[kind]
    with grpc.insecure_channel(address) as channel:
        stub, number, began_s = StoreStub(channel), 0, time.monotonic()
        while (taken_s := time.monotonic() - began_s) < SECONDS:
            read(stub, number)
            number += 1
    return number, number / taken_s


def measure(name: str, nodes: list[NodeProcess], server: ClusterServer, known: list[bytes]) -> None:
    """Read in all ways from some nodes on one server."""

    def used() -> tuple[float, float]:
        spent = sum(tree_cpu_s(each.process.pid) for each in nodes)
        return spent, tree_cpu_s(server.process.pid)

    with multiprocessing.get_context("spawn").Pool(CLIENTS * len(nodes)) as pool:
        for kind in READS:
            before = used()
            work = [(each.listen, kind, known) for each in nodes for _ in range(CLIENTS)]
            counts, rates = zip(*pool.starmap(reading, work, chunksize=1), strict=True)
            count, after = sum(counts), used()
            report(
                benchmark="nodes",
                what=name,
                read=kind,
                reads_per_s=sum(rates),
                node_us=(after[0] - before[0]) / count * 1e6,
                postgres_us=(after[1] - before[1]) / count * 1e6,
            )


@contextmanager
def nodes_on(directory: Path, count: int, url: str, *args: str) -> Iterator[list[NodeProcess]]:
    """So many nodes on one Postgres."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_node(directory / f"{number}", *_OPTIONS, *args, database_url=url)
            )
            for number in range(count)
        ]


def main() -> None:
    """Fill the primary, and measure."""
    count = options(__doc__ or "", messages=50_000).messages
    data = rows(count)
    known = hashes(data[:: max(1, count // KNOWN)])
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name:
        directory = Path(name)
        with Pair(directory) as pair:
            with nodes_on(directory, 1, pair.first.url) as (node,):
                with grpc.insecure_channel(node.listen) as channel:
                    publish_requests(channel, map(publish_request, batches(data)), count)
                pair.first.ask("vacuum (analyze)")
            for each in NODES:
                with nodes_on(directory, each, pair.first.url) as nodes:
                    measure(f"{each} on the primary", nodes, pair.first, known)
            replayed(pair)
            with nodes_on(directory, 1, pair.second.url, "--read-only") as nodes:
                measure("1 on the standby", nodes, pair.second, known)


def replayed(pair: Pair) -> None:
    """Wait until the standby has what the primary has."""
    ((place,),) = pair.first.ask("select pg_current_wal_lsn()::text")
    while pair.second.ask("select pg_last_wal_replay_lsn() >= %s::pg_lsn", place) != [(True,)]:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
