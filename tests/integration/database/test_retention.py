"""Retention in a real database: partitions go, of every table, and no query waits for long."""

from __future__ import annotations

import asyncio
from typing import Any

from psycopg import AsyncConnection

from store.db.partitions import ensure_ahead, ensure_for, read_catalog
from store.db.retention import PruneReport, prune
from store.db.statements import COARSE_TABLES
from store.domain.partitioning import COMMITS_PER_PARTITION, DAY_NS
from store.domain.retention import RetentionPolicy
from tests.integration.database.rows import (
    NOW,
    TODAY,
    Connection,
    commit,
    counted,
    counter_of,
    horizon,
    insert,
    names,
    opened,
    until_some,
    values,
)

TWO_DAYS = RetentionPolicy(age_ns=2 * DAY_NS)
STORED_DAYS = 9


async def fill_database(url: str) -> None:
    """Use a database for some days, with one coarse partition a day."""
    async with await opened(url) as connection:
        for days in range(STORED_DAYS, -1, -1):
            now = NOW - days * DAY_NS
            await ensure_ahead(connection, now, DAY_NS)
            await insert(connection, [now])
            await prune(connection, RetentionPolicy(age_ns=5 * DAY_NS), now)


def dropped(report: PruneReport, table: str) -> list[str]:
    return [each.partition.name for each in report.dropped if each.partition.table == table]


async def stored(connection: Connection) -> list[int]:
    return await values(connection, "select ts from storenode.messages order by ts")


async def test_by_age_partitions_of_every_table_go_as_a_dry_run_says(
    connection: Connection,
) -> None:
    assert await stored(connection) == [NOW - days * DAY_NS for days in (5, 4, 3, 2, 1, 0)]
    before = await read_catalog(connection, with_sizes=True)
    reported = await prune(connection, TWO_DAYS, NOW, dry_run=True)
    assert await read_catalog(connection, with_sizes=True) == before
    report = await prune(connection, TWO_DAYS, NOW)
    assert reported == report
    assert dropped(report, "messages") == [f"messages_202611{day}" for day in (15, 16, 17)]
    assert {each.reason.value for each in report.dropped} == {"age", "behind the horizon"}
    assert before.horizon_ns < report.horizon_ns == TODAY - 2 * DAY_NS
    assert await horizon(connection) == report.horizon_ns
    assert report.problems == ()
    assert report.freed_bytes > 0
    assert await stored(connection) == [NOW - 2 * DAY_NS, NOW - DAY_NS, NOW]
    for table in COARSE_TABLES:
        assert dropped(report, table) != []
        wholly_behind = [
            each
            for each in (await read_catalog(connection, with_sizes=True)).of(table)
            if each.bounds.high <= report.horizon_ns
        ]
        assert len(wholly_behind) == 1
    again = await prune(connection, TWO_DAYS, NOW)
    assert (again.dropped, again.problems) == ((), ())
    # Nothing is deleted by rows.
    await connection.execute("create table storenode.marker ()")
    await connection.execute("insert into storenode.marker default values")
    await counted(connection, "n_tup_ins", "marker", 1)
    assert await counter_of(connection, "n_tup_del", "") == 0
    # What was restored behind the horizon goes again, and the horizon never falls.
    old = NOW - 300 * DAY_NS
    await ensure_for(connection, [old], NOW, DAY_NS)
    await insert(connection, [old])
    assert (await prune(connection, RetentionPolicy(), NOW)).dropped == ()
    await connection.execute("update storenode.store set horizon_ns = %s", (NOW - DAY_NS,))
    assert dropped(await prune(connection, TWO_DAYS, NOW), "messages") == ["messages_2026m01"]
    assert (await stored(connection))[0] == NOW - 2 * DAY_NS
    assert await horizon(connection) == NOW - DAY_NS


async def test_by_size_the_oldest_go_and_never_the_current(connection: Connection) -> None:
    fine = (await read_catalog(connection, with_sizes=True)).of("messages")
    size = (await read_catalog(connection, with_sizes=True)).size_bytes
    report = await prune(connection, RetentionPolicy(size_bytes=size - 1), NOW)
    assert dropped(report, "messages") == [fine[0].name]
    assert report.dropped[0].reason.value == "size"
    everything = await prune(connection, RetentionPolicy(size_bytes=1), NOW)
    assert "messages_20261120" in await names(connection, "messages")
    assert await stored(connection) == [NOW]
    assert await horizon(connection) == TODAY
    assert len(everything.problems) == 1
    assert "raise the limit" in everything.problems[0]


async def test_queries_wait_for_a_drop_no_longer_than_its_limit_and_it_is_put_off(
    database_url: str, connection: Connection
) -> None:
    before = await read_catalog(connection, with_sizes=True)
    async with (
        await AsyncConnection.connect(database_url) as holder,
        await opened(database_url) as other,
        await opened(database_url) as watcher,
    ):
        # The last table that is locked is the one that is kept: all others are held meanwhile.
        await holder.execute("lock table storenode.topics in access share mode")
        drop = asyncio.create_task(prune(connection, TWO_DAYS, NOW, lock_timeout_ms=1_000))
        await wait_for_lock(watcher, "topics")
        # The holder does not let go: what ends the wait is the limit.
        await other.execute("select count(*) from storenode.messages")
        report = await drop
        assert "messages_20261115" in report.problems[0]
        assert report.dropped == ()
        assert await read_catalog(connection, with_sizes=True) == before
    assert (await prune(connection, TWO_DAYS, NOW)).problems == ()


async def wait_for_lock(watcher: AsyncConnection[Any], table: str) -> None:
    """Return when a session waits for an exclusive lock on a table."""
    waiting = (
        "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock'"
        f" and relation = 'storenode.{table}'::regclass"
    )
    await until_some(watcher, waiting)


async def test_two_nodes_prune_at_once(database_url: str, connection: Connection) -> None:
    async def one() -> PruneReport:
        async with await opened(database_url) as own:
            return await prune(own, TWO_DAYS, NOW, lock_timeout_ms=10_000)

    reports = await asyncio.gather(*(one() for _ in range(4)))
    everything = [each.partition.name for report in reports for each in report.dropped]
    assert len(everything) == len(set(everything))
    assert [report.problems for report in reports] == [()] * 4
    assert {"messages_20261115", "messages_20261116"} <= set(everything)
    assert await horizon(connection) == TODAY - 2 * DAY_NS


async def test_commits_go_when_all_they_are_about_is_behind_the_horizon(
    connection: Connection,
) -> None:
    await ensure_for(connection, [NOW], NOW, DAY_NS)
    await commit(connection, 1, TODAY - 3 * DAY_NS)
    await commit(connection, 2, TODAY - 2 * DAY_NS - 1)
    assert dropped(await prune(connection, TWO_DAYS, NOW), "commits") == []
    # A later commit is visible, so the first partition is complete.
    await commit(connection, COMMITS_PER_PARTITION, NOW)
    await commit(connection, 3, TODAY - 2 * DAY_NS)
    assert dropped(await prune(connection, TWO_DAYS, NOW), "commits") == [], "of what is stored"
    await connection.execute("delete from storenode.commits where position = 3")
    reported = await prune(connection, TWO_DAYS, NOW, dry_run=True)
    assert dropped(reported, "commits") == ["commits_0"]
    assert dropped(await prune(connection, TWO_DAYS, NOW), "commits") == ["commits_0"]
    assert await names(connection, "commits") == ["commits_1"]
