"""A resume goes on after a fault of this node, and peers that lie hold up nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import psycopg

from store.db.coverage import DatabaseOnlineTimes
from store.db.pool import Database
from store.domain.ports import PeerAddress
from store.runtime.services import system_environment
from store.serving.tasks import BackgroundTasks
from store.sync.resume import OnlineRecorder, ResumeConfig, Resumer
from tests.integration.peers.harness import NOW_NS, PeerNode, items
from tests.integration.rpc.harness import within
from tests.support.polling import PAUSE_S

HOUR_NS = 3_600 * 10**9


async def execute(node: PeerNode, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(node.url, autocommit=True) as connection:
        await connection.execute(statement)


async def all_stored(node: PeerNode, hashes: set[bytes]) -> None:
    while await node.hashes() != hashes:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(PAUSE_S)


def resuming(
    node: PeerNode, database: Database, peers: tuple[PeerAddress, ...], proceed: Callable[[], None]
) -> Resumer:
    """Return the resume of a node that was last online an hour ago."""
    return Resumer(
        ResumeConfig(peers=peers, slack_ns=0),
        caller=node.caller,
        online=DatabaseOnlineTimes(database),
        writer=node.services.writer,
        policy=lambda: node.rules.policy,
        environment=system_environment("test", node.context.metrics),
        proceed=proceed,
        failed=lambda _peer, _error: None,
    )


async def test_a_database_that_takes_nothing_for_a_while(first: PeerNode, second: PeerNode) -> None:
    await second.hold(items(range(20)))
    database = await Database.open(first.url)
    await DatabaseOnlineTimes(database).note(NOW_NS - HOUR_NS, time.time_ns())
    proceeds = asyncio.Event()
    resumer = resuming(first, database, (second.address,), proceeds.set)
    tasks = BackgroundTasks()
    await execute(first, "alter table storenode.commits rename to mislaid")
    try:
        tasks.start("resume", resumer.run)
        await within(proceeds.wait())
        state = resumer.state()
        assert state is not None
        assert state.running
        assert "see its log" in state.error
        await execute(first, "alter table storenode.mislaid rename to commits")
        await within(all_stored(first, await second.hashes()))
    finally:
        await tasks.stop()
        await database.close()


async def test_time_without_the_database_or_the_clock_is_not_called_online(first: PeerNode) -> None:
    database, clock = await Database.open(first.url), [NOW_NS]
    times = DatabaseOnlineTimes(database)
    environment = replace(
        system_environment("test", first.context.metrics), now_ns=lambda: clock[0]
    )
    recorder = OnlineRecorder(times, environment)
    recorder.begin()

    async def note_after(seconds: int) -> None:
        clock[0] += seconds * 10**9
        await recorder.note()

    try:
        await note_after(5)
        await execute(first, "alter table storenode.online rename to mislaid")
        await note_after(10)
        await execute(first, "alter table storenode.mislaid rename to online")
        await note_after(10)
        await note_after(10)
        await note_after(3600)
        await note_after(10)
        found = await times.overlapping(NOW_NS, clock[0])
    finally:
        await database.close()
    assert sorted(
        ((each.start_ns - NOW_NS) // 10**9, (each.end_ns - NOW_NS) // 10**9) for each in found
    ) == [
        (0, 5),
        (25, 35),
        (3635, 3645),
    ]
