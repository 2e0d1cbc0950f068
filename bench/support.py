"""Support for benchmarks: a node, its database, timing, and the one line of output."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import psycopg

from bench.data import PUBSUB_TOPIC, Row, batches, hashes, publish_request
from bench.pipeline.cpu import descendants_cpu_s, own_cpu_s
from store.embedded import running_url
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResult
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.node import NodeProcess, running_node

_PLAIN_TABLE = """
create table plain (ts bigint not null, hash bytea not null, pubsub_topic text not null,
                    content_topic text not null, payload bytea not null, primary key ({key}))
"""
PLAIN_COLUMNS = "ts, hash, pubsub_topic, content_topic, payload"
_COPY_PLAIN = f"copy plain ({PLAIN_COLUMNS}) from stdin (format binary)"


@dataclass(frozen=True, slots=True)
class Bench:
    """A running node and a connection to its database for the baselines."""

    node: NodeProcess
    url: str
    connection: psycopg.Connection

    def channel(self) -> grpc.Channel:
        """Open a client's channel to the node."""
        return grpc.insecure_channel(self.node.listen)


@contextmanager
def bench_node(*args: str) -> Iterator[Bench]:
    """Start a node on a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory,
        bench_node_on(Path(directory, "node"), *args) as bench,
    ):
        yield bench


@contextmanager
def bench_node_on(data_dir: Path, *args: str) -> Iterator[Bench]:
    """Start a node on a data directory, which stays."""
    options = ("--log-level", "warning", "--sync-interval", "0", *args)
    with running_node(data_dir, *options) as node:
        url = running_url(data_dir)
        assert url is not None
        with psycopg.connect(url, autocommit=True) as connection:
            yield Bench(node, url, connection)


def options(description: str | None, messages: int = 500_000, **more: int) -> argparse.Namespace:
    """Read the command line of a benchmark: numbers by name, with what they are by default."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in {"messages": messages, **more}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    return parser.parse_args()


def copy_rows(bench: Bench, data: list[Row], digests: list[bytes]) -> None:
    """Copy rows into the plain table one by one; the commit is part of it."""
    with bench.connection.cursor() as cursor, cursor.copy(_COPY_PLAIN) as copy:
        copy.set_types(["int8", "bytea", "text", "text", "bytea"])
        for row, digest in zip(data, digests, strict=True):
            copy.write_row((row.timestamp, digest, PUBSUB_TOPIC, row.content_topic, row.payload))


def make_plain(bench: Bench, key: str) -> None:
    """Make an empty plain table with this primary key, in the place of an earlier one."""
    bench.connection.execute("drop table if exists plain")
    bench.connection.execute(_PLAIN_TABLE.format(key=key))


def load(bench: Bench, data: list[Row], key: str) -> list[bytes]:
    """Fill the node and a plain table with this primary key alike; the hash of each row."""
    publish(bench, data)
    digests = hashes(data)
    make_plain(bench, key)
    copy_rows(bench, data, digests)
    settle(bench)
    return digests


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time."""

    client: float
    node: float
    postgres: float

    def since(self, earlier: Used, count: int) -> dict[str, float]:
        """Return the microseconds per message since an earlier reading, by process."""
        return {
            f"{name}_cpu_us": (getattr(self, name) - getattr(earlier, name)) / count * 1e6
            for name in ("client", "node", "postgres")
        }


def used(node: NodeProcess) -> Used:
    """Read the processor time of this process, a node and its Postgres.

    Unlike the time that passes, it hardly depends on what else the machine does.
    """
    pid = node.process.pid
    client_s, node_s = (own_cpu_s(psutil.Process(each)) for each in (None, pid))
    return Used(client_s, node_s, descendants_cpu_s(pid))


def publish(bench: Bench, data: list[Row]) -> None:
    """Publish rows through ``PublishStream`` and make sure that all are stored."""
    with bench.channel() as channel:
        publish_requests(channel, map(publish_request, batches(data)), len(data))


def publish_requests(
    channel: grpc.Channel, requests: Iterable[PublishRequest], expected: int
) -> None:
    """Publish requests through ``PublishStream``; ``expected`` messages must be stored."""
    stored = 0
    for response in StoreStub(channel).PublishStream(iter(requests)):
        outcomes = [result.outcome for result in response.results]
        stored += outcomes.count(PublishResult.STORED)
    assert stored == expected, f"{stored} of {expected} messages were stored"


def settle(bench: Bench) -> None:
    """Let the database finish what loading left behind, so that both sides start alike."""
    bench.connection.execute("vacuum (analyze)")
    bench.connection.execute("checkpoint")


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that a piece of work takes."""
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
