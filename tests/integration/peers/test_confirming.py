"""Waits for confirmations, also of those that another node on the database received."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from store.db.gossip import MAX_NEEDED, ConfirmationTracker, UnreadRows
from store.db.locks import NODES
from store.db.partitions import PartitionMap
from store.db.pool import Database
from store.db.writer import DatabaseWriter
from store.domain.ports import Source
from store.domain.unread import Confirmation, Confirmed
from store.gossip.driver import confirmations
from store.gossip.driver.confirmations import ConfirmationWaits
from store.messages.record import RecordBatch
from store.runtime.services import SharedConfirmations
from tests.integration.storage.world import DAY, NOW, random_batch

LONG_S = 60.0


class Publisher:
    """A node that stores and waits; ``reach`` other stores may confirm."""

    def __init__(self, database: Database) -> None:
        self.table = UnreadRows(database)
        self.tracking = tracking = ConfirmationTracker(self.table, 0)
        partitions = PartitionMap(lambda: NOW, 30 * DAY)
        self.writer = DatabaseWriter(database, partitions, tracking=tracking)
        self.reach: int | None = 2
        self.wanted: list[tuple[Sequence[bytes], int]] = []
        self.waits = ConfirmationWaits(
            self.table,
            reach=lambda: self.reach,
            is_tracked=tracking.is_tracked,
            want=lambda hashes, _digests, needed: self.wanted.append((hashes, needed)),
            most_tracked=MAX_NEEDED,
        )

    async def store(self, batch: RecordBatch, min_confirms: int) -> list[bool]:
        return list(await self.writer.store(batch, Source.CLIENT, min_confirms))

    async def confirmed(
        self, batch: RecordBatch, stored: Sequence[bool], needed: int, limit_s: float = LONG_S
    ) -> list[Confirmation]:
        return await self.waits.confirmed(
            batch.hashes, batch.content_digests, stored, needed, limit_s
        )


@pytest.fixture
async def publisher(database_url: str) -> AsyncIterator[Publisher]:
    database = await Database.open(database_url)
    made = Publisher(database)
    await made.writer.start()
    yield made
    made.waits.stop()
    await made.writer.stop()
    await database.close()


def batch(count: int = 3) -> RecordBatch:
    return random_batch(random.Random(count), count, [NOW])


async def test_who_has_confirmed_a_new_message_is_not_awaited_again(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 3)
    # The two stores that there are may be quicker than the one who begins to wait.
    publisher.waits.confirm(messages.hashes, [1, 2, 0])
    found = await publisher.confirmed(messages, stored, 3)
    assert [each.confirms for each in found] == [1, 2, 0]
    assert all("with 2 other stores" in each.reason for each in found)
    assert len(publisher.waits) == 0


async def test_a_wait_ends_with_the_last_confirmation_that_it_lacks(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 2)
    first, *others = messages.hashes
    # One may come before anybody waits.
    publisher.waits.confirm([first], [2])
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 2))
    await asyncio.sleep(0)
    publisher.waits.confirm(others, [1, 1])
    await asyncio.sleep(0)
    assert (waiting.done(), len(publisher.waits)) == (False, 1)
    publisher.waits.confirm(others, [2, 3])
    found = await waiting
    assert [(each.confirms, each.reason) for each in found] == [(2, ""), (2, ""), (3, "")]
    assert len(publisher.waits) == 0
    assert publisher.wanted == []


async def test_what_another_node_on_the_database_was_reported_counts(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 2)
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 2))
    other = UnreadRows(publisher.table._database)
    pairs = [Confirmed(digest, store) for digest in messages.hashes for store in ("a", "b")]
    await other.confirm(pairs)
    assert [each.confirms for each in await waiting] == [2, 2, 2]


async def test_a_node_without_gossip_waits_where_another_node_may_have_peers(
    publisher: Publisher,
) -> None:
    messages, database = batch(), publisher.table._database
    waits = SharedConfirmations(publisher.table, publisher.tracking)
    stored = await publisher.store(messages, 1)
    async with await database.connect() as one, await database.connect() as another:
        for node in (one, another):
            await node.execute("select pg_advisory_lock_shared(%s)", (NODES,))
        waiting = asyncio.create_task(
            waits.confirmed(messages.hashes, messages.content_digests, stored, 1, LONG_S)
        )
        await UnreadRows(database).confirm([Confirmed(each, "a") for each in messages.hashes])
        assert [each.confirms for each in await waiting] == [1, 1, 1]
    waits.stop()


async def test_a_node_without_gossip_and_alone_answers_at_once_and_leaves_nothing_unread(
    publisher: Publisher,
) -> None:
    messages = batch()
    waits = SharedConfirmations(publisher.table, publisher.tracking)
    stored = await publisher.store(messages, 1)
    found = await waits.confirmed(messages.hashes, messages.content_digests, stored, 1, LONG_S)
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


async def test_a_duplicate_is_asked_for_again_and_known_confirmations_count(
    publisher: Publisher,
) -> None:
    messages = batch()
    await publisher.store(messages, 1)
    publisher.waits.confirm(messages.hashes, [1, 1, 1])
    again = await publisher.store(messages, 1)
    found = await publisher.confirmed(messages, again, 1)
    assert [each.confirms for each in found] == [1, 1, 1]
    assert publisher.wanted == [(messages.hashes, 1)]


async def test_waits_are_bounded_and_a_client_that_leaves_costs_nothing(
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
    assert len(publisher.waits) == 0
    assert not publisher.waits._waits


async def test_a_node_that_stops_answers_all_who_wait(publisher: Publisher) -> None:
    messages = batch()
    stored = await publisher.store(messages, 1)
    waiting = asyncio.create_task(publisher.confirmed(messages, stored, 1))
    await asyncio.sleep(0)
    publisher.waits.stop()
    assert "the node is stopping" in (await waiting)[0].reason
    (found, *_) = await publisher.confirmed(messages, stored, 1)
    assert "the node is stopping" in found.reason


async def test_what_is_not_tracked_is_never_taken_for_confirmed(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.db.gossip.MAX_UNREAD_EVENTS", 0)
    messages = batch()
    stored = await publisher.store(messages, 1)
    limit_s = 3 * confirmations.POLL_S
    found = await publisher.confirmed(messages, stored, 1, limit_s)
    assert [each.confirms for each in found] == [0, 0, 0]
