"""The memory of a node while it reconciles its whole history, by the number of messages held.

Two nodes, each on a database of its own with the same messages spread over three months, and 1,000
more on each side that the other lacks. `storenode sync` reconciles everything and transfers what
differs; meanwhile the resident memory of both node processes is sampled, without Postgres. Messages
are laid into the tables by Postgres itself, then summarised, so that large histories are made in
minutes. `--messages` takes several sizes; the one line has a figure for each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import psycopg

from bench.data import Row, batches, content_topic, publish_request
from bench.support import publish_requests, report
from store.db.pool import prepare
from store.db.schema.migrate import upgrade
from store.db.schema.partitions import ensure_for
from store.db.summaries.resummarize import EVERYTHING, resummarize
from storenode.message.limits import NS_PER_S
from tests.support.node import COMMAND, NodeProcess
from tests.support.postgres import PostgresServer

DAYS = 90
DAY_NS = 86_400 * NS_PER_S
DIFFERENCES = 1_000
SAMPLE_S = 0.02
SETTINGS = {"fsync": "off", "synchronous_commit": "off", "max_wal_size": "8GB"}
NODE = (
    "--retention", "off", "--max-clock-drift", "off", "--sync-interval", "0",
    "--log-level", "warning",
)  # fmt: skip

_FILL = """
with given as (
    select %(start)s::bigint + n * %(step)s::bigint as ts, sha256(n::text::bytea) as hash, n
    from generate_series(1::bigint, %(count)s::bigint) as n
), stored as (
    insert into storenode.messages (ts, hash, topic, batch, head, payload, tail)
    select ts, hash, %(topic)s::uuid, n / 1000, 'head', 'payload', 'tail' from given
)
insert into storenode.hashes (key, rest, ts, topic)
select encode(substr(hash, 1, 16), 'hex')::uuid, substr(hash, 17), ts, %(topic)s::uuid from given
"""
_TOPIC = "00000000-0000-0000-0000-000000000001"


@dataclass(frozen=True, slots=True)
class Measured:
    """Megabytes of the node that needs more of them, and what the reconciliation came to."""

    before_mb: float
    peak_mb: float
    seconds: float
    report: dict[str, object]


class Sampler:
    """The most memory that some processes, each by itself, have had while it runs."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.peak = self.now()

    def now(self) -> int:
        """Bytes of the largest one."""
        return max(process.memory_info().rss for process in self._processes)

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


async def fill(url: str, count: int, start_ns: int) -> None:
    """Lay ``count`` messages into a database, and summarise them."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await prepare(connection)
        days = [start_ns + day * DAY_NS for day in range(DAYS + 1)]
        await ensure_for(connection, days, start_ns + DAYS * DAY_NS, None)
        parameters = {
            "start": start_ns,
            "step": DAYS * DAY_NS // (count + 1),
            "count": count,
            "topic": _TOPIC,
        }
        await connection.execute(_FILL, parameters, prepare=False)
        await resummarize(connection, EVERYTHING)
        await connection.execute("vacuum (analyze)")


def copied(server: PostgresServer, name: str) -> str:
    """A copy of a database, as the store of another node."""
    copy = server.create_database(name)
    with psycopg.connect(server.url(copy), autocommit=True) as connection:
        connection.execute("update storenode.store set store_id = gen_random_uuid()")
    return copy


def differ(node: NodeProcess, start_ns: int, seed: int) -> None:
    """Publish what only this node holds."""
    dice = random.Random(seed)
    rows = [
        Row(start_ns + dice.randrange(DAYS * DAY_NS), content_topic(number), dice.randbytes(200))
        for number in range(DIFFERENCES)
    ]
    with grpc.insecure_channel(node.listen) as channel:
        publish_requests(channel, map(publish_request, batches(rows)), DIFFERENCES)


@contextmanager
def running(directory: Path, url: str, *args: str) -> Iterator[NodeProcess]:
    """A node on a database."""
    node = NodeProcess(directory, (*NODE, *args), database_url=url)
    try:
        yield node.start()
    finally:
        node.close()


def measure(server: PostgresServer, directory: Path, count: int) -> Measured:
    """Reconcile a history of some size."""
    directory.mkdir()
    start_ns = time.time_ns() - (DAYS + 1) * DAY_NS
    name = server.create_database()
    upgrade(server.url(name))
    asyncio.run(fill(server.url(name), count, start_ns))
    copy = copied(server, name)
    with (
        running(directory / "one", server.url(name)) as one,
        running(directory / "other", server.url(copy), "--peer", one.peer) as other,
    ):
        differ(one, start_ns, 1)
        differ(other, start_ns, 2)
        with Sampler([one.process.pid, other.process.pid]) as sampler:
            before = sampler.now()
            began = time.perf_counter()
            ended = subprocess.run(
                [COMMAND, "sync", "--json", "--from", "0", "--admin", other.admin],
                check=False,
                capture_output=True,
            )
            seconds = time.perf_counter() - began
    server.drop_database(name)
    server.drop_database(copy)
    assert ended.returncode == 0, ended
    found = json.loads(ended.stdout)
    moved = (int(found["messages_sent"]), int(found["messages_received"]))
    assert moved == (DIFFERENCES, DIFFERENCES), found
    return Measured(before / 1e6, sampler.peak / 1e6, seconds, found)


def main() -> None:
    """Measure each size; one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, nargs="+", default=[1_000_000, 2_000_000], help="sizes"
    )
    sizes = parser.parse_args().messages
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        server = PostgresServer(Path(directory, "postgres"), SETTINGS)
        server.start()
        try:
            found = [measure(server, Path(directory, str(size)), size) for size in sizes]
        finally:
            server.stop()
    report(
        benchmark="memory",
        messages=sizes,
        differences=2 * DIFFERENCES,
        before_mb=[round(each.before_mb, 1) for each in found],
        peak_mb=[round(each.peak_mb, 1) for each in found],
        growth=found[-1].peak_mb / found[0].peak_mb,
        seconds=[round(each.seconds, 2) for each in found],
        round_trips=[each.report.get("round_trips") for each in found],
    )


if __name__ == "__main__":
    main()
