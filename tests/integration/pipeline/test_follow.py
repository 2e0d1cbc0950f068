"""Following: what is committed is archived step by step, in whichever order it was begun."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.pipeline import archive as archiving
from store.pipeline import delta
from store.pipeline.archive import ArchiveJob, Archiver
from store.pipeline.database import connected, lock_archiving
from store.pipeline.delta import DeltaArchive
from tests.integration.pipeline.world import (
    DAY,
    TODAY,
    held,
    in_lake,
    marks,
    more,
    plain,
    published,
)
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.node import running
from tests.integration.storage.world import random_batch


def test_each_step_archives_what_was_committed_since_the_last_one(
    spark: SparkSession, url: str, lake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ArchiveJob(url, DeltaArchive(str(lake_path)))
    with connected(url) as connection:
        lock_archiving(connection)
        archiver = Archiver(spark, job, connection)
        assert archiver.step().messages == 0
        before = len(marks(url))
        more(url, *(plain(90_000 + number, TODAY - DAY + number) for number in range(9)))
        assert [archiver.step().messages for _ in range(2)] == [9, 9]
        asyncio.run(late_transaction(url))
        assert archiver.step().messages == 22
        assert in_lake(lake_path) == sorted(held(url))
        assert archiver.report.sound
        assert len(marks(url)) == before > 0
        files = len(published(lake_path))
        monkeypatch.setattr(archiving, "_COMPACT_EVERY_S", 0)
        monkeypatch.setattr(delta, "COMPACT_AT_FILES", 2)
        more(url, plain(95_000, TODAY - DAY))
        assert archiver.step().messages == 23
        assert archiver.report.compacted_files >= 2
        assert len(published(lake_path)) < files + 1
    assert in_lake(lake_path) == sorted(held(url))


async def late_transaction(url: str) -> None:
    """Store messages in a transaction that begins first and commits last."""
    rng = random.Random(20261122)
    async with running(url) as node:
        slow = LongTransaction(node)
        await slow.open([random_batch(rng, 5, [TODAY - DAY])])
        await node.store(random_batch(rng, 8, [TODAY - DAY]))
        await slow.commit()
