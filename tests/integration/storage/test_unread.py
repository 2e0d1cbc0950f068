"""Unread events: written with their messages, confirmed by distinct stores, gone with either."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from store.db import gossip as gossip_module
from store.db.check import check
from store.db.feed import TOKEN_SPAN
from store.db.gossip import ConfirmationTracker, UnreadRows
from store.db.partitions import PartitionMap
from store.db.pool import Database
from store.db.retention import prune
from store.db.writer import DatabaseWriter
from store.domain.ports import Source
from store.domain.retention import RetentionPolicy
from store.domain.unread import Confirmed
from store.messages.record import RecordBatch
from tests.integration.storage.node import SETTINGS
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch

SEED = 20261122


class Store:
    """A writer that tracks what must be confirmed."""

    def __init__(self, database: Database, max_confirms: int) -> None:
        self.database = database
        self.unread = UnreadRows(database)
        self.tracking = ConfirmationTracker(self.unread, max_confirms)
        self.writer = DatabaseWriter(
            database, PartitionMap(lambda: NOW, 30 * DAY), tracking=self.tracking
        )

    async def store(self, batch: RecordBatch, min_confirms: int = 0) -> list[bool]:
        """Store a batch of a client."""
        return list(await self.writer.store(batch, Source.CLIENT, min_confirms))

    async def state(self) -> dict[bytes, tuple[int, set[str]]]:
        """Return what is unread: needed and confirming stores by hash."""
        events = await self.unread.newest()
        return {each.message_hash: (each.needed, set(each.stores)) for each in events}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url, SETTINGS)
    yield opened
    await opened.close()


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    made = Store(database, 0)
    await made.writer.start()
    yield made
    await made.writer.stop()


def batch(count: int, seed: int = SEED) -> RecordBatch:
    return random_batch(random.Random(seed), count, [NOW - number for number in range(50)])


async def test_what_expired_is_unread_no_longer_and_known_for_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = batch(3)
    await store.store(messages, 1)
    await store.unread.expire(messages.hashes[:2])
    assert set(await store.state()) == {messages.hashes[2]}
    assert (await store.unread.summary()).count == 1
    assert len(await store.unread.of(messages.hashes)) == 3
    assert await store.unread.sweep() == 0
    monkeypatch.setattr(gossip_module, "EXPIRED_KEPT_S", 0.0)
    assert await store.unread.sweep() == 2
    monkeypatch.setattr(gossip_module, "LAPSED_S", 0.0)
    assert await store.unread.sweep() == 1, "nobody has let it expire"
    # Whoever asks anew begins anew.
    await store.store(messages, 1)
    assert len(await store.state()) == 3


async def test_beyond_the_limit_messages_are_stored_and_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.db.gossip.MAX_UNREAD_EVENTS", 5)
    assert all(await store.store(batch(4), 1))
    assert all(await store.store(batch(4, seed=2), 1))
    assert len(await store.state()) == 4
    assert (await store.unread.summary()).count == store.unread.count == 4


async def test_what_retention_drops_takes_its_unread_events_along(
    store: Store, database_url: str
) -> None:
    old = batch_of([(NOW - 40 * DAY, TOPICS[0], b"old"), (NOW, TOPICS[0], b"new")])
    await store.store(old, 1)
    connection = await store.database.connect()
    async with connection:
        await prune(connection, RetentionPolicy(30 * DAY, None), NOW)
    assert set(await store.state()) == {old.hashes[1]}
    assert (await asyncio.to_thread(check, database_url, now_ns=lambda: NOW)).findings == []


async def test_a_batch_is_kept_until_its_commit_is_seen(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.store(batch(3, seed=1))
    assert not store.tracking._kept, "nobody wants it"
    store.tracking.wake()
    known = batch(3)
    await store.store(known)
    both = RecordBatch()
    both.extend(known)
    both.extend(batch(2, seed=5))
    await store.store(both, 2)
    connection = await store.database.connect()
    async with connection:
        cursor = await connection.execute("select token from storenode.commits order by position")
        _, first, second = [row[0] % TOKEN_SPAN for row in await cursor.fetchall()]
    kept = store.tracking.take(second)
    assert kept is not None
    assert kept.batch.hashes == both.hashes[3:]
    assert kept.needed == dict.fromkeys(both.hashes, 2)
    assert store.tracking.take(second) is None
    assert store.tracking.take(first) is not None
    monkeypatch.setattr("store.db.gossip.MAX_KEPT_BYTES", 0)
    await store.store(batch(2, seed=6))
    assert not store.tracking._kept
    monkeypatch.undo()
    await store.store(batch(2, seed=7))
    assert store.tracking._kept
    store.tracking.rest()
    assert not store.tracking._kept


async def test_what_a_publisher_asks_for_is_never_overdue(store: Store) -> None:
    usual = UnreadRows(store.database, max_confirms=1)
    messages = batch(2)
    await store.store(messages, 2)
    await usual.confirm([Confirmed(messages.hashes[0], "a")])
    assert (await store.unread.summary()).oldest_ns > 0
    assert (await store.unread.summary()).overdue_ns == 0
    assert (await usual.summary()).overdue_ns > 0
    await usual.confirm([Confirmed(messages.hashes[1], "a")])
    found = await usual.summary()
    assert (found.count, found.overdue_ns) == (2, 0)
