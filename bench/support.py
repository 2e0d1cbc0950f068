"""What every benchmark needs: a node, its database, timing, and the one line of output."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psycopg

from bench.data import Row, batches, publish_request
from store.embedded import running_url
from tests.support.node import NodeProcess, running_node
from wire.storenode.v1.store_pb2 import PublishResponse, PublishResult

MAX_RESPONSE_BYTES = 4 * 1024 * 1024
PUBLISH_STREAM = "/storenode.v1.Store/PublishStream"

PLAIN_TABLE = """
create table plain (ts bigint not null, hash bytea not null, pubsub_topic text not null,
                    content_topic text not null, payload bytea not null, {constraint})
"""
PLAIN_COLUMNS = "ts, hash, pubsub_topic, content_topic, payload"


@dataclass(frozen=True, slots=True)
class Bench:
    """A running node and a connection to its database for the baselines."""

    node: NodeProcess
    url: str
    connection: psycopg.Connection

    def channel(self) -> grpc.Channel:
        """A client's channel to the node."""
        return grpc.insecure_channel(self.node.listen)


@contextmanager
def bench_node(*args: str) -> Iterator[Bench]:
    """Start a node on a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        data_dir = Path(directory, "node")
        options = ("--log-level", "warning", "--sync-interval", "0", *args)
        with running_node(data_dir, *options) as node:
            url = running_url(data_dir)
            assert url is not None
            with psycopg.connect(url, autocommit=True) as connection:
                yield Bench(node, url, connection)


def options(description: str, messages: int = 500_000) -> argparse.Namespace:
    """Read the command line of a benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--messages", type=int, default=messages, help="default: %(default)s")
    return parser.parse_args()


def publish(bench: Bench, data: list[Row]) -> None:
    """Publish rows through ``PublishStream`` and make sure that all are stored."""
    with bench.channel() as channel:
        call = channel.stream_stream(
            PUBLISH_STREAM,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=PublishResponse.FromString,
        )
        stored = 0
        for response in call(publish_request(batch) for batch in batches(data)):
            stored += sum(result.outcome == PublishResult.STORED for result in response.results)
    assert stored == len(data), f"{stored} of {len(data)} messages were stored"


def settle(bench: Bench) -> None:
    """Let the database finish what loading left behind, so that both sides start alike."""
    bench.connection.execute("vacuum (analyze)")
    bench.connection.execute("checkpoint")


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(**figures: object) -> None:
    """Print the line of a benchmark; floats are rounded to four digits."""
    rounded = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in figures.items()
    }
    sys.stdout.write(json.dumps(rounded) + "\n")
    sys.stdout.flush()
