"""Partitions are dropped, and clients publish, while two nodes reconcile and transfer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from store.db.maintenance import retention
from store.domain.retention import RetentionPolicy
from storenode.client.types import SyncReport
from tests.faults.syncing import PAYLOAD_BYTES, Two, asked, two_nodes, under_way
from tests.support.acknowledged import Ledger, Publisher, attempted
from tests.support.command import Command
from tests.support.fleet import NS_PER_S, publish
from tests.support.node import NodeProcess
from tests.support.peer_proxy import Moment, Way
from tests.support.postgres import PostgresServer

DAY_S = 86_400
DAYS = 20
LEFT_DAYS = 5
SHARED, MISSING = 1_000, 2_000
BATCHES = 10
FOREVER_NS = 2**62
HALF = MISSING * PAYLOAD_BYTES // 2
STEPS = [
    (15, "callee", Moment(Way.DOWN, 2, HALF)),
    (11, "callee", Moment(Way.DOWN, 1)),
    (7, "caller", Moment(Way.UP, 2, None)),
]
"""Days that are kept from then on, by whom, and when in the session the others go."""


@pytest.fixture
def two(tmp_path: Path, postgres: PostgresServer) -> Iterator[Two]:
    with two_nodes(tmp_path, postgres) as nodes:
        nodes.maker.span_s = DAYS * DAY_S
        yield nodes


async def prune(node: NodeProcess, days: int) -> bool:
    """Drop what is older than some days; False when somebody was in the way.

    Here and not by the command: nodes whose network stands still meanwhile give each other up after
    some seconds, in which a process may not even have started.
    """
    assert node.database_url is not None
    policy = RetentionPolicy(days * DAY_S * NS_PER_S)
    async with await psycopg.AsyncConnection.connect(node.database_url, autocommit=True) as opened:
        report = await retention.prune(opened, policy, time.time_ns())
    return not report.problems


def kept_from_ns(node: NodeProcess) -> int:
    """The horizon of a database."""
    ((horizon_ns,),) = ask(node, "select horizon_ns from storenode.store")
    return int(horizon_ns)


def kept(node: NodeProcess, from_ns: int) -> set[bytes]:
    """The hashes that are held from a time on."""
    return {
        row[0] for row in ask(node, "select hash from storenode.messages where ts >= %s", from_ns)
    }


def ask(node: NodeProcess, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Read from a database, past its node."""
    assert node.database_url is not None
    with psycopg.connect(node.database_url) as connection:
        return connection.execute(query, values).fetchall()


@asynccontextmanager
async def clients(two: Two, ledger: Ledger, dice: Random) -> AsyncIterator[None]:
    """Publish to both nodes, which are told different things, while the block goes on."""

    async def publish_some(node: NodeProcess) -> None:
        for _ in range(BATCHES):
            assert await attempted(Publisher(node.listen, ledger, dice)) is None

    async with asyncio.TaskGroup() as group:
        for node in (two.caller, two.callee):
            group.create_task(publish_some(node))
        yield


async def test_what_both_keep_is_equal_in_the_end(two: Two, dice: Random) -> None:
    both, ledger = (two.caller, two.callee), Ledger()
    shared = two.maker.some(SHARED)
    for node in both:
        await publish(node, shared)
    for days, who, moment in STEPS:
        await two.differ(MISSING)
        async with clients(two, ledger, dice):
            report, dropped = await pruned_meanwhile(two, days, who, moment)
        assert dropped or moment.call == 1, "a reconciliation may be in the way, and nothing else"
        check_report(report)
        two.maker.span_s = (days - 1) * DAY_S
    async with clients(two, ledger, dice):
        check_report(await asked(two.caller, time_end=FOREVER_NS))
    assert [await prune(node, LEFT_DAYS) for node in both] == [True, True]
    report = await asked(two.caller, time_end=FOREVER_NS)
    assert (report.outcome, report.in_sync) == ("done", True)
    from_ns = max(kept_from_ns(node) for node in both)
    assert from_ns > two.maker.newest_ns - (LEFT_DAYS + 2) * DAY_S * NS_PER_S
    assert kept(two.caller, from_ns) == kept(two.callee, from_ns)
    assert ledger.acknowledged <= kept(two.caller, from_ns) <= ledger.sent | two.maker.made
    for node in both:
        assert node.database_url is not None
        await asyncio.to_thread(Command().ok, "db", "check", "--database-url", node.database_url)


async def pruned_meanwhile(
    two: Two, days: int, who: str, moment: Moment
) -> tuple[SyncReport, bool]:
    """A session in which one side drops partitions; its report, and whether they went."""
    stop = two.network.stop_at(moment)
    async with under_way(two.caller) as session:
        await stop.wait(session)
        dropped = await prune(two.caller if who == "caller" else two.callee, days)
        two.network.heal()
        report = await session
    return report, dropped


def check_report(report: SyncReport) -> None:
    """The session came to its end, and what it found and did not move is accounted for."""
    assert (report.outcome, report.error) == ("done", ""), report
    assert report.in_sync == (not report.undelivered), report
    moved = report.messages_received + report.messages_sent
    open_ends = report.missing_here + report.missing_there - moved
    told = report.refused_by_policy + report.undelivered
    gone_here = any("dropped by retention here" in note for note in report.notes)
    assert open_ends == told or (open_ends > told and gone_here), report
