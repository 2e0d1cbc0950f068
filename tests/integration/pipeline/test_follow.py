"""Following: what is committed is archived as it comes, in whichever order it was begun."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from store.pipeline.archive import ArchiveJob
from store.pipeline.database import connected, lock_archiving
from store.pipeline.delta import DeltaArchive
from store.pipeline.follow import Following
from store.pipeline.stream import end_of_batch, spans_between
from tests.integration.pipeline.world import DAY, TODAY, held, in_lake, more, plain, rows
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.node import running
from tests.integration.storage.world import random_batch

PATIENCE_S = 240.0
POLL_S = 0.05


def wait_for(following: Following, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert following.query.isActive, following.query.exception()
        assert time.monotonic() < deadline, "it was not archived"
        time.sleep(POLL_S)


def test_what_is_published_is_archived_as_it_comes(
    spark: SparkSession, url: str, lake_path: Path
) -> None:
    job = ArchiveJob(url, DeltaArchive(str(lake_path)))
    with connected(url) as connection:
        lock_archiving(connection)
        following = Following(spark, job, connection, 1)
        more(url, *(plain(90_000 + number, TODAY - DAY + number) for number in range(9)))
        wait_for(following, lambda: following.so_far().published == 9)
        asyncio.run(late_transaction(url))
        wait_for(following, lambda: following.so_far().published == 22)
        following.stop()
        result = following.wait()
    assert in_lake(lake_path) == sorted(held(url))
    assert len(result.marked) > 0
    # What is replayed from a checkpoint, or was archived by another run, is not there twice.
    more(url, plain(95_000, TODAY - DAY))
    with connected(url) as connection:
        lock_archiving(connection)
        again = Following(spark, job, connection, 1)
        more(url, plain(95_001, TODAY - DAY + 1))
        wait_for(again, lambda: again.so_far().published == 2)
        again.stop()
        again.wait()
    assert in_lake(lake_path) == sorted(held(url))


async def late_transaction(url: str) -> None:
    """A transaction that begins first and commits last."""
    dice = random.Random(20261122)
    async with running(url) as node:
        slow = LongTransaction(node)
        await slow.open([random_batch(dice, 5, [TODAY - DAY])])
        await node.store(random_batch(dice, 8, [TODAY - DAY]))
        await slow.commit()


def test_a_batch_is_the_same_whenever_it_is_asked_for(url: str) -> None:
    with connected(url) as connection:
        ((newest,),) = rows(url, "select max(position) from storenode.commits")
        first = end_of_batch(connection, 0, 1)
        assert 0 < first < newest
        assert end_of_batch(connection, 0, 10**9) == newest
        assert end_of_batch(connection, newest, 10**9) == newest
        spans = spans_between(connection, 0, newest)
        assert sum(each.rows for each in spans) == len(held(url))
        assert all(any(each.low_ns <= ts < each.high_ns for each in spans) for ts, _ in held(url))
        more(url, plain(90_000, TODAY - DAY))
        assert end_of_batch(connection, 0, 1) == first
        assert spans_between(connection, 0, newest) == spans
        assert end_of_batch(connection, newest, 1) > newest
