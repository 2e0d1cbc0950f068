"""Retention that drops only what an archive holds, whatever arrives meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from store.db.maintenance.retention import PruneReport, prune
from store.db.summaries.fold import fold_until
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.node import Node
from tests.integration.storage.summaries import assert_folded, assert_true
from tests.integration.storage.world import DAY, NOW, random_batch

SEED = 20261122
PATIENCE_S = 90.0
TODAY = NOW // DAY * DAY
ARCHIVED_ONLY = RetentionPolicy(age_ns=2 * DAY, requires_archive=True)
SPREAD = [TODAY - days * DAY + hour * DAY // 24 for days in range(6) for hour in (1, 9)]

NOTE_ALL = """
insert into storenode.archived (start_ns, count, x0, x1, x2, x3, position, archive)
select start_ns, count, x0, x1, x2, x3, 1, 'somewhere' from storenode.buckets
where level = 1 and start_ns < %s
on conflict (start_ns) do update
set count = excluded.count, x0 = excluded.x0, x1 = excluded.x1, x2 = excluded.x2,
    x3 = excluded.x3
"""

Connection = AsyncConnection[Any]


@pytest.fixture
async def connection(node: Node) -> AsyncIterator[Connection]:
    """Open a connection to a database with two messages or more in each of some hours."""
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 60, SPREAD))
    async with await node.database.connect() as opened:
        yield opened


def gone(report: PruneReport) -> list[str]:
    return [each.partition.name for each in report.dropped if each.partition.table == "messages"]


async def note(connection: Connection, before_ns: int = NOW) -> None:
    """Note hours as a job does that has archived them."""
    await fold_until(connection)
    await connection.execute(NOTE_ALL, (before_ns,))


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_is_not_archived_stays(connection: Connection, dry_run: bool) -> None:
    report = await prune(connection, ARCHIVED_ONLY, NOW, dry_run=dry_run)
    assert gone(report) == []
    (problem,) = report.problems
    assert problem.startswith("partition messages_20261115 stays, since ")
    assert "storenode pipeline archive" in problem
    await assert_true(connection)


@pytest.mark.parametrize("dry_run", [True, False])
async def test_what_is_archived_goes_up_to_what_is_not(
    connection: Connection, dry_run: bool
) -> None:
    await note(connection, TODAY - 4 * DAY + DAY // 24 + 1)
    report = await prune(connection, ARCHIVED_ONLY, NOW, dry_run=dry_run)
    assert gone(report) == ["messages_20261115"]
    (problem,) = report.problems
    assert problem.startswith("partition messages_20261116 stays, since it is not archived in full")
    assert "(hours not archived: 1, the first 2026-11-16T09:00Z)" in problem


async def test_all_that_is_archived_goes(connection: Connection) -> None:
    await note(connection)
    report = await prune(connection, ARCHIVED_ONLY, NOW)
    assert report.problems == ()
    assert gone(report) == ["messages_20261115", "messages_20261116", "messages_20261117"]
    await assert_folded(connection)


@pytest.mark.parametrize("folded", [True, False])
async def test_a_late_arrival_takes_the_mark_away(
    node: Node, connection: Connection, folded: bool
) -> None:
    rng = random.Random(SEED + 1)
    await note(connection)
    await node.store(random_batch(rng, 1, [SPREAD[-1]]), Source.TRANSFER)
    if folded:
        await fold_until(connection)
    report = await prune(connection, ARCHIVED_ONLY, NOW)
    assert gone(report) == []
    assert report.problems[0].startswith("partition messages_20261115 stays, since ")
    await note(connection)
    assert gone(await prune(connection, ARCHIVED_ONLY, NOW)) != []


async def test_a_message_that_arrives_while_the_drop_waits_is_not_dropped(
    node: Node, connection: Connection
) -> None:
    await note(connection)
    slow = LongTransaction(node)
    await slow.open([random_batch(random.Random(SEED + 2), 3, SPREAD[-2:])])
    async with asyncio.timeout(PATIENCE_S):
        pruning = asyncio.create_task(prune(connection, ARCHIVED_ONLY, NOW, lock_timeout_ms=60_000))
        await node.until_blocked("relation")
        await slow.commit()
        report = await pruning
    assert gone(report) == []
    assert report.problems[0].startswith("partition messages_20261115 stays, since ")
    stored = await node.value("select count(*) from storenode.messages where ts < %s", NOW)
    assert stored == 63
    await assert_true(connection)
