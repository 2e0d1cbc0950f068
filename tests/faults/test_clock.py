"""Clocks that are set while messages are stored: retention and the order of the feed."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from chaos.soak import clock as set_clock
from store.db.maintenance.maintainer import Maintainer
from store.db.schema.partitions import read_catalog
from store.domain.ports import FollowRequest, TopicFilter
from store.domain.retention import MAX_DOUBT_NS, RetentionPolicy
from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.types import PublishResult
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import FollowPage
from tests.faults.processes import logged, metrics, until
from tests.integration.storage.node import Node as Storage
from tests.integration.storage.node import running
from tests.support.admission import admit
from tests.support.command import Command
from tests.support.fleet import made, publish
from tests.support.ledger import PATIENCE_S, PUBSUB, TOPICS
from tests.support.node import NodeProcess, running_node
from tests.support.outlet import WideOutlet
from tests.support.ports import HeldPort

DAY_NS = 86_400 * 10**9
HOUR_NS = 3_600 * 10**9
RETENTION_NS = 7 * DAY_NS
DRIFT_NS = 20 * 10**9
REJECTED = PublishResult.REJECTED
ABSENT_SINCE = "storenode_peer_absent_since_timestamp_seconds"


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
    storage: Storage
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
        request = FollowRequest(TopicFilter(), None, from_beginning=True, include_data=False)
        found: list[bytes] = []
        async for page in self.storage.feed.follow(request, WideOutlet()):
            messages = FollowPage.FromString(page.frames).messages
            found += [message.message_hash for message in messages]
            if page.live:
                break
        return found


@asynccontextmanager
async def storage(url: str, clock: Clock, last_online_ns: int = 0) -> AsyncIterator[Node]:
    """Open a node's storage, whose maintenance the test runs."""
    async with running(url, now_ns=clock.now) as opened:
        events: list[str] = []
        maintainer = Maintainer(
            opened.database.connect,
            lambda: RetentionPolicy(RETENTION_NS),
            now_ns=clock.now,
            on_event=lambda name, /, **_: events.append(name),
            steady_ns=clock.steady,
            last_online_ns=last_online_ns,
        )
        yield Node(clock, opened, maintainer, events)


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


async def test_a_set_clock_and_an_absent_peer_are_reported_until_they_end(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    """Check what `status --check` says; minutes pass by the node's clock."""
    offset = tmp_path / "clock"
    offset.write_bytes(bytes(set_clock.BYTES))
    listener = HeldPort()
    peer = NodeProcess(tmp_path / "peer", ("--peer-listen", listener.address), new_store())
    node = NodeProcess(tmp_path / "node", ("--peer", listener.address), new_store())
    node.program = (sys.executable, "-P", set_clock.__file__, str(offset))

    def is_reported(problem: str) -> bool:
        return any(problem in each for each in Command.of(node)("status", "--check").lines)

    def absent_since() -> float:
        return sum(at_s for name, at_s in metrics(node).items() if name[0] == ABSENT_SINCE)

    with closing(peer.start()), closing(node.start()):
        await until(lambda: not absent_since())
        set_clock.set_offset(offset, 300 * 10**9)
        async with connect(node.listen) as client, asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(is_reported, "CRITICAL clock-wrong: publishes are"):
                message = new_message(b"now", TOPICS[0], PUBSUB, time.time_ns())
                assert [each.outcome for each in await client.publish([message])] == [REJECTED]
        set_clock.set_offset(offset, 0)
        await until(lambda: not is_reported("clock-wrong"))
        peer.terminate()
        await until(absent_since)
        set_clock.set_offset(offset, 181 * 10**9)
        await until(lambda: is_reported(f"WARNING peer-unreachable: {listener.address} is away"))
        set_clock.set_offset(offset, 0)
        peer.start()
        await until(lambda: not is_reported("peer-unreachable"))
