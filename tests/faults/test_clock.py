"""Clocks that are set while messages are stored: retention and the order of the feed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from store.db.commits.feed import DatabaseFeed
from store.db.maintenance.maintainer import Maintainer
from store.db.pool import Database
from store.db.schema.partitions import PartitionMap, read_catalog
from store.db.writing.writer import DatabaseWriter
from store.domain.ports import FollowRequest, Source, TopicFilter
from store.domain.retention import MAX_DOUBT_NS, RetentionPolicy
from storenode.client.messages import hash_of, new_message
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import FollowPage
from tests.faults.processes import logged
from tests.support.admission import admit
from tests.support.fleet import made, publish
from tests.support.ledger import PUBSUB, TOPICS
from tests.support.node import running_node
from tests.support.outlet import WideOutlet

DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9
RETENTION_NS = 7 * DAY_NS
DRIFT_NS = 20 * 10**9


@dataclass
class Clock:
    """A clock that can be set, and a steady one."""

    offset_ns: int = 0
    passed_ns: int = 0

    def now(self) -> int:
        return time.time_ns() + self.passed_ns + self.offset_ns

    def steady(self) -> int:
        return time.monotonic_ns() + self.passed_ns


@dataclass
class Node:
    """The storage of a node with a clock that can be set."""

    clock: Clock
    database: Database
    writer: DatabaseWriter
    feed: DatabaseFeed
    maintainer: Maintainer
    events: list[str]

    async def publish(self, number: int) -> bytes:
        """Store a message of the node's current time, and return its hash."""
        message = new_message(b"%d" % number, TOPICS[0], PUBSUB, self.clock.now())
        admission = admit(
            [message],
            self.clock.now(),
            Policy(max_drift_ns=DRIFT_NS, horizon_ns=self.clock.now() - RETENTION_NS),
        )
        assert not admission.refusals
        assert list(await self.writer.store(admission.batch, Source.CLIENT)) == [True]
        return hash_of(message)

    async def maintain(self) -> None:
        async with await self.database.connect() as connection:
            await self.maintainer.round(connection)

    async def partitions(self) -> list[str]:
        catalog = await self.database.read(read_catalog)
        return sorted(each.name for each in catalog.partitions if each.table == "messages")

    async def fed(self) -> list[bytes]:
        """Return all hashes, as a follower gets them."""
        request = FollowRequest(TopicFilter(), None, from_beginning=True, include_data=False)
        found: list[bytes] = []
        async for page in self.feed.follow(request, WideOutlet()):
            messages = FollowPage.FromString(page.frames).messages
            found += [message.message_hash for message in messages]
            if page.live:
                break
        return found


@asynccontextmanager
async def storage(url: str, clock: Clock, last_online_ns: int = 0) -> AsyncIterator[Node]:
    """Open a node's storage, whose maintenance the test runs."""
    database = await Database.open(url)
    writer = DatabaseWriter(database, PartitionMap(clock.now, RETENTION_NS))
    feed = DatabaseFeed(database)
    events: list[str] = []
    maintainer = Maintainer(
        database.connect,
        lambda: RetentionPolicy(RETENTION_NS),
        now_ns=clock.now,
        on_event=lambda name, /, **_: events.append(name),
        steady_ns=clock.steady,
        last_online_ns=last_online_ns,
    )
    await writer.start()
    await feed.start()
    try:
        yield Node(clock, database, writer, feed, maintainer, events)
    finally:
        await feed.stop()
        await writer.stop()
        await database.close()


@pytest.fixture
def clock() -> Clock:
    """Return a clock that shows the time; in the last hour of a day, that of an hour ago.

    Partitions are made ahead by the day, so that none must end while a test compares them.
    """
    is_late = time.time_ns() % DAY_NS > DAY_NS - HOUR_NS
    return Clock(passed_ns=-HOUR_NS if is_late else 0)


async def test_a_clock_set_back_changes_neither_messages_nor_their_order(
    database_url: str, clock: Clock
) -> None:
    async with storage(database_url, clock) as node:
        await node.maintain()
        sent = [await node.publish(1)]
        for number, offset_ns in enumerate((-5 * DAY_NS, -DAY_NS, 0, -3_600 * 10**9)):
            clock.offset_ns = offset_ns
            await node.maintain()
            sent.append(await node.publish(2 + number))
        assert await node.fed() == sent, "positions make the order, not clocks"
        assert "partition_dropped" not in node.events


async def test_a_leap_of_a_year_drops_nothing_until_it_has_lasted_a_day(
    database_url: str, clock: Clock
) -> None:
    async with storage(database_url, clock) as node:
        # First, since a commit shows the maintenance that the time has been reached.
        sent = [await node.publish(1)]
        await node.maintain()
        before = await node.partitions()
        clock.offset_ns = 365 * DAY_NS
        for _ in range(3):
            clock.passed_ns += 60 * 10**9
            await node.maintain()
        assert await node.partitions() == before
        assert node.events == ["clock_doubted"], "reported once"
        # Messages of the same wrong clock are stored: the writer makes their partitions.
        sent.append(await node.publish(2))
        clock.offset_ns = 0
        await node.maintain()
        assert node.events == ["clock_doubted", "clock_believed"]
        sent.append(await node.publish(3))
        assert await node.fed() == sent
        clock.offset_ns = 365 * DAY_NS
        await node.maintain()
        clock.passed_ns += MAX_DOUBT_NS
        await node.maintain()
        after = await node.partitions()
        assert not set(before) & set(after)
        assert after, "the current partition and those ahead of need are there"
        await node.publish(4)


@pytest.mark.parametrize(
    ("offset_ns", "online_ns", "events"),
    [
        (365 * DAY_NS, None, ["clock_doubted"]),
        # A store that was stopped for less than a day.
        (42 * HOUR_NS, 40 * HOUR_NS, ["retention_waits"]),
        # Longer than a day is no pause.
        (365 * DAY_NS, 40 * HOUR_NS, ["clock_doubted"]),
    ],
)
async def test_a_leap_while_a_store_was_stopped_is_a_pause_or_doubted(
    database_url: str, clock: Clock, offset_ns: int, online_ns: int | None, events: list[str]
) -> None:
    async with storage(database_url, clock) as node:
        await node.maintain()
        await node.publish(1)
    last_online_ns = 0 if online_ns is None else clock.now() + online_ns
    clock.offset_ns = offset_ns
    async with storage(database_url, clock, last_online_ns) as node:
        before = await node.partitions()
        await node.maintain()
        assert node.events == events
        assert set(before) <= set(await node.partitions())


async def test_a_store_made_long_before_its_first_node_raises_no_alarm(
    database_url: str, clock: Clock
) -> None:
    clock.offset_ns = 42 * HOUR_NS
    async with storage(database_url, clock) as node:
        await node.maintain()
        assert node.events == ["retention_waits"]


async def test_a_node_without_peers_finds_when_it_was_last_online(
    tmp_path: Path, database_url: str
) -> None:
    """Check a node that does not record the time from which it would resume."""
    with running_node(tmp_path / "data", database_url=database_url):
        pass
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("update storenode.store set created_at = now() - interval '3 hours'")
    with running_node(tmp_path / "data", database_url=database_url) as node:
        await logged(node, "retention_waits")
        assert "clock_doubted" not in node.log()


async def test_a_node_compares_its_clock_with_the_newest_commit(
    tmp_path: Path, database_url: str
) -> None:
    with running_node(tmp_path / "data", database_url=database_url) as node:
        await publish(node, made(1, time.time_ns(), span_s=5))
    with psycopg.connect(database_url, autocommit=True) as connection:
        ago = "now() - interval '1 year'"
        connection.execute(f"update storenode.store set created_at = {ago}".encode())
        connection.execute(f"update storenode.commits set committed_at = {ago}".encode())
        connection.execute("update storenode.store set last_online_ns = null")
        connection.execute("delete from storenode.online")
    with running_node(tmp_path / "data", database_url=database_url) as node:
        await logged(node, "clock_doubted")
