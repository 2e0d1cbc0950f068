"""The database that the pipeline's benchmarks read: a week of messages, stored as nodes store them.

Eight shards, 50 content topics, random payloads of 200 bytes, as encrypted ones look. Every tenth
message is one of SDS, in one of 20 channels, with two parents. The messages go through the node's
own admission and writer: summaries, SDS metadata, indexes and partitions are those of a node.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from store.db.buckets import fold_until
from store.db.migrate import upgrade
from store.db.partitions import PartitionMap
from store.db.pool import Database
from store.db.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.ports import Source
from store.embedded import EmbeddedPostgres
from storenode.message.rules import Policy
from storenode.message.varint import delimited, varint
from storenode.sds import codec

DAYS: Final = 7
DAY_NS: Final = 86_400 * 10**9
SHARDS: Final = 8
TOPICS: Final = 50
PAYLOAD_BYTES: Final = 200
SDS_EVERY: Final = 10
CHANNELS: Final = 20
BATCH: Final = 10_000

_SETTINGS: Final = {"fsync": "off", "synchronous_commit": "off", "max_wal_size": "1GB"}
"""Loading is no part of any measure, and the loaded data are dropped."""

_POLICY: Final = Policy(max_drift_ns=None)
_SEED: Final = 6


@contextmanager
def filled_database(directory: Path, messages: int) -> Iterator[str]:
    """Start a Postgres server in a directory, fill it with messages, and yield its URL."""
    postgres = EmbeddedPostgres(directory, _SETTINGS)
    url = postgres.start()
    try:
        upgrade(url)
        asyncio.run(_fill(url, messages))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("vacuum (analyze)")
            connection.execute("checkpoint")
        yield url
    finally:
        postgres.stop()


def first_ns(now_ns: int | None = None) -> int:
    """Return the timestamp of the first message."""
    today = (time.time_ns() if now_ns is None else now_ns) // DAY_NS
    return (today - DAYS) * DAY_NS


def step_ns(messages: int) -> int:
    """Return the time from each message to the next, in nanoseconds."""
    return DAYS * DAY_NS // messages


async def _fill(url: str, messages: int) -> None:
    now_ns = time.time_ns()
    database = await Database.open(url)
    writer = DatabaseWriter(database, PartitionMap(lambda: now_ns))
    await writer.start()
    try:
        async with asyncio.TaskGroup() as group:
            waiting = asyncio.Semaphore(4)
            for batch in _batches(messages, now_ns):
                await waiting.acquire()
                admission = Admission(_POLICY, now_ns, Source.CLIENT)
                admission.admit(batch)
                task = group.create_task(writer.store(admission.admitted.batch, Source.CLIENT))
                task.add_done_callback(lambda _: waiting.release())
    finally:
        await writer.stop()
        await database.close()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await fold_until(connection)


def _batches(messages: int, now_ns: int) -> Iterator[list[bytes]]:
    """Return encoded ``WakuMessageAndTopic`` entries, ascending by time, over whole days."""
    generator = random.Random(_SEED)
    first, step = first_ns(now_ns), step_ns(messages)
    fields = [_fields(number) for number in range(SHARDS * TOPICS)]
    for start in range(0, messages, BATCH):
        numbers = range(start, min(start + BATCH, messages))
        yield [_entry(generator, number, first + number * step, fields) for number in numbers]


def _fields(number: int) -> tuple[bytes, bytes]:
    """Return the bytes that all messages of a topic share: before the time, and at the end."""
    shard, topic = number % SHARDS, number % TOPICS
    before = delimited(b"\x12", b"/bench/1/topic-%02d/proto" % topic) + b"\x18\x01\x50"
    return before, delimited(b"\x12", b"/waku/2/rs/1/%d" % shard)


def _entry(
    generator: random.Random, number: int, ts: int, fields: list[tuple[bytes, bytes]]
) -> bytes:
    before, after = fields[number % len(fields)]
    noise = generator.randbytes(PAYLOAD_BYTES)
    payload = noise if number % SDS_EVERY else _sds(number // SDS_EVERY, noise)
    return delimited(b"\x0a", delimited(b"\x0a", payload) + before + varint(2 * ts)) + after


def _sds(number: int, noise: bytes) -> bytes:
    """Return a payload of about `PAYLOAD_BYTES`; its parents are the two messages before it."""
    channel, lamport = number % CHANNELS, number // CHANNELS
    parents = [
        (f"{channel:02d}-{before:029d}", None) for before in range(max(0, lamport - 2), lamport)
    ]
    return codec.encode(
        f"channel-{channel:02d}",
        f"{channel:02d}-{lamport:029d}",
        sender_id=f"sender-{lamport % 100:02d}",
        lamport=lamport,
        parents=parents,
        content=noise[:64],
    )
