"""A resume that meets a fault of this node goes on when it is over."""

from __future__ import annotations

import asyncio
import time

import psycopg

from store.db.maintenance.online import DatabaseOnlineTimes
from store.db.pool import Database
from store.runtime.environment import system_environment
from store.runtime.tasks import BackgroundTasks
from store.sync.resume.core import ResumeConfig
from store.sync.resume.driver import Resumer
from tests.integration.peers.harness import NOW_NS, PeerNode, items, within

HOUR_NS = 3_600 * 10**9


async def execute(node: PeerNode, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(node.url, autocommit=True) as connection:
        await connection.execute(statement)


async def all_held(node: PeerNode, hashes: set[bytes]) -> None:
    while await node.hashes() != hashes:
        continue


async def test_a_database_that_takes_nothing_for_a_while(first: PeerNode, second: PeerNode) -> None:
    await second.hold(items(range(20)))
    database = await Database.open(first.url)
    await DatabaseOnlineTimes(database).note(NOW_NS - HOUR_NS, time.time_ns())
    proceeds = asyncio.Event()
    resumer = Resumer(
        ResumeConfig(peers=(second.address,), slack_ns=0),
        caller=first.caller,
        online=DatabaseOnlineTimes(database),
        writer=first.services.writer,
        policy=lambda: first.rules.policy,
        environment=system_environment("test", first.context.metrics),
        proceed=proceeds.set,
        failed=lambda _peer, _error: None,
    )
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
        await within(all_held(first, await second.hashes()))
    finally:
        await tasks.stop()
        await database.close()
