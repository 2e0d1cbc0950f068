"""Messages published one by one against bare inserts, each with a commit of its own.

The two take turns on one Postgres, a message each: a unary ``Publish`` that is answered when its
message is durable, and an insert of the same values into a plain table with the same primary key,
prepared, on a connection of its own from the same process. An empty unary call to the node stands
beside them: what gRPC costs before the node has done anything. Then one caller publishes alone, and
at the end a hundred callers publish at once, each its next message when the last one is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import grpc

from bench.data import PUBSUB_TOPIC, Row, hashes, publish_request, rows
from bench.support import Bench, bench_node, make_plain, options, report, seconds, used
from storenode.wire.storenode.v1.store_pb2 import PublishResult
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub

WARM_UP = 100
CALLERS = 100
_COMMITS = "select count(*) from storenode.commits"
_HEALTH = "/grpc.health.v1.Health/Check"
_INSERT = "insert into plain values (%b, %b, %s, %s, %b)"


def publish_one(stub: StoreStub, row: Row) -> None:
    """Publish a message, which must be stored."""
    (result,) = stub.Publish(publish_request([row])).results
    assert result.outcome == PublishResult.STORED


def insert_one(bench: Bench, row: Row, digest: bytes) -> None:
    """Insert a message into the plain table."""
    values = (row.timestamp, digest, PUBSUB_TOPIC, row.content_topic, row.payload)
    bench.connection.execute(_INSERT, values, prepare=True)


def in_turn(bench: Bench, data: list[Row]) -> dict[str, list[float]]:
    """Return the milliseconds of each publish, insert and empty call, ascending."""
    taken: dict[str, list[float]] = {"node": [], "insert": [], "empty": []}
    with bench.channel() as channel:
        stub, empty = StoreStub(channel), channel.unary_unary(_HEALTH, bytes, bytes)
        for row, digest in zip(data, hashes(data), strict=True):
            taken["node"].append(1e3 * seconds(partial(publish_one, stub, row)))
            taken["insert"].append(1e3 * seconds(partial(insert_one, bench, row, digest)))
            taken["empty"].append(1e3 * seconds(partial(empty, b"")))
    return {side: sorted(each[WARM_UP:]) for side, each in taken.items()}


def alone(bench: Bench, data: Sequence[Row]) -> dict[str, float]:
    """Return the processor time of messages of one caller, in microseconds by process."""
    before = used(bench.node)
    with bench.channel() as channel:
        stub = StoreStub(channel)
        for row in data:
            publish_one(stub, row)
    spent = used(bench.node).since(before, len(data))
    return {f"alone_{name}": value for name, value in spent.items()}


def at_once(bench: Bench, data: Sequence[Row]) -> None:
    """Publish with many callers, each on a connection of its own."""

    async def caller(share: Sequence[Row]) -> None:
        async with grpc.aio.insecure_channel(
            bench.node.listen, [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            stub = StoreStub(channel)
            for row in share:
                await stub.Publish(publish_request([row]))

    async def callers() -> None:
        await asyncio.gather(*(caller(data[first::CALLERS]) for first in range(CALLERS)))

    asyncio.run(callers())


def main() -> None:
    """Measure and print one line."""
    count = options(__doc__, 3_000).messages
    data = rows(3 * count + WARM_UP)
    first, second, third = data[: count + WARM_UP], data[-2 * count : -count], data[-count:]
    with bench_node("--max-clock-drift", "off") as bench:
        make_plain(bench, "ts, hash")
        taken = in_turn(bench, first)
        spent_alone = alone(bench, third)
        ((commits,),) = bench.connection.execute(_COMMITS).fetchall()
        before = used(bench.node)
        taken_s = seconds(partial(at_once, bench, second))
        spent = used(bench.node).since(before, count)
        ((commits_after,),) = bench.connection.execute(_COMMITS).fetchall()
    figures = {
        f"{side}_p{percent}_ms": values[len(values) * percent // 100]
        for side, values in taken.items()
        for percent in (50, 99)
    }
    report(
        benchmark="publish_singly",
        messages=count,
        ratio_p50=figures["node_p50_ms"] / figures["insert_p50_ms"],
        ratio_p99=figures["node_p99_ms"] / figures["insert_p99_ms"],
        callers=CALLERS,
        callers_per_s=count / taken_s,
        callers_per_core_s=1e6 / (spent["node_cpu_us"] + spent["postgres_cpu_us"]),
        messages_per_commit=count / (commits_after - commits),
        **figures,
        **spent,
        **spent_alone,
    )
