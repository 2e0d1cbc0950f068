"""Single publishes on a disk whose flushes take 50 ms, with and without gossip from a peer.

Callers do not wait for each other: a message is due every so often, however long those before it
take. First all messages come from clients; then half of them from clients, and the other half, at
the same times, by gossip from a peer whose disk is as fast as the machine's. The ratio is that of
the medians. Postgres has a library preloaded that delays `fdatasync`, which a C compiler makes.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import grpc

from bench.data import Row, publish_request, rows
from bench.support import Bench, bench_node_on, options, report
from storenode.wire.storenode.v1.store_pb2 import PublishResult
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from tests.support.fleet import exchanging

if TYPE_CHECKING:
    from storenode.wire.storenode.v1.store_pb2_grpc import StoreAsyncStub

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int fdatasync(int fd)
{
    static int (*flush)(int);
    if (!flush)
        flush = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    usleep((useconds_t)atoi(getenv("SLOW_FLUSH_US")));
    return flush(fd);
}
"""
"""Delays each `fdatasync` by `SLOW_FLUSH_US` microseconds."""

DEADLINE_S: Final = 30.0
NS_PER_S: Final = 10**9
COMMITS: Final = "select count(*), coalesce(sum(messages), 0)::bigint from storenode.commits"
OPEN: Final = ("--max-clock-drift", "off")


def compiled(directory: Path) -> Path:
    """Make the library, where every account can read it."""
    library = directory / "slow_flush.so"
    directory.chmod(0o755)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return library


async def caller(stub: StoreAsyncStub, row: Row, due_s: float) -> float | None:
    """Publish a message when it is due; return the milliseconds it took, None if it failed."""
    await asyncio.sleep(due_s - time.perf_counter())
    began = time.perf_counter()
    try:
        response = await stub.Publish(publish_request([row]), timeout=DEADLINE_S)
    except grpc.aio.AioRpcError:
        return None
    stored = response.results[0].outcome == PublishResult.STORED
    return 1e3 * (time.perf_counter() - began) if stored else None


async def paced(nodes: Sequence[Bench], data: Sequence[Row], per_s: int) -> list[float | None]:
    """Publish at the nodes in turn; return what the messages of the first one took."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        channels = [grpc.aio.insecure_channel(each.node.listen) for each in nodes]
        stubs = [StoreStub(await stack.enter_async_context(each)) for each in channels]
        first_s = time.perf_counter() + 0.5
        tasks = [
            group.create_task(caller(stubs[number % len(stubs)], row, first_s + number / per_s))
            for number, row in enumerate(data)
        ]
    return [each.result() for each in tasks[:: len(nodes)]]


def measure(case: str, library: Path, count: int, per_s: int, flush_ms: int) -> float:
    """Measure a case on new nodes; return the median milliseconds of a publish."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name, ExitStack() as stack:
        slow = {"LD_PRELOAD": str(library), "SLOW_FLUSH_US": str(1_000 * flush_ms)}
        nodes = [stack.enter_context(bench_node_on(Path(name, "slow"), *OPEN, **slow))]
        if case == "peer":
            peer = ("--peer", nodes[0].node.peer)
            nodes.append(stack.enter_context(bench_node_on(Path(name, "peer"), *OPEN, *peer)))
            exchanging(nodes[0].node, 1)
        step_ns = NS_PER_S // per_s
        data = rows(count, start_ns=time.time_ns(), step_ns=step_ns)
        taken = asyncio.run(paced(nodes, data, per_s))
        ((commits, stored),) = nodes[0].connection.execute(COMMITS).fetchall()
    done = sorted(each for each in taken if each is not None)
    report(
        benchmark="slow_flush",
        case=case,
        flush_ms=flush_ms,
        messages_per_s=per_s,
        published=len(taken),
        acknowledged=len(done),
        p50_ms=median(done),
        p99_ms=done[len(done) * 99 // 100],
        messages_per_commit=int(stored) / int(commits),
    )
    return median(done)


def main() -> None:
    """Measure both cases."""
    given = options(__doc__, 1_600, rate=80, flush=50)
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as name:
        library = compiled(Path(name))
        alone, beside = (
            measure(case, library, given.messages, given.rate, given.flush)
            for case in ("alone", "peer")
        )
    report(benchmark="slow_flush", case="ratio", ratio=beside / alone)
