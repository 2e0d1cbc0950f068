"""Views out of the database alone: what they are true to, and how they end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from reconcile.errors import SummaryMismatchError
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.view import NeedBuckets, NeedIds, Spans
from store.db import buckets, reconciliation
from store.db.buckets import fold_until
from store.db.pool import Database
from store.db.reconciliation import MAX_VIEW_S, DatabaseIds, SnapshotView
from store.db.retention import prune
from store.domain.partitioning import DAY_NS, HOUR_NS
from store.domain.ports import StoreUnavailableError
from store.domain.retention import RetentionPolicy
from store.sync.index.views import worked_through
from storenode.message.limits import MAX_TIMESTAMP_NS
from tests.integration.storage.followers import TERMINATE_OTHERS
from tests.integration.storage.node import SETTINGS, Node
from tests.integration.storage.world import DAY, NOW, random_batch
from tests.support.naive_view import NaiveView
from tests.unit.reconcile.answers import Asked, check_answers
from tests.unit.reconcile.worlds import random_spans

EVERYTHING = Spans.of([(LOWEST, END)])


async def store(node: Node, rng: random.Random, count: int = 60, span_ns: int = 3 * DAY) -> None:
    times = [NOW - rng.randrange(span_ns) for _ in range(count)]
    await node.store(random_batch(rng, count, times))


async def stored_ids(node: Node) -> NaiveView:
    rows = await node.rows("select ts, hash from storenode.messages")
    return NaiveView((row[0], row[1]) for row in rows)  # type: ignore[misc]


async def fold_all(node: Node) -> None:
    async with node.database.connection(node.database.read_pool) as connection:
        await fold_until(connection)


async def check(cold: SnapshotView, oracle: NaiveView, rng: random.Random) -> None:
    for count in (1, 20):
        asked = Asked.random(rng, oracle, random_spans(rng, oracle.ids, count))
        works = asked.of(cold.view)
        answers = [await worked_through(work, cold.load) for work in works]
        check_answers(oracle, asked, answers)


READ_ONLY = {"options": "-c default_transaction_read_only=on", "target_session_attrs": "any"}
LAST_DAY = np.array([MAX_TIMESTAMP_NS - MAX_TIMESTAMP_NS % DAY_NS])


@pytest.mark.parametrize("most_hours", [10, 1_000], ids=["days", "hours"])
async def test_buckets_and_what_is_not_folded_yet_are_one(
    node: Node, monkeypatch: pytest.MonkeyPatch, most_hours: int
) -> None:
    """Read from the first moment of all to the last, and by connections that take no writes."""
    monkeypatch.setattr(reconciliation, "MAX_TOP_BUCKETS", most_hours)
    monkeypatch.setattr(buckets, "_DELTAS_AT_ONCE", 2)
    rng = random.Random(1)
    await node.store(random_batch(rng, 20, range(1, 10)))
    reading = await Database.open(make_conninfo(node.database.url, **READ_ONLY), SETTINGS)
    for number in range(8):
        await store(node, rng)
        if number in (2, 5):
            await fold_all(node)
        async with DatabaseIds(rng.choice((node.database, reading))).open_cold() as cold:
            await check(cold, await stored_ids(node), rng)
            assert cold.place == node.feed.head or cold.place[0] > node.feed.head[0]
            longest = cold.view.longest_ns
            assert len(await cold.load(NeedBuckets(HOUR_NS, LAST_DAY, DAY_NS))) == 0
    await reading.close()
    assert longest == (DAY_NS if most_hours == 10 else HOUR_NS)


async def test_retention_waits_for_a_view(node: Node) -> None:
    await store(node, random.Random(7), 60, 9 * DAY)
    two_days, oracle = RetentionPolicy(2 * DAY), await stored_ids(node)
    async with await node.database.connect() as connection:
        async with DatabaseIds(node.database).open_cold() as cold:
            assert not (await prune(connection, two_days, NOW, lock_timeout_ms=50)).dropped
            await check(cold, oracle, random.Random(7))
        await node.no_transaction()
        report = await prune(connection, two_days, NOW)
        assert report.dropped
        async with DatabaseIds(node.database).open_cold() as cold:
            assert cold.horizon_ns == report.horizon_ns
            await check(cold, await stored_ids(node), random.Random(7))


async def test_wrong_summaries_are_named(node: Node) -> None:
    await store(node, random.Random(9))
    await fold_all(node)
    await node.rows("update storenode.buckets set count = count + 1 where level = 1")
    async with DatabaseIds(node.database).open_cold() as cold:
        with pytest.raises(SummaryMismatchError):
            await check(cold, await stored_ids(node), random.Random(9))


async def test_a_broken_connection_says_that_the_database_does_not_serve(node: Node) -> None:
    await store(node, random.Random(8))
    async with DatabaseIds(node.database).open_cold() as cold:
        assert await node.value(TERMINATE_OTHERS) != 0
        with pytest.raises(StoreUnavailableError):
            await cold.load(NeedIds(EVERYTHING, 10))


async def test_who_keeps_everybody_from_reading_is_not_waited_for_long(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = reconciliation._BEGIN.replace("lock_timeout = '5s'", "lock_timeout = '10ms'")
    assert "10ms" in begin
    monkeypatch.setattr(reconciliation, "_BEGIN", begin)
    connection = await node.database.connect()
    async with connection, connection.transaction():
        await connection.execute("lock table storenode.messages in access exclusive mode")
        with pytest.raises(StoreUnavailableError):
            async with DatabaseIds(node.database).open_cold():
                pass


@pytest.fixture
def leap(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that lets the time of a view pass."""

    def go() -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time
        monkeypatch.setattr(loop, "time", lambda: now_s() + MAX_VIEW_S)

    return go


async def test_a_view_ends_when_its_time_has_passed(node: Node, leap: Callable[[], None]) -> None:
    await store(node, random.Random(9))
    async with DatabaseIds(node.database).open_cold() as cold:
        leap()
        # Nothing is asked of the view; its transaction, with its locks, ends nevertheless.
        connection = await node.database.connect()
        async with connection, connection.transaction():
            await connection.execute("lock table storenode.messages in access exclusive mode")
        with pytest.raises(StoreUnavailableError, match="open for too long"):
            await cold.load(NeedIds(EVERYTHING, 10))


async def test_a_statement_ends_when_the_views_time_has_passed(
    node: Node, monkeypatch: pytest.MonkeyPatch, leap: Callable[[], None]
) -> None:
    async def slow(
        connection: psycopg.AsyncConnection[object], *_: object, **__: object
    ) -> SyncIds:
        leap()
        await connection.execute("select pg_sleep(60)")
        return SyncIds.empty()

    monkeypatch.setattr(reconciliation, "ids_in", slow)
    async with DatabaseIds(node.database).open_cold() as cold:
        with pytest.raises(StoreUnavailableError, match="open for too long"):
            await cold.load(NeedIds(EVERYTHING, 10))
