"""A gateway under many connections: its memory, and the processor time of relayed messages.

Measured are, in front of a real node:

- ``crowd``: so many connections at once, over TCP, each with a query; then all of them again;
- ``relay``: the processor time of a relayed message on its way into Postgres.

Names choose some of them. Each prints one line of JSON. Memory is that of the gateway's process.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil

from bench.pipeline.cpu import descendants_cpu_s, own_cpu_s
from bench.support import report
from store.gateway.gossipsub_wire import encode_message, encode_subscriptions
from store.gateway.relay import RELAY
from store.gateway.wire import delimited
from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.waku_client import MPLEX, YAMUX, WakuClient, line

MEASUREMENTS: Final = ("crowd", "relay")
MESSAGES: Final = 2_000
OPENING: Final = 32
"""Connections that are opened side by side."""
RELAY_TOPIC: Final = "/waku/2/rs/7/0"
RELAYED: Final = 20_000
RELAYED_BYTES: Final = 500
RELAYED_AT_ONCE: Final = 200
RELAYED_PER_S: Final = 5_000
"""Messages of an RPC, and of a second: below the limits of a relay peer."""
RELAY_TIMEOUT_S: Final = 120.0
MIB: Final = 1024 * 1024
SMALL: Final = StoreQueryRequest(include_data=True, pagination_limit=20)


def memory_mib(gateway: GatewayProcess) -> float:
    """Return the resident memory of the gateway, in MiB."""
    return round(gateway.resident_bytes() / MIB, 1)


async def crowd(gateway: GatewayProcess, count: int) -> None:
    """Measure connections at once, each with two queries."""
    address, before = gateway.address("tcp"), memory_mib(gateway)
    places = asyncio.Semaphore(OPENING)

    async def connect(number: int) -> WakuClient:
        async with places:
            return await WakuClient.connect(address, (MPLEX, YAMUX)[number % 2])

    began = time.monotonic()
    clients = await asyncio.gather(*map(connect, range(count)))
    opened = time.monotonic()
    open_connections = gateway.counted("open_connections")
    for _ in range(2):
        responses = await asyncio.gather(*(each.query(SMALL) for each in clients))
        assert all(len(each.messages) == 20 for each in responses)
    asked = time.monotonic()
    full = memory_mib(gateway)
    for each in clients:
        each.close()
    report(
        gateway="crowd",
        connections=count,
        open=open_connections,
        connections_per_s=round(count / (opened - began)),
        queries_per_s=round(2 * count / (asked - opened)),
        memory_mib={"before": before, "full": full},
    )


async def relay(gateway: GatewayProcess, node: NodeProcess) -> None:
    """Measure the processor time of relayed messages, which a peer sends at a steady rate."""

    def used_s() -> tuple[float, float, float]:
        pid = node.process.pid
        processes = own_cpu_s(psutil.Process(gateway.process.pid)), own_cpu_s(psutil.Process(pid))
        return *processes, descendants_cpu_s(pid)

    def encoded(number: int) -> bytes:
        message = WakuMessage(
            payload=number.to_bytes(8, "big").ljust(RELAYED_BYTES, b"x"),
            content_topic="/bench/1/relay/proto",
            timestamp=time.time_ns() + number,
        )
        return encode_message(RELAY_TOPIC, message.SerializeToString())

    async with WakuClient.connected(gateway.address("tcp")) as client:
        stream = client.open()
        greeting = line("/multistream/1.0.0") + line(RELAY)
        subscribed = delimited(encode_subscriptions([RELAY_TOPIC]))
        client.raw.send(client.data(stream, greeting + subscribed))
        before, began = used_s(), time.monotonic()
        for start in range(0, RELAYED, RELAYED_AT_ONCE):
            rpc = b"".join(map(encoded, range(start, start + RELAYED_AT_ONCE)))
            client.raw.send(client.data(stream, delimited(rpc)))
            await client.raw.writer.drain()
            await asyncio.sleep(RELAYED_AT_ONCE / RELAYED_PER_S)
        while gateway.counted('relay_messages_total{outcome="stored"}') < RELAYED:
            assert time.monotonic() - began < RELAY_TIMEOUT_S, "relayed messages are not stored"
            await asyncio.sleep(0.2)
        after = used_s()
    each_ms = [1_000 * (now - then) / RELAYED for then, now in zip(before, after, strict=True)]
    report(
        gateway="relay",
        messages=RELAYED,
        payload_bytes=RELAYED_BYTES,
        gateway_cpu_ms=each_ms[0],
        node_cpu_ms=each_ms[1],
        postgres_cpu_ms=each_ms[2],
    )


async def run(given: argparse.Namespace, gateway: GatewayProcess, node: NodeProcess) -> None:
    """Make the measurements that were asked for."""
    if "crowd" in given.names:
        await crowd(gateway, given.crowd)
    if "relay" in given.names:
        await relay(gateway, node)


def main() -> None:
    """Start a node and a gateway, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=MEASUREMENTS, help="what; default: all")
    parser.add_argument("--crowd", type=int, default=1_000, help="connections at once")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MEASUREMENTS):
        parser.error(f"nothing is called {min(unknown)!r}: {', '.join(MEASUREMENTS)}")
    with tempfile.TemporaryDirectory(prefix="storenode-bench-") as directory:
        folder = Path(directory)
        with running_node(folder / "node") as node:
            with Client([node.listen]) as client:
                client.publish_many(
                    Message(b"x" * 100, f"/bench/1/topic-{each % 4}/proto")
                    for each in range(MESSAGES)
                )
            options = *GENEROUS, "--cluster", "7", "--shard", "0", "--relay", "router"
            with running_gateway(folder / "gateway", node.listen, *options) as gateway:
                asyncio.run(run(given, gateway, node))
