"""Look-ups by hash: pages of 100 hashes, and single ones beside an empty unary call.

Pages of 100: one client in turn with psycopg on a plain table whose primary key is the hash,
with a prepared ``= any(...)``; the client parses every message. Single look-ups: eight concurrent
clients, each with a connection of its own, against ``grpc.health.v1.Health/Check`` on the same
server, with the same clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import grpc

from bench.data import rows
from bench.support import PLAIN_COLUMNS, Bench, bench_node, load, options, report, seconds
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

PER_REQUEST = 100
REQUESTS = 1_000
CLIENTS = 8
CALLS_PER_CLIENT = 500
ROUNDS = 3
QUERY = "/storenode.v1.Store/Query"
HEALTH = "/grpc.health.v1.Health/Check"
_BASELINE = f"select {PLAIN_COLUMNS} from plain where hash = any(%s)"


def batched_node(bench: Bench, wanted: Sequence[Sequence[bytes]]) -> None:
    """Measure one client that sends one request after the other."""
    with bench.channel() as channel:
        query = StoreStub(channel).Query
        for group in wanted:
            response = query(
                StoreQueryRequest(
                    message_hashes=group, include_data=True, pagination_limit=PER_REQUEST
                )
            )
            assert len(response.messages) == PER_REQUEST, response.status_desc


def batched_psycopg(bench: Bench, wanted: Sequence[Sequence[bytes]]) -> None:
    """Measure the same requests on the plain table."""
    with bench.connection.cursor(binary=True) as cursor:
        for group in wanted:
            found = cursor.execute(_BASELINE, (list(group),), prepare=True).fetchall()
            assert len(found) == PER_REQUEST


async def latencies(bench: Bench, method: str, requests: Callable[[], bytes]) -> list[float]:
    """Return the seconds of each call of eight concurrent clients, ascending."""
    taken: list[float] = []

    async def client() -> None:
        async with grpc.aio.insecure_channel(bench.node.listen) as channel:
            call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
            await call(requests())
            for _ in range(CALLS_PER_CLIENT):
                request = requests()
                start = time.perf_counter()
                await call(request)
                taken.append(time.perf_counter() - start)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return sorted(taken)


def single(bench: Bench, digests: Sequence[bytes]) -> dict[str, float]:
    """Return the median milliseconds of single look-ups and of empty calls."""
    generator = random.Random(3)

    def lookup() -> bytes:
        return StoreQueryRequest(
            message_hashes=[generator.choice(digests)], include_data=True
        ).SerializeToString()

    empty, found = [], []
    for _ in range(ROUNDS):
        empty.append(asyncio.run(latencies(bench, HEALTH, bytes)))
        found.append(asyncio.run(latencies(bench, QUERY, lookup)))
    return {
        "empty_p50_ms": _quantile(empty, 0.5),
        "query_p50_ms": _quantile(found, 0.5),
        "empty_p99_ms": _quantile(empty, 0.99),
        "query_p99_ms": _quantile(found, 0.99),
    }


def _quantile(rounds: Sequence[Sequence[float]], share: float) -> float:
    values = sorted(taken[int(share * len(taken))] * 1e3 for taken in rounds)
    return values[len(values) // 2]


def main() -> None:
    """Measure; two lines."""
    count = options(__doc__).messages
    with bench_node("--max-clock-drift", "off") as bench:
        digests = load(bench, rows(count), "hash")
        generator = random.Random(2)
        wanted = [generator.sample(digests, PER_REQUEST) for _ in range(REQUESTS)]
        pairs = [
            (
                seconds(lambda: batched_psycopg(bench, wanted)),
                seconds(lambda: batched_node(bench, wanted)),
            )
            for _ in range(ROUNDS)
        ]
        singles = single(bench, digests)
    baseline, node = (min(column) for column in zip(*pairs, strict=True))
    report(
        benchmark="query_100_hashes",
        messages=count,
        node_per_s=REQUESTS / node,
        psycopg_per_s=REQUESTS / baseline,
        ratio=baseline / node,
    )
    report(
        benchmark="query_one_hash",
        messages=count,
        clients=CLIENTS,
        ratio=singles["query_p50_ms"] / singles["empty_p50_ms"],
        **singles,
    )


if __name__ == "__main__":
    main()
