"""Bytes on disk per message, by table and index, before and after indexes are rebuilt.

Two stores, each with a week of messages up to two days ago, published in batches of 1,000:

- *uniform*: 200 random bytes on 50 content topics, in turn;
- *varied*: every second message an SDS message of one of many channels and senders, with two
  parents of which a tenth is not stored; five topics for eight messages.

Then what maintenance does to partitions that are over is done until nothing is left to do.
"""

from __future__ import annotations

import asyncio
import random
import time

from psycopg import AsyncConnection

from bench.data import PAYLOAD_BYTES, PUBSUB_TOPIC, Row, rows
from bench.support import bench_node, options, publish, report, seconds, settle
from store.db.condition import Sizes, find_bloated, read_sizes, rebuild
from storenode.message.hashing import message_hash
from storenode.sds.codec import encode

_DAY_NS = 86_400 * 10**9
_DAYS = 7
_MESSAGES_PER_CHANNEL = 8
_MISSING_SHARE = 0.1


def varied(count: int, start_ns: int, step_ns: int) -> list[Row]:
    """Generate messages on ``count * 5 // 8`` topics, in ``count // 8`` channels."""
    rng = random.Random(1)
    topics, channels = max(1, count * 5 // 8), max(1, count // _MESSAGES_PER_CHANNEL)
    tips: dict[int, list[tuple[str, bytes]]] = {}
    made = []
    for number in range(count):
        timestamp = start_ns + number * step_ns
        topic = f"/app/1/topic-{rng.randrange(topics)}/proto"
        payload = rng.randbytes(PAYLOAD_BYTES)
        if number % 2:
            channel, message_id = rng.randrange(channels), rng.randbytes(32).hex()
            known = tips.setdefault(channel, [])
            parents = [
                (rng.randbytes(32).hex(), rng.randbytes(32))
                if rng.random() < _MISSING_SHARE
                else each
                for each in known[-2:]
            ]
            sender = f"participant-{rng.randrange(max(1, count // 3))}"
            payload = encode(
                f"channel-{channel}",
                message_id,
                sender_id=sender,
                lamport=len(known) + 1,
                parents=parents,
                content=payload,
            )
            digest = message_hash(PUBSUB_TOPIC, payload, topic, None, timestamp)
            known.append((message_id, digest))
        made.append(Row(timestamp, topic, payload))
    return made


def read(url: str) -> Sizes:
    """Read the sizes of a node's tables."""

    async def sizes() -> Sizes:
        async with await AsyncConnection.connect(url, autocommit=True) as connection:
            return await read_sizes(connection)

    return asyncio.run(sizes())


async def _rebuild(url: str) -> None:
    tried = set[str]()
    async with await AsyncConnection.connect(url, autocommit=True) as connection:
        while found := await find_bloated(connection, time.time_ns(), tried):
            tried.add(found[0])
            await rebuild(connection, found[0])


def _report(store: str, step: str, sizes: Sizes, seconds_taken: float) -> None:
    parts = {
        f"{part.table}{' ' if part.part else ''}{part.part}": part.size_bytes / sizes.messages
        for part in sizes.parts
        if part.size_bytes > sizes.messages
    }
    total = sizes.total_bytes / sizes.messages
    report(store=store, step=step, total=total, seconds=seconds_taken, **parts)


def measure(store: str, data: list[Row]) -> None:
    """Fill, measure, rebuild, measure."""
    with bench_node("--max-clock-drift", "off") as bench:
        taken = seconds(lambda: publish(bench, data))
        settle(bench)
        _report(store, "published", read(bench.url), taken)
        taken = seconds(lambda: asyncio.run(_rebuild(bench.url)))
        settle(bench)
        _report(store, "rebuilt", read(bench.url), taken)


def main() -> None:
    """Measure both stores."""
    count = options(__doc__, 400_000).messages
    first_ns, step_ns = time.time_ns() - (2 + _DAYS) * _DAY_NS, _DAYS * _DAY_NS // count
    measure("uniform", rows(count, start_ns=first_ns, step_ns=step_ns))
    measure("varied", varied(count, first_ns, step_ns))
