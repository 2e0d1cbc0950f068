"""Publishers, partitions and retention at work on one database at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from store.db.check import check
from store.db.maintenance.retention import prune
from store.db.pool import Database
from store.db.schema import partitions
from store.db.schema.partitions import PartitionMap, ensure_ahead
from store.db.writing.writer import DatabaseWriter
from store.domain.partitioning import DAY_NS
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.messages.record import RecordBatch
from tests.integration.database.rows import MONTH_NS, NOW, horizon, opened, values
from tests.integration.database.sample_messages import admitted, plain, sds

NODES = 3
BATCHES = 25
BATCH_MESSAGES = 40
STORED_DAYS = 12


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let publishers make their first partitions for longer than others would wait."""
    monkeypatch.setattr(partitions, "CREATE_LOCK_TIMEOUT_MS", 60_000)


def batches(node: int) -> Iterator[RecordBatch]:
    """Yield batches whose messages lie on all days that are stored at first, a few of them SDS."""
    for number in range(BATCHES):
        first = (node * BATCHES + number) * BATCH_MESSAGES
        yield admitted(
            [
                (sds if each % 5 == 0 else plain)(each, NOW - each % STORED_DAYS * DAY_NS - each)
                for each in range(first, first + BATCH_MESSAGES)
            ]
        )


async def publish(url: str, node: int) -> list[RecordBatch]:
    """Return what one node stored."""
    database = await Database.open(url)
    writer = DatabaseWriter(database, PartitionMap(lambda: NOW, MONTH_NS))
    await writer.start()
    stored = []
    try:
        for batch in batches(node):
            assert all(await writer.store(batch, Source.CLIENT))
            stored.append(batch)
    finally:
        await writer.stop()
        await database.close()
    return stored


async def prune_step_by_step(url: str, publishers: asyncio.Future[list[list[RecordBatch]]]) -> int:
    """Keep less and less, down to two days, while publishers run; the number of drops."""
    drops = rounds = 0
    async with await opened(url) as connection:
        while rounds < STORED_DAYS or not publishers.done():
            age_days = max(2, STORED_DAYS - rounds)
            policy = RetentionPolicy(age_ns=age_days * DAY_NS)
            # Every other drop may wait for long: some succeed however slow publishers are.
            timeout_ms = 60_000 if rounds % 2 else 50
            report = await prune(connection, policy, NOW, lock_timeout_ms=timeout_ms)
            await ensure_ahead(connection, NOW, MONTH_NS)
            drops += len(report.dropped)
            rounds += 1
    return drops


async def test_nothing_that_is_kept_is_lost(database_url: str) -> None:
    publishers = asyncio.ensure_future(
        asyncio.gather(*(publish(database_url, node) for node in range(NODES)))
    )
    drops = await prune_step_by_step(database_url, publishers)
    stored = await publishers
    async with await opened(database_url) as connection:
        kept_from = await horizon(connection)
        remaining = set(await values(connection, "select hash from storenode.messages"))
    wanted = {
        digest
        for node in stored
        for batch in node
        for ts, digest in zip(batch.timestamps, batch.hashes, strict=True)
        if ts >= kept_from
    }
    assert len(stored) == NODES
    assert drops > 0
    assert wanted != set()
    assert wanted <= remaining
    report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW)
    assert report.findings == []
