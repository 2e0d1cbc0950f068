"""Storing when connections break, the database goes away, one batch is bad, or hashes collide."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import psycopg
import pytest

from store.db.gossip import ConfirmationTracker, UnreadRows
from store.db.insert import join
from store.db.partitions import PartitionMap
from store.db.writer import DatabaseWriter
from store.domain.ports import PageRequest, Source, StoreUnavailableError, TopicFilter
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from tests.integration.storage.followers import TERMINATE_OTHERS, LongTransaction, commit_order
from tests.integration.storage.node import WORKERS, Node, running
from tests.integration.storage.proxy import proxied
from tests.integration.storage.test_writer import (
    COMMITS,
    HOWEVER_STORED,
    assert_sound,
    assert_tables_agree,
    copied_from,
)
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch

__all__ = ["copied_from"]
SEED = 20261120
PATIENCE_S = 90.0
HOLD_UP = """
create function storenode.hold_up() returns trigger language plpgsql
as $$ begin perform pg_advisory_xact_lock(42); return null; end $$
"""
HOLD_UP_COMMITS = """
create constraint trigger hold_up after insert on storenode.commits
deferrable initially deferred for each row execute function storenode.hold_up()
"""
EVERYTHING = PageRequest(TopicFilter(), None, 0, 2**63 - 1, None, True, 100, False)


async def test_what_is_answered_is_there_whatever_is_killed(node: Node, other_node: Node) -> None:
    rng = random.Random(SEED)
    stored: list[RecordBatch] = []
    progress = asyncio.Condition()

    async def publish(each: Node, seed: int) -> None:
        own = random.Random(seed)
        for _ in range(12):
            batch = random_batch(own, own.choice((1, 3, 200)), [NOW - DAY, NOW, NOW])
            # Nobody else stores these: DUPLICATE would tell of a lost answer.
            assert await each.store(batch) == [True] * len(batch)
            async with progress:
                stored.append(batch)
                progress.notify_all()

    async def kill() -> None:
        async with await node.database.connect() as connection:
            while True:
                await connection.execute(TERMINATE_OTHERS)
                wanted = len(stored) + rng.randrange(1, 8)
                async with progress:
                    await progress.wait_for(lambda: len(stored) >= wanted)  # noqa: B023

    killer = asyncio.create_task(kill())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as publishers:
        for seed, each in enumerate((node, other_node) * 3):
            publishers.create_task(publish(each, seed))
    killer.cancel()
    await asyncio.wait([killer])
    await assert_tables_agree(node, stored)
    order = await commit_order(node)
    assert len(order) == len(set(order)) == sum(map(len, stored))


@HOWEVER_STORED
async def test_a_lost_answer_to_a_commit_is_recovered(
    database_url: str, copied_from: Callable[[int], None], fewest_copied: int
) -> None:
    copied_from(fewest_copied)
    rng = random.Random(SEED)
    async with proxied(database_url) as (proxy, url), running(url) as node:

        async def store(batch: RecordBatch) -> list[bool]:
            """Store a batch whose answer is lost; a COPY is committed by a statement of its own."""
            by_copy = len(batch) >= fewest_copied
            proxy.swallow_answer_to(b"COMMIT" if by_copy else batch.hashes[0])
            answer = await node.store(batch)
            assert proxy.swallowed.is_set()
            return answer

        known, *new = (random_batch(rng, count, [NOW - DAY, NOW]) for count in (5, 30, 30))
        await node.store(known)
        for batch in new:
            assert await store(batch) == [True] * 30
        assert await store(known) == [False] * 5
        assert await node.value(COMMITS) == 3
        await assert_tables_agree(node, [known, *new])


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_a_commit_that_is_under_way_when_its_connection_breaks_is_recovered(
    node: Node, database_url: str, is_mixed: bool
) -> None:
    """Try it with new messages alone, and beside one that is stored, for which the writer looks."""
    stored = random_batch(random.Random(1), 1, [NOW])
    await node.store(stored)
    await node.rows(HOLD_UP)
    await node.rows(HOLD_UP_COMMITS)
    async with (
        proxied(database_url) as (proxy, url),
        running(url) as cut_off,
        await node.database.connect() as holder,
        asyncio.timeout(PATIENCE_S),
    ):
        await holder.execute("select pg_advisory_lock(42)")
        batch = random_batch(random.Random(2), 9, [NOW])
        whole = join([batch, stored]) if is_mixed else batch
        answer = asyncio.create_task(cut_off.store(whole))
        await node.until_blocked("advisory")
        proxy.cut()
        # The second attempt waits for what the first has inserted.
        await node.until_blocked("transactionid")
        await holder.execute("select pg_advisory_unlock(42)")
        assert await answer == [True] * 9 + [False] * is_mixed
    assert await node.value(COMMITS) == 2
    assert sorted((await commit_order(node))[1:]) == sorted(batch.hashes)


async def test_one_batch_that_cannot_be_stored_fails_alone(node: Node) -> None:
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    odd = "alter table storenode.messages add constraint odd check (octet_length(payload) <> 13)"
    await node.rows(odd)
    good = [random_batch(rng, 10, [NOW]) for _ in range(3)]
    refused = random_batch(rng, 1, [NOW], size=13)
    unnameable = random_batch(rng, 1, [NOW], [("p", "not known yet")])
    unnameable.topics = dict.fromkeys(unnameable.topics, ("p", "with\0nul"))
    timeless = random_batch(rng, 1, [NOW])
    timeless.timestamps = [-5]
    calls = [good[0], refused, unnameable, good[1], timeless, good[2]]
    async with node.blocked(*plugs) as plugged:
        tasks = [asyncio.create_task(node.store(call)) for call in calls]
    await asyncio.gather(*plugged)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [answers.pop(place) for place in (4, 2, 1)]
    assert answers == [[True] * 10] * 3
    assert not any(isinstance(error, StoreUnavailableError) for error in errors)
    expected = (ValueError, psycopg.DataError, psycopg.errors.CheckViolation)
    for error, kind in zip(errors, expected, strict=True):
        assert isinstance(error, kind)
    await assert_tables_agree(node, [*plugs, *good])


async def test_a_database_that_is_away_is_waited_for_reported_and_used_again(
    database_url: str,
) -> None:
    rng = random.Random(SEED)
    async with (
        proxied(database_url) as (proxy, url),
        running(url) as node,
        asyncio.timeout(PATIENCE_S),
    ):
        first, *later = (random_batch(rng, 3, [NOW], TOPICS[:1]) for _ in range(7))
        await node.store(first)
        proxy.refuse()
        with node.impatient():
            with pytest.raises(StoreUnavailableError, match="retry with backoff"):
                await node.store(random_batch(rng, 3, [NOW]))
            with pytest.raises(StoreUnavailableError, match="retry with backoff"):
                await node.reader.query(EVERYTHING)
        # A short absence is waited out.
        stores = [asyncio.create_task(node.store(batch)) for batch in later]
        await asyncio.sleep(0)
        assert not any(task.done() for task in stores)
        await proxy.open()
        assert await asyncio.gather(*stores) == [[True] * 3] * 6
        assert (await node.reader.query(EVERYTHING)).count == 21


# Messages with one hash: the first one is stored, and the other one is a conflict.
PUBSUB = "/waku/2/rs/1/0"
OTHER = (NOW, (PUBSUB, "/alpha/1/x/proto"), b"transfer 10 to bob")
ONE = batch_of([(NOW, (PUBSUB, "pha/1/x/proto"), b"transfer 10 to bob/al")])
TWO = batch_of([OTHER])
assert ONE.hashes == TWO.hashes
assert ONE.content_digests != TWO.content_digests


async def assert_stored(node: Node, batch: RecordBatch, count: int) -> None:
    """Check that the message of a batch is stored, and nothing of another one."""
    rows = await node.rows(
        "select content_digest, topic from storenode.messages where hash = %b", batch.hashes[0]
    )
    assert rows == [(batch.content_digests[0], batch.topic_keys[0])]
    await assert_sound(node, count)


@HOWEVER_STORED
async def test_a_message_with_the_hash_of_a_stored_one_is_a_conflict(
    node: Node, copied_from: Callable[[int], None], fewest_copied: int
) -> None:
    copied_from(fewest_copied)
    reported: list[tuple[Source, Conflict]] = []
    unread = UnreadRows(node.database)
    writer = DatabaseWriter(
        node.database,
        PartitionMap(lambda: NOW, 30 * DAY),
        tracking=ConfirmationTracker(unread, 0),
        on_conflict=lambda source, conflict: reported.append((source, conflict)),
    )
    await writer.start()
    try:
        assert list(await writer.store(ONE, Source.CLIENT)) == [True]
        for beside in (0, 3):
            batch = random_batch(random.Random(beside), beside, [NOW - 1])
            batch.extend(TWO)
            result = await writer.store(batch, Source.RESTORE, 1)
            assert list(result) == [True] * beside + [False]
            assert result.conflicts == {beside: ONE.content_digests[0]}
        assert await unread.of(ONE.hashes) == [], "nothing waits for a conflict to be confirmed"
        again = await writer.store(ONE, Source.CLIENT, 1)
        assert (list(again), again.conflicts) == ([False], {})
        (event,) = await unread.of(ONE.hashes)
        assert event.content_digest == ONE.content_digests[0]
    finally:
        await writer.stop()
    conflict = Conflict(ONE.hashes[0], ONE.content_digests[0], TWO.content_digests[0])
    assert reported == [(Source.RESTORE, conflict)] * 2
    await assert_stored(node, ONE, 4)


async def test_of_two_that_wait_together_one_is_stored(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.blocked() as plugged:
        waiting = [
            asyncio.create_task(node.writer.store(each, Source.CLIENT)) for each in (ONE, TWO, ONE)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*plugged)
    first, second, third = await asyncio.gather(*waiting)
    assert sum(map(sum, (first, second, third))) == 1
    # Workers race: either message may be the one that is stored.
    winner, loser = (TWO, ONE) if second[0] else (ONE, TWO)
    conflict = {0: winner.content_digests[0]}
    for batch, result in ((ONE, first), (TWO, second), (ONE, third)):
        assert result.conflicts == (conflict if batch is loser else {})
    for digest in (ONE.content_digests[0], TWO.content_digests[0]):
        assert digest.hex() in caplog.text
    await assert_stored(node, winner, 1 + WORKERS)


@HOWEVER_STORED
async def test_a_race_that_is_lost_to_another_node_is_a_conflict(
    node: Node, copied_from: Callable[[int], None], fewest_copied: int
) -> None:
    copied_from(fewest_copied)
    first = LongTransaction(node)
    await first.open([ONE])
    losing = asyncio.create_task(node.writer.store(TWO, Source.GOSSIP))
    await node.until_blocked("transactionid")
    await first.commit()
    result = await losing
    assert (list(result), result.conflicts) == ([False], {0: ONE.content_digests[0]})
