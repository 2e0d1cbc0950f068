"""Storing when connections break, the database goes away, or one batch cannot be stored."""

from __future__ import annotations

import asyncio
import random

import psycopg
import pytest

from store.db.writing import writer as writer_module
from store.domain.ports import PageRequest, StoreUnavailable, TopicFilter
from store.messages.record import RecordBatch
from tests.integration.database.rows import until_some
from tests.integration.storage.following import TERMINATE_OTHERS, commit_order
from tests.integration.storage.node import Node, running
from tests.integration.storage.proxy import proxied
from tests.integration.storage.test_writer import (
    HOWEVER_STORED,
    assert_tables_agree,
    commits_blocked,
    occupy_workers,
)
from tests.integration.storage.world import DAY, NOW, TOPICS, random_batch
from tests.support.polling import PAUSE_S

SEED = 20261120
PATIENCE_S = 90.0
_HOLD_UP = """
create function storenode.hold_up() returns trigger language plpgsql
as $$ begin perform pg_advisory_xact_lock(42); return null; end $$
"""
_HOLD_UP_COMMITS = """
create constraint trigger hold_up after insert on storenode.commits
deferrable initially deferred for each row execute function storenode.hold_up()
"""
_BLOCKED = """
select count(*) from pg_locks where not granted and locktype = %s
and pid in (select pid from pg_stat_activity where datname = current_database())
"""


async def test_what_is_answered_is_there_whatever_is_killed(node: Node, other_node: Node) -> None:
    rng = random.Random(SEED)
    stored: list[RecordBatch] = []
    progress = asyncio.Condition()

    async def publish(each: Node, seed: int) -> None:
        own = random.Random(seed)
        for _ in range(25):
            batch = random_batch(own, own.choice((1, 3, 200)), [NOW - DAY, NOW, NOW])
            # Nobody else stores these: DUPLICATE would tell of a lost answer.
            assert await each.store(batch) == [True] * len(batch)
            async with progress:
                stored.append(batch)
                progress.notify_all()

    async def kill() -> None:
        connection = await node.database.connect()
        async with connection:
            while True:
                await connection.execute(TERMINATE_OTHERS)
                wanted = len(stored) + rng.randrange(1, 8)
                async with progress:
                    await progress.wait_for(lambda: len(stored) >= wanted)  # noqa: B023

    killer = asyncio.create_task(kill())
    nodes = (node, other_node) * 3
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as publishers:
        for seed, each in enumerate(nodes):
            publishers.create_task(publish(each, seed))
    killer.cancel()
    await asyncio.wait([killer])
    assert len(stored) == 150
    await node.partitions.refresh(await node.database.connect())
    await assert_tables_agree(node, stored)
    order = await commit_order(node)
    assert len(order) == len(set(order)) == sum(map(len, stored))


@HOWEVER_STORED
async def test_a_lost_answer_to_a_commit_is_recovered(
    database_url: str, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    rng = random.Random(SEED)

    def swallow_answer(batch: RecordBatch) -> None:
        """Drop the answer to the commit; a COPY is committed by a statement of its own."""
        by_copy = len(batch) >= fewest_copied
        proxy.swallow_answer_to(b"COMMIT" if by_copy else batch.hashes[0])

    async with proxied(database_url) as (proxy, url), running(url) as node:
        known = random_batch(rng, 5, [NOW])
        await node.store(known)
        stored = [known]
        for _ in range(4):
            batch = random_batch(rng, 30, [NOW - DAY, NOW])
            stored.append(batch)
            swallow_answer(batch)
            assert await node.store(batch) == [True] * 30
            assert proxy.swallowed.is_set()
        swallow_answer(known)
        assert await node.store(known) == [False] * 5
        assert proxy.swallowed.is_set()
        assert await node.value("select count(*) from storenode.commits") == 5
        assert len(await commit_order(node)) == 125
        await assert_tables_agree(node, stored)


async def test_a_commit_that_is_under_way_when_its_connection_breaks_is_recovered(
    node: Node, database_url: str
) -> None:
    await node.store(random_batch(random.Random(1), 1, [NOW]))
    await node.rows(_HOLD_UP)
    await node.rows(_HOLD_UP_COMMITS)
    async with proxied(database_url) as (proxy, url), running(url) as cut_off:
        holder = await node.database.connect()
        async with holder, asyncio.timeout(PATIENCE_S):
            await holder.execute("select pg_advisory_lock(42)")
            batch = random_batch(random.Random(2), 9, [NOW])
            answer = asyncio.create_task(cut_off.store(batch))
            await until_blocked(node, "advisory")
            proxy.cut()
            # The second attempt waits for what the first has inserted.
            await until_blocked(node, "transactionid")
            await holder.execute("select pg_advisory_unlock(42)")
            assert await answer == [True] * 9
    assert await node.value("select count(*) from storenode.commits") == 2
    assert sorted((await commit_order(node))[1:]) == sorted(batch.hashes)


async def until_blocked(node: Node, kind: str) -> None:
    """Wait until a transaction waits for a lock of this kind."""
    connection = await node.database.connect()
    async with connection:
        await until_some(connection, _BLOCKED, kind)


async def test_one_batch_that_cannot_be_stored_fails_alone(node: Node) -> None:
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(2)]
    await node.rows(
        "alter table storenode.messages add constraint odd check (octet_length(payload) <> 13)"
    )
    good = [random_batch(rng, 10, [NOW]) for _ in range(4)]
    refused = random_batch(rng, 1, [NOW], size=13)
    unnameable = random_batch(rng, 1, [NOW], [("p", "not known yet")])
    unnameable.topics = dict.fromkeys(unnameable.topics, ("p", "with\0nul"))
    timeless = random_batch(rng, 1, [NOW])
    timeless.timestamps = [-5]
    bad = {1: refused, 3: unnameable, 5: timeless}
    calls = [bad.get(number) or good.pop() for number in range(7)]
    async with commits_blocked(node):
        plugged = await occupy_workers(node, plugs)
        tasks = [asyncio.create_task(node.store(call)) for call in calls]
    answers = await asyncio.gather(*plugged, *tasks, return_exceptions=True)
    for number, answer in enumerate(answers[2:]):
        if number in bad:
            assert isinstance(answer, Exception)
            assert not isinstance(answer, StoreUnavailable)
        else:
            assert answer == [True] * 10
    assert isinstance(answers[2 + 1], psycopg.errors.CheckViolation)
    assert isinstance(answers[2 + 3], psycopg.DataError)
    assert isinstance(answers[2 + 5], ValueError)
    stored = [call for number, call in enumerate(calls) if number not in bad]
    await assert_tables_agree(node, [*plugs, *stored])


async def test_a_database_that_is_away_is_reported_in_time_and_used_again(
    database_url: str,
) -> None:
    rng = random.Random(SEED)
    request = PageRequest(TopicFilter(), None, 0, 2**63 - 1, None, True, 100, False)
    async with proxied(database_url) as (proxy, url), running(url) as node:
        first = random_batch(rng, 3, [NOW], TOPICS[:1])
        await node.store(first)
        proxy.refuse()
        with node.impatient():
            with pytest.raises(StoreUnavailable, match="retry with backoff"):
                await node.store(random_batch(rng, 3, [NOW]))
            with pytest.raises(StoreUnavailable, match="retry with backoff"):
                await node.reader.query(request)
        await proxy.open()
        last = random_batch(rng, 4, [NOW], TOPICS[:1])
        async with asyncio.timeout(PATIENCE_S):
            assert await until_served(node, last) == [True] * 4
        assert (await node.reader.query(request)).count == 7
        assert await commit_order(node) == [*sorted(first.hashes), *sorted(last.hashes)]


async def until_served(node: Node, batch: RecordBatch) -> list[bool]:
    """Store a batch, again while the database is said to be away."""
    while True:
        try:
            return await node.store(batch)
        except StoreUnavailable:
            await asyncio.sleep(PAUSE_S)


async def test_a_short_absence_is_waited_out(database_url: str) -> None:
    rng = random.Random(SEED)
    async with proxied(database_url) as (proxy, url), running(url) as node:
        await node.store(random_batch(rng, 1, [NOW]))
        proxy.refuse()
        batches = [random_batch(rng, 5, [NOW]) for _ in range(6)]
        stores = [asyncio.create_task(node.store(batch)) for batch in batches]
        await asyncio.wait(stores, timeout=0.3)
        assert not any(task.done() for task in stores)
        await proxy.open()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*stores) == [[True] * 5] * 6
