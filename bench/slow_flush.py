"""Paced publishes on a slow disk, alone and beside the gossip of a peer.

A library that is loaded before all others delays every ``fdatasync`` of the node's Postgres by
``--flush_ms``. `RATE` messages a second are published one by one for ``--messages`` messages: at
first all at the node with the slow disk, then half of them there and half at its peer, which sends
them on. Printed is how many were acknowledged within `PATIENCE_S`, the latency of those at the slow
node, and the messages of one commit of clients and of gossip.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc

from bench.data import Row, publish_request, rows
from bench.support import Bench, bench_node_on, options, report, used
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.fleet import exchanging

RATE: Final = 80
PATIENCE_S: Final = 10.0
_OPEN: Final = ("--max-clock-drift", "off")
_COMMITS: Final = "select count(*), coalesce(sum(messages), 0)::bigint from storenode.commits"
_SOURCE: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int file) {
    static int (*flush)(int);
    if (!flush) flush = (int (*)(int)) dlsym(RTLD_NEXT, "fdatasync");
    usleep(%d);
    return flush(file);
}
"""


def delaying_library(directory: Path, flush_ms: int) -> Path:
    """Compile the library that delays ``fdatasync``."""
    source, library = directory / "delay.c", directory / "delay.so"
    source.write_text(_SOURCE % (1_000 * flush_ms))
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


async def paced(bench: Bench, data: Sequence[Row], rate: float) -> list[float | None]:
    """Publish one by one at a rate: the seconds that each took, None where it failed."""
    began_s = time.monotonic()
    async with grpc.aio.insecure_channel(bench.node.listen) as channel:
        stub = StoreStub(channel)

        async def publish(row: Row, start_s: float) -> float | None:
            await asyncio.sleep(start_s - time.monotonic())
            try:
                await stub.Publish(publish_request([row]), timeout=PATIENCE_S)
            except grpc.aio.AioRpcError:
                return None
            return time.monotonic() - start_s

        return await asyncio.gather(
            *(publish(row, began_s + number / rate) for number, row in enumerate(data))
        )


def measure(name: str, slow: Bench, loads: Sequence[tuple[Bench, Sequence[Row], float]]) -> None:
    """Publish all loads at the same time, the first of them at the slow node; print a line."""

    async def all_loads() -> list[list[float | None]]:
        return await asyncio.gather(*(paced(*load) for load in loads))

    ((commits, messages),) = slow.connection.execute(_COMMITS).fetchall()
    before = used(slow)
    at_slow, *_ = asyncio.run(all_loads())
    spent = used(slow).since(before, len(at_slow))
    ((commits_after, messages_after),) = slow.connection.execute(_COMMITS).fetchall()
    taken = sorted(each for each in at_slow if each is not None)
    report(
        benchmark="slow_flush",
        load=name,
        messages=len(at_slow),
        acknowledged=len(taken),
        p50_ms=1_000 * taken[len(taken) // 2],
        p99_ms=1_000 * taken[len(taken) * 99 // 100],
        messages_per_commit=(messages_after - messages) / max(1, commits_after - commits),
        node_cpu_us=spent["node_cpu_us"],
        postgres_cpu_us=spent["postgres_cpu_us"],
    )


def main() -> None:
    """Measure both loads."""
    given = options(__doc__, 550, flush_ms=50)
    count: int = given.messages
    data = rows(2 * count)
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory, ExitStack() as stack:
        # Where this runs as root, Postgres is another user, who must be able to read it.
        Path(directory).chmod(0o755)
        library = delaying_library(Path(directory), given.flush_ms)
        slow = stack.enter_context(
            bench_node_on(Path(directory, "slow"), *_OPEN, LD_PRELOAD=str(library))
        )
        measure("alone", slow, [(slow, data[:count], RATE)])
        peer = stack.enter_context(
            bench_node_on(Path(directory, "peer"), *_OPEN, "--peer", slow.node.peer)
        )
        exchanging(peer.node, 1)
        # From the future of the first load, so that all are new.
        here, there = data[count::2], data[count + 1 :: 2]
        measure("with gossip", slow, [(slow, here, RATE / 2), (peer, there, RATE / 2)])


if __name__ == "__main__":
    main()
