"""The cost of a message to a node and to NATS JetStream, in processor time of all processes.

A storenode with its Postgres and the clients here; a NATS server with its clients, in one process
in Go, over loopback (`bench/peers/nats`, which is built with Go). Cases: one caller that waits for
each message to be on the disk; a hundred such callers; batches of 1,000; reading everything; a
hundred followers of one topic, publishing included. NATS syncs each message in the first two cases
and in `batches_synced`, and every two minutes in the others; a storenode always commits.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from bench.data import rows
from bench.readers import CROWD, MIB, Waiting, begin_all, grpc_follower, node_bytes, publish_timed
from bench.scan import scan
from bench.single import CALLERS, alone, at_once
from bench.support import Bench, bench_node, options, publish, report, used
from storenode.client.node import connect

PEER: Final = Path(__file__).parent / "peers" / "nats"
SINGLES: Final = 3_000
FOLLOWED: Final = 200
FOLLOWERS: Final = 100
_DISK: Final = """
select sum(pg_total_relation_size(oid))::float from pg_class
where relnamespace = 'storenode'::regnamespace and relkind = 'r'
"""


def peer_cases(count: int) -> dict[str, dict[str, float]]:
    """Build and run the peer; return its figures by case."""
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        build = ["go", "build", "-mod=readonly", "-o", f"{directory}/nats", "."]
        subprocess.run(build, cwd=PEER, check=True)
        run = [f"{directory}/nats", f"{directory}/data", str(count)]
        lines = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    return {each.pop("case"): each for each in map(json.loads, lines)}


def cost_us(bench: Bench, work: Callable[[], object], count: int) -> float:
    """Return the microseconds of all processes for each of ``count`` messages."""
    before = used(bench.node)
    work()
    return sum(used(bench.node).since(before, count).values())


async def follow(bench: Bench) -> float:
    """Return the microseconds of a delivery to one of `FOLLOWERS`, publishing included."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(connect(bench.node.listen)) for _ in range(FOLLOWERS)
        ]
        group, waiting = await stack.enter_async_context(asyncio.TaskGroup()), Waiting()
        work = [grpc_follower(each, CROWD, waiting) for each in clients]
        tasks = await begin_all(group, [*work], waiting)
        before = used(bench.node)
        await publish_timed(clients[0], CROWD, waiting, FOLLOWERS, FOLLOWED)
        spent = used(bench.node).since(before, FOLLOWED * FOLLOWERS)
        for task in tasks:
            task.cancel()
    return sum(spent.values())


def own_cases(count: int) -> dict[str, Any]:
    """Return the figures of a storenode by case."""
    data = rows(count + 2 * SINGLES)
    many, one, others = data[:count], data[count:-SINGLES], data[-SINGLES:]
    with bench_node("--max-clock-drift", "off") as bench:
        memory = node_bytes(bench) / MIB
        cases: dict[str, dict[str, float]] = {
            "empty": {"memory_mib": memory},
            "single": {"cpu_us": sum(alone(bench, one).values())},
            "callers": {"cpu_us": cost_us(bench, lambda: at_once(bench, others), SINGLES)},
            "batches": {"cpu_us": cost_us(bench, lambda: publish(bench, many), count)},
            "read": {"cpu_us": cost_us(bench, lambda: scan(bench, len(data)), len(data))},
            "follow": {"cpu_us": asyncio.run(follow(bench))},
        }
        ((stored,),) = bench.connection.execute(_DISK).fetchall()
    return {**cases, "disk": {"bytes": stored / (len(data) + FOLLOWED)}}


def main() -> None:
    """Measure both sides; a line for each case."""
    count = options(__doc__, 100_000).messages
    if shutil.which("go") is None:
        sys.exit("The peer is built with Go, which is not installed: install Go 1.26 or newer.")
    ours, theirs = own_cases(count), peer_cases(count)
    for case, figures in theirs.items():
        own = ours.get(case.removesuffix("_synced"), {})
        for name, value in figures.items():
            if name in own:
                report(
                    benchmark="nats",
                    case=case,
                    callers=CALLERS if case == "callers" else 1,
                    measure=name,
                    node=own[name],
                    nats=value,
                    ratio=own[name] / value,
                )
