"""Clocks that are set while messages are stored: what retention drops then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from chaos.checker.clients import PUBSUB, TOPICS
from store.db.maintainer import Maintainer
from store.db.partitions import read_catalog
from store.domain.retention import MAX_DOUBT_NS, RetentionPolicy
from storenode.client.messages import hash_of, new_message
from storenode.client.types import PublishResult
from storenode.message.rules import Policy
from tests.faults.processes import logged
from tests.integration.storage.followers import following, from_beginning
from tests.integration.storage.node import running
from tests.support.admission import admit
from tests.support.fleet import made, publish
from tests.support.node import running_node

DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9
RETENTION_NS = 7 * DAY_NS
DRIFT_NS = 20 * 10**9
REJECTED = PublishResult.REJECTED


class Node:
    """The storage of a node with a clock that can be set, whose maintenance the test runs.

    The clock shows the time; in the last hour of a day, that of an hour ago: partitions are made
    ahead by the day, so that none must end while a test compares them.
    """

    def __init__(self) -> None:
        self.offset_ns = 0
        is_late = time.time_ns() % DAY_NS > DAY_NS - HOUR_NS
        self.passed_ns = -HOUR_NS if is_late else 0
        self.events: list[str] = []

    @asynccontextmanager
    async def opened(self, url: str) -> AsyncIterator[Node]:
        async with running(url, now_ns=self.now) as self.storage:
            self.maintainer = Maintainer(
                self.storage.database.connect,
                lambda: RetentionPolicy(RETENTION_NS),
                now_ns=self.now,
                on_event=lambda name, /, **_: self.events.append(name),
                steady_ns=lambda: time.monotonic_ns() + self.passed_ns,
                interval_s=60.0,
                max_lead_ns=400 * DAY_NS,  # as if the clock of the database were set with it
                last_online_ns=0,
                commits=asyncio.Event(),
            )
            yield self

    def now(self) -> int:
        return time.time_ns() + self.passed_ns + self.offset_ns

    async def publish(self, number: int) -> bytes:
        """Store a message of the node's current time, and return its hash."""
        message, now_ns = new_message(b"%d" % number, TOPICS[0], PUBSUB, self.now()), self.now()
        policy = Policy(max_drift_ns=DRIFT_NS, horizon_ns=now_ns - RETENTION_NS)
        admission = admit([message], now_ns, policy)
        assert not admission.refusals
        assert await self.storage.store(admission.batch) == [True]
        return hash_of(message)

    async def maintain(self) -> None:
        async with await self.storage.database.connect() as connection:
            await self.maintainer.round(connection)

    async def partitions(self) -> list[str]:
        catalog = await self.storage.database.read(read_catalog)
        return sorted(each.name for each in catalog.partitions if each.table == "messages")

    async def fed(self) -> list[bytes]:
        """Return all hashes, as a follower gets them."""
        async with following(self.storage.feed, from_beginning()) as [follower]:
            return (await follower.until_live()).hashes


async def test_a_leap_of_a_year_drops_nothing_until_it_has_lasted_a_day(database_url: str) -> None:
    async with Node().opened(database_url) as node:
        # First, since a commit shows the maintenance that the time has been reached.
        sent = [await node.publish(1)]
        await node.maintain()
        before = await node.partitions()
        node.offset_ns = 365 * DAY_NS
        for _ in range(3):
            node.passed_ns += 60 * 10**9
            await node.maintain()
        assert await node.partitions() == before
        assert node.events == ["clock_doubted"], "reported once"
        # Messages of the same wrong clock are stored: the writer makes their partitions.
        sent.append(await node.publish(2))
        node.offset_ns = 0
        await node.maintain()
        assert node.events == ["clock_doubted", "clock_believed"]
        sent.append(await node.publish(3))
        assert await node.fed() == sent
        node.offset_ns = 365 * DAY_NS
        await node.maintain()
        node.passed_ns += MAX_DOUBT_NS
        await node.maintain()
        after = await node.partitions()
        assert not set(before) & set(after)
        assert after, "the current partition and those ahead of need are there"
        await node.publish(4)


@pytest.mark.parametrize(
    ("ago", "changes", "reported"),
    [
        # A node without peers does not record the time from which it would resume.
        ("3 hours", ("update storenode.store set created_at = {}",), "retention_waits"),
        # Then the newest commit shows when the store was last online.
        (
            "1 year",
            (
                "update storenode.store set created_at = {}, last_online_ns = null",
                "update storenode.commits set committed_at = {}",
                "delete from storenode.online",
            ),
            "clock_doubted",
        ),
    ],
)
async def test_a_node_finds_when_it_was_last_online(
    tmp_path: Path, database_url: str, ago: str, changes: Sequence[str], reported: str
) -> None:
    with running_node(tmp_path / "data", database_url=database_url) as node:
        if len(changes) > 1:
            await publish(node, made(1, time.time_ns(), span_s=5))
    with psycopg.connect(database_url, autocommit=True) as connection:
        for each in changes:
            connection.execute(each.format(f"now() - interval '{ago}'").encode())
    with running_node(tmp_path / "data", database_url=database_url) as node:
        await logged(node, reported)
    assert reported == "clock_doubted" or "clock_doubted" not in node.log()
