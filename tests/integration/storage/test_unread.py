"""Waits for confirmations, and unread events: written with their messages, confirmed, expired."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from store.db import gossip as unread_module
from store.db.check import check
from store.db.feed import TOKEN_SPAN
from store.db.gossip import GossipReads, UnreadRows
from store.db.locks import NODES
from store.db.partitions import PartitionMap
from store.db.pool import Database
from store.db.retention import prune
from store.db.writer import DatabaseWriter
from store.domain.hub import OwnCommits
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.domain.unread import Confirmation, Confirmed
from store.gossip.driver import confirmations
from store.gossip.driver.confirmations import ConfirmationWaits
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from store.runtime.node import SharedConfirmations
from tests.integration.storage.node import SETTINGS
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch

LONG_S = 60.0
SEED = 20261122


class Publisher:
    """A node that stores and waits; ``reach`` other stores may confirm."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = UnreadRows(database)
        partitions = PartitionMap(lambda: NOW, 30 * DAY)
        self.own = OwnCommits()
        self.writer = DatabaseWriter(database, partitions, own=self.own, unread=self.table)
        self.reach: int | None = 2
        self.wanted: list[tuple[Sequence[bytes], int]] = []
        self.reads = GossipReads(database)
        self.waits = ConfirmationWaits(
            self.table,
            self.reads,
            reach=lambda: self.reach,
            unread_hashes=self.table.unread_hashes,
            want=lambda hashes, needed, _digests: self.wanted.append((hashes, needed)),
        )

    async def store(self, batch: RecordBatch, min_confirms: int = 0) -> list[bool]:
        """Store a batch of a client."""
        return list(await self.writer.store(batch, Source.CLIENT, min_confirms))

    async def state(self) -> dict[bytes, tuple[int, set[str]]]:
        """Return what is unread: needed and confirming stores by hash."""
        events = await self.table.newest()
        return {each.message_hash: (each.needed, set(each.stores)) for each in events}

    async def confirmed(
        self, batch: RecordBatch, stored: Sequence[bool], needed: int, limit_s: float = LONG_S
    ) -> list[Confirmation]:
        return await self.waits.confirmed(
            batch.hashes, batch.content_digests, stored, needed, limit_s
        )


@pytest.fixture
async def publisher(database_url: str) -> AsyncIterator[Publisher]:
    database = await Database.open(database_url, SETTINGS)
    made = Publisher(database)
    await made.writer.start()
    yield made
    made.waits.stop()
    await made.writer.stop()
    await database.close()


def batch(count: int = 3, seed: int = SEED) -> RecordBatch:
    return random_batch(random.Random(seed), count, [NOW - number for number in range(50)])


async def test_what_was_confirmed_counts_and_a_wait_ends_with_the_last_that_it_lacks(
    publisher: Publisher,
) -> None:
    messages, others = batch(), batch(seed=2)
    stored = await publisher.store(messages, 3)
    # The two stores that there are may be quicker than the one who begins to wait.
    publisher.waits.confirm(messages.hashes, [1, 2, 0])
    found = await publisher.confirmed(messages, stored, 3)
    assert [each.confirms for each in found] == [1, 2, 0]
    assert all("with 2 other stores" in each.reason for each in found)
    assert len(publisher.waits._open) == 0
    stored = await publisher.store(others, 2)
    publisher.waits.confirm(others.hashes[:1], [2])
    waiting = asyncio.create_task(publisher.confirmed(others, stored, 2))
    await asyncio.sleep(0)
    for counts, is_done in (([1, 1], False), ([2, 3], True)):
        publisher.waits.confirm(others.hashes[1:], counts)
        await asyncio.sleep(0)
        assert len(publisher.waits._open) == (not is_done)
    assert [(each.confirms, each.reason) for each in await waiting] == [(2, ""), (2, ""), (3, "")]
    assert publisher.wanted == []
    # A duplicate is asked for again.
    again = await publisher.store(others, 2)
    assert [each.confirms for each in await publisher.confirmed(others, again, 2)] == [2, 2, 3]
    assert publisher.wanted == [(others.hashes, 2)]


async def test_what_another_node_on_the_database_was_reported_counts(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 2)
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 2))
    other = UnreadRows(publisher.database)
    pairs = [Confirmed(digest, store) for digest in messages.hashes for store in ("a", "b")]
    await other.confirm(pairs)
    assert [each.confirms for each in await waiting] == [2, 2, 2]


async def test_a_node_without_gossip_waits_where_another_node_may_have_peers(
    publisher: Publisher,
) -> None:
    messages, database = batch(), publisher.database
    waits = SharedConfirmations(publisher.table, publisher.reads)
    given = messages.hashes, messages.content_digests, await publisher.store(messages, 1), 1, LONG_S
    async with await database.connect() as one, await database.connect() as another:
        for node in (one, another):
            await node.execute("select pg_advisory_lock_shared(%s)", (NODES,))
        waiting = asyncio.create_task(waits.confirmed(*given))
        await UnreadRows(database).confirm([Confirmed(each, "a") for each in messages.hashes])
        assert [each.confirms for each in await waiting] == [1, 1, 1]
    waits.stop()
    # Alone it answers at once, and leaves nothing unread.
    waits, others = SharedConfirmations(publisher.table, publisher.reads), batch(seed=2)
    stored = await publisher.store(others, 1)
    found = await waits.confirmed(others.hashes, others.content_digests, stored, 1, LONG_S)
    assert all("exchanges no read confirmations" in each.reason for each in found)
    assert (await publisher.table.summary()).count == 0


async def test_too_few_stores_end_a_wait_before_it_begins(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 3)
    found = await publisher.confirmed(messages, stored, 3)
    assert "0 of 3 stores confirmed: this node exchanges messages with 2 other" in found[0].reason
    publisher.reach = None
    found = await publisher.confirmed(messages, stored, 3, 0.05)
    assert "no more have within 0.05 s" in found[0].reason, "peers may yet call"
    publisher.reach = 1
    publisher.waits.confirm(messages.hashes, [2, 2, 1])
    publisher.waits.confirm(messages.hashes[2:], [3])
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 3))
    await asyncio.sleep(0)
    publisher.waits.confirm(messages.hashes, [3, 3, 3])
    assert [each.reason for each in await waiting] == ["", "", ""]


async def test_waits_are_bounded_and_end_when_a_client_leaves_or_the_node_stops(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = batch()
    stored = await publisher.store(messages, 1)
    monkeypatch.setattr(confirmations, "MAX_WAITS", 1)
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 1))
    await asyncio.sleep(0)
    (found, *_) = await publisher.confirmed(messages, stored, 1)
    assert "too many publishers wait for confirmations already" in found.reason
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert len(publisher.waits._open) == 0
    assert not publisher.waits._waits
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 1))
    await asyncio.sleep(0)
    publisher.waits.stop()
    for ended in (waiting, publisher.confirmed(messages, stored, 1)):
        assert "the node is stopping" in (await ended)[0].reason


# Unread events


async def test_what_expired_is_unread_no_longer_and_known_for_a_while(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = batch()
    await publisher.store(messages, 1)
    await publisher.table.expire(messages.hashes[:2])
    assert set(await publisher.state()) == {messages.hashes[2]}
    assert (await publisher.table.summary()).count == 1
    assert len(await publisher.table.of(messages.hashes)) == 3
    assert await publisher.table.sweep() == 0
    monkeypatch.setattr(unread_module, "EXPIRED_KEPT_S", 0.0)
    assert await publisher.table.sweep() == 2
    monkeypatch.setattr(unread_module, "LAPSED_S", 0.0)
    assert await publisher.table.sweep() == 1, "nobody has let it expire"
    # A new request starts from the beginning.
    await publisher.store(messages, 1)
    assert len(await publisher.state()) == 3


async def test_beyond_the_limit_messages_are_stored_and_never_taken_for_confirmed(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.db.gossip.MAX_UNREAD_EVENTS", 5)
    assert all(await publisher.store(batch(4), 1))
    untracked = batch(4, seed=2)
    stored = await publisher.store(untracked, 1)
    assert stored == [True] * 4
    found = await publisher.confirmed(untracked, stored, 1, 3 * confirmations.POLL_S)
    assert [each.confirms for each in found] == [0] * 4
    assert len(await publisher.state()) == 4
    assert (await publisher.table.summary()).count == publisher.table.count == 4


async def test_what_retention_drops_takes_its_unread_events_along(
    publisher: Publisher, database_url: str
) -> None:
    old = batch_of([(NOW - 40 * DAY, TOPICS[0], b"old"), (NOW, TOPICS[0], b"new")])
    await publisher.store(old, 1)
    connection = await publisher.database.connect()
    async with connection:
        await prune(connection, RetentionPolicy(30 * DAY, None), NOW)
    assert set(await publisher.state()) == {old.hashes[1]}
    found = await publisher.confirmed(old, [True, True], 1, 3 * confirmations.POLL_S)
    assert [each.confirms for each in found] == [0, 0], "a row that went with its message"
    assert (await asyncio.to_thread(check, database_url)).findings == []


async def test_a_commit_is_kept_with_the_confirmations_that_it_needs(publisher: Publisher) -> None:
    publisher.own.wake()
    known = batch()
    await publisher.store(known)
    both = RecordBatch()
    both.extend(known)
    both.extend(batch(2, seed=5))
    await publisher.store(both, 2)
    connection = await publisher.database.connect()
    async with connection:
        cursor = await connection.execute("select token from storenode.commits order by position")
        first, second = [row[0] % TOKEN_SPAN for row in await cursor.fetchall()]
    kept = publisher.own.take(second)
    assert kept is not None
    assert kept.batch.hashes == both.hashes[3:]
    assert kept.needed == dict.fromkeys(both.hashes, 2)
    assert publisher.own.body(both.hashes[3]) == transferred(both.frame(3))
    assert (found := publisher.own.take(first)) is not None
    assert (found.batch.hashes, found.needed) == (known.hashes, {})


async def test_what_a_publisher_asks_for_is_never_overdue(publisher: Publisher) -> None:
    usual = UnreadRows(publisher.database, max_confirms=1)
    messages = batch(2)
    await publisher.store(messages, 2)
    await usual.confirm([Confirmed(messages.hashes[0], "a")])
    assert (await publisher.table.summary()).oldest_ns > 0
    assert (await publisher.table.summary()).overdue_ns == 0
    assert (await usual.summary()).overdue_ns > 0
    await usual.confirm([Confirmed(messages.hashes[1], "a")])
    found = await usual.summary()
    assert (found.count, found.overdue_ns) == (2, 0)
