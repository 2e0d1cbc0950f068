"""Lookups by hash: pages of 100 hashes, and single ones beside an empty unary call.

Pages of 100: one client in turn with psycopg on a plain table whose primary key is the hash,
with a prepared ``= any(...)``; the client parses every message. Single lookups: eight concurrent
clients, each with a connection of its own, against ``grpc.health.v1.Health/Check`` on the same
server, with the same clients. Empty calls are set against a handler of grpc.aio that does nothing,
in a process of its own, by the processor time of the server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import grpc
import psutil

from bench.data import rows
from bench.pipeline.cpu import own_cpu_s
from bench.support import PLAIN_COLUMNS, Bench, bench_node, load, options, report, seconds
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest

PER_REQUEST = 100
REQUESTS = 1_000
CLIENTS = 8
CALLS_PER_CLIENT = 500
ROUNDS = 5
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


async def latencies(address: str, method: str, requests: Callable[[], bytes]) -> list[float]:
    """Return the milliseconds of each call of eight concurrent clients, ascending."""
    taken: list[float] = []

    async def client() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(method, request_serializer=None, response_deserializer=None)
            await call(requests())
            for _ in range(CALLS_PER_CLIENT):
                request = requests()
                start = time.perf_counter()
                await call(request)
                taken.append((time.perf_counter() - start) * 1e3)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return sorted(taken)


def serve_bare(port: Connection) -> None:
    """Serve empty calls by a handler that does nothing."""

    async def answer(_request: bytes, _context: object) -> bytes:
        return b"\x08\x01"

    async def serve() -> None:
        server: Any = grpc.aio.server()  # its stubs are older
        handlers = {"Call": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_registered_method_handlers("bare", handlers)
        port.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


def single(bench: Bench, digests: Sequence[bytes]) -> dict[str, float]:
    """Return the times of single lookups, empty calls and bare ones: medians of some rounds."""
    generator, figures = random.Random(3), defaultdict[str, list[float]](list)

    def lookup() -> bytes:
        return StoreQueryRequest(
            message_hashes=[generator.choice(digests)], include_data=True
        ).SerializeToString()

    here, there = Pipe()
    bare = get_context("spawn").Process(target=serve_bare, args=(there,), daemon=True)
    bare.start()
    node = psutil.Process(bench.node.process.pid), bench.node.listen
    sides = {
        "bare": (psutil.Process(bare.pid), f"127.0.0.1:{here.recv()}", "/bare/Call", bytes),
        "empty": (*node, HEALTH, bytes),
        "query": (*node, QUERY, lookup),
    }
    for _ in range(ROUNDS):
        for side, (process, address, method, requests) in sides.items():
            before_s = own_cpu_s(process)
            taken = asyncio.run(latencies(address, method, requests))
            figures[f"{side}_cpu_us"].append((own_cpu_s(process) - before_s) / len(taken) * 1e6)
            figures[f"{side}_p50_ms"].append(taken[len(taken) // 2])
            figures[f"{side}_p99_ms"].append(taken[len(taken) * 99 // 100])
    bare.kill()
    return {name: median(values) for name, values in figures.items()}


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
        ratio_empty_cpu=singles["empty_cpu_us"] / singles["bare_cpu_us"],
        **singles,
    )
