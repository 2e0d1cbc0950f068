"""Views of what a database holds: every answer that of a list, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from reconcile.ids import END, LOWEST, SyncId
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.db.maintenance.retention import prune
from store.db.reconciliation import DatabaseIds
from store.db.summaries.buckets import DAY_NS, HOUR_NS, MINUTE_NS
from store.db.summaries.fold import fold_until
from store.domain.hub import CommitRow, Place
from store.domain.ports import StoreBusy, StoreUnavailable
from store.domain.retention import RetentionPolicy
from store.domain.view import Newest
from store.sync.index import view_reads
from store.sync.index.views import StoredView
from store.sync.limits import MAX_COLD_VIEWS, IndexLimits
from tests.integration.storage.view_node import PATIENT, WINDOW, ViewingNode, check_view, viewing
from tests.integration.storage.world import DAY, NOW, random_batch
from tests.unit.reconcile.answers import check_answer

EDGES = (NOW, NOW - HOUR_NS, NOW - MINUTE_NS, NOW - DAY_NS, NOW - 3 * DAY_NS, NOW - 12 * HOUR_NS)
FLOOR = (NOW - WINDOW, bytes(32))
RECENT = (NOW - WINDOW // 2, bytes(32))
EVERYTHING = Spans.of([(LOWEST, END)])
_IN_TRANSACTION = """
select count(*) from pg_stat_activity
where datname = current_database() and state = 'idle in transaction'
"""
_TAMPER = "update storenode.buckets set count = count + 1 where level = 1"


def times(rng: random.Random, count: int) -> list[int]:
    """Return times around edges of buckets, within days, a minute, and a nanosecond."""
    return [
        *(rng.choice(EDGES) + rng.choice((-1, 0, 1)) for _ in range(count)),
        *(NOW - rng.randrange(5 * DAY) for _ in range(count)),
        *(NOW - rng.randrange(2 * HOUR_NS) for _ in range(count)),
        *(NOW - 2 * DAY + rng.randrange(MINUTE_NS) for _ in range(count)),
        *([NOW - 30 * MINUTE_NS] * count),
    ]


async def store(node: ViewingNode, rng: random.Random, count: int = 100) -> None:
    await node.store(random_batch(rng, count, times(rng, count)))


async def fold_all(node: ViewingNode) -> None:
    async with node.database.connection(node.database.read_pool) as connection:
        await fold_until(connection)


async def count_of(view: StoredView, lower: SyncId, upper: SyncId = END) -> int:
    answer = await view.answer(Read(measure=Spans.of([(lower, upper)])))
    assert answer.measured is not None
    return int(answer.measured.counts[0])


@pytest.mark.parametrize("started", [True, False], ids=["index", "no index"])
async def test_every_answer_is_that_of_a_list(database_url: str, *, started: bool) -> None:
    rng = random.Random(1)
    async with viewing(database_url, started=started) as node:
        for number in range(6):
            await store(node, rng)
            if number % 2:
                await fold_all(node)
            oracle = await node.stored_view()
            async with node.views.open_view(LOWEST, END) as view:
                await check_view(view, oracle, rng)
        recent = sum(each >= FLOOR for each in oracle.ids)
        assert node.views.index_entries == (recent if started else 0)
        assert node.views.index_start_ns == (FLOOR[0] if started else 0)


@pytest.mark.parametrize("started", [True, False], ids=["index", "no index"])
async def test_what_is_published_meanwhile_changes_nothing(
    database_url: str, *, started: bool
) -> None:
    rng = random.Random(2)
    async with viewing(database_url, started=started) as node, viewing(database_url) as other:
        await store(node, rng)
        oracle = await node.stored_view()
        ended = asyncio.Event()

        async def publish(publisher: ViewingNode) -> None:
            while not ended.is_set():
                await store(publisher, rng, 20)

        async with node.views.open_view(LOWEST, END) as view, asyncio.TaskGroup() as group:
            group.create_task(publish(node))
            group.create_task(publish(other))
            try:
                for _ in range(5):
                    await check_view(view, oracle, rng)
                    await fold_all(node)
            finally:
                ended.set()
        oracle = await node.stored_view()
        async with node.views.open_view(LOWEST, END) as view:
            await check_view(view, oracle, rng)


async def test_what_was_acknowledged_before_is_in_the_view(database_url: str) -> None:
    rng = random.Random(3)
    async with viewing(database_url) as node, viewing(database_url) as other:
        for number in range(20):
            publisher, viewer = (node, other) if number % 2 else (other, node)
            batch = random_batch(rng, 3, [NOW - number])
            await publisher.store(batch)
            async with viewer.views.open_view(RECENT, END) as view:
                assert await count_of(view, RECENT) == 3 * (number + 1)


async def test_above_the_floor_no_connection_is_used(database_url: str) -> None:
    rng = random.Random(4)
    async with viewing(database_url) as node:
        await store(node, rng)
        oracle = await node.stored_view()
        await node.no_transaction()  # of the index, which has read what was there
        async with node.views.open_view(RECENT, END) as view:
            await check_view(view, oracle, rng, above=RECENT)
            assert await node.value(_IN_TRANSACTION) == 0
            # A peer may ask about what is older all the same.
            assert await count_of(view, LOWEST) == len(oracle.ids)
            assert await node.value(_IN_TRANSACTION) == 1
            await check_view(view, oracle, rng)
        await node.no_transaction()


async def test_an_index_that_lags_is_not_used(database_url: str) -> None:
    rng = random.Random(5)
    async with viewing(database_url, limits=IndexLimits(patience_s=0.05)) as node:
        await store(node, rng)
        async with node.views.open_view(RECENT, END) as view:
            before = await count_of(view, RECENT)
        await node.feed.stop()
        await node.store(random_batch(rng, 7, [NOW]))
        async with node.views.open_view(RECENT, END) as view:
            assert await count_of(view, RECENT) == before + 7
            await check_view(view, await node.stored_view(), rng)


async def test_an_index_of_what_the_database_lost_is_not_used(database_url: str) -> None:
    rng = random.Random(6)
    async with viewing(database_url) as node:
        await store(node, rng)
        await store(node, rng)
        async with node.views.open_view(RECENT, END) as view:
            both = await count_of(view, RECENT)
        kept = await node.value("select min(position) from storenode.commits")
        await node.rows(
            "delete from storenode.messages where batch in"
            " (select batch from storenode.commits where position > %s)",
            kept,
        )
        await node.rows("delete from storenode.commits where position > %s", kept)
        async with node.views.open_view(RECENT, END) as view:
            assert await count_of(view, RECENT) < both
            await check_view(view, await node.stored_view(), rng)
        await node.until_warm()
        async with node.views.open_view(RECENT, END) as view:
            await check_view(view, await node.stored_view(), rng, above=RECENT)


async def test_an_index_that_takes_in_what_the_database_lost_meanwhile_is_not_used(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(13)
    async with viewing(database_url) as node:
        await store(node, rng)
        async with node.views.open_view(RECENT, END) as view:
            before = await count_of(view, RECENT)
        await node.feed.stop()
        await node.store(random_batch(rng, 7, [NOW]))
        look = DatabaseIds.newest

        async def look_and_go_on(stored: DatabaseIds, seen: Place) -> Newest:
            found = await look(stored, seen)
            lost = CommitRow((found.place[0], 0), 0, 1, NOW, NOW, None)
            node.hot.commits([lost])
            await node.until(lambda: node.hot.place == lost.place)
            return found

        monkeypatch.setattr(DatabaseIds, "newest", look_and_go_on)
        async with node.views.open_view(RECENT, END) as view:
            assert await count_of(view, RECENT) == before + 7


async def test_retention_waits_for_a_view_and_shows_in_the_next(database_url: str) -> None:
    rng = random.Random(7)
    policy = RetentionPolicy(2 * DAY, None)
    async with viewing(database_url) as node:
        await store(node, rng, 200)
        oracle = await node.stored_view()
        connection = await node.database.connect()
        async with connection:
            async with node.views.open_view(LOWEST, END) as view:
                assert view.horizon == LOWEST
                assert not (await prune(connection, policy, NOW, lock_timeout_ms=50)).dropped
                await check_view(view, oracle, rng)
            await node.no_transaction()
            async with node.views.open_view(RECENT, END) as view:
                report = await prune(connection, policy, NOW)
                assert report.dropped
                assert view.horizon == LOWEST
                await check_view(view, await node.stored_view(), rng, above=RECENT)
                with pytest.raises(StoreUnavailable, match="dropped since"):
                    await count_of(view, LOWEST)
        async with node.views.open_view(LOWEST, END) as view:
            assert view.horizon == (report.horizon_ns, bytes(32))
            await check_view(view, await node.stored_view(), rng)


async def test_a_node_that_starts_again_shows_the_same(database_url: str) -> None:
    rng = random.Random(8)
    for _ in range(3):
        async with viewing(database_url) as node:
            async with node.views.open_view(LOWEST, END) as view:
                await check_view(view, await node.stored_view(), rng)
            await store(node, rng)


async def test_wrong_summaries_are_named(database_url: str) -> None:
    rng = random.Random(9)
    async with viewing(database_url) as node:
        await store(node, rng)
        await fold_all(node)
        await node.rows(_TAMPER)
        async with node.views.open_view(LOWEST, END) as view:
            with pytest.raises(StoreUnavailable, match="storenode db check"):
                await view.answer(Read(split=(EVERYTHING, np.array([5_000]))))


async def test_no_more_views_than_allowed_read_from_the_database(database_url: str) -> None:
    rng = random.Random(10)
    async with viewing(database_url, limits=replace(PATIENT, cold_patience_s=0.05)) as node:
        await store(node, rng)
        oracle = await node.stored_view()
        async with AsyncExitStack() as stack:
            for _ in range(MAX_COLD_VIEWS):
                await stack.enter_async_context(node.views.open_view(LOWEST, END))
            with pytest.raises(StoreBusy):
                async with node.views.open_view(LOWEST, END):
                    pass
            async with node.views.open_view(RECENT, END) as view:
                await check_view(view, oracle, rng, above=RECENT)
        async with node.views.open_view(LOWEST, END) as view:
            await check_view(view, oracle, rng)


async def test_views_that_are_left_in_any_way_leave_nothing_behind(database_url: str) -> None:
    rng = random.Random(11)
    async with viewing(database_url) as node:
        await store(node, rng)
        for _ in range(2 * MAX_COLD_VIEWS):
            opened = asyncio.Event()

            async def hold(opened: asyncio.Event = opened) -> None:
                async with node.views.open_view(LOWEST, END):
                    opened.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(hold())
            await opened.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(ZeroDivisionError):
                async with node.views.open_view(LOWEST, END):
                    raise ZeroDivisionError
        await node.no_transaction()
        async with node.views.open_view(LOWEST, END) as view:
            await check_view(view, await node.stored_view(), rng)


async def test_large_reads_are_worked_through_in_threads(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threaded: list[str] = []
    to_thread = asyncio.to_thread

    async def spy(work: Callable[..., Any], *given: object) -> object:
        threaded.append(work.__name__)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", spy)
    monkeypatch.setattr(view_reads, "THREADED_IDS", 1_000)
    rng = random.Random(12)
    async with viewing(database_url) as node:
        await node.store(random_batch(rng, 2_000, range(NOW - DAY, NOW, DAY // 2_000)))
        oracle = await node.stored_view()
        bounds = [(NOW - DAY + number * (DAY // 2_500) + 1, bytes(32)) for number in range(2_501)]
        read = Read(measure=Spans.of(list(pairwise(bounds))))
        threaded.clear()
        async with node.views.open_view(LOWEST, END) as view:
            check_answer(oracle, read, await view.answer(read))
        assert threaded == ["proceed", "proceed"]
        threaded.clear()
        async with node.views.open_view(LOWEST, END) as view:
            assert await count_of(view, LOWEST) == len(oracle.ids)
        assert threaded == []
