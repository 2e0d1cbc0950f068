"""The index in memory, and views of what a database holds: every answer that of a list.

The simulator runs the same index over databases that lag, fail and lose commits; here it is that
of Postgres: what is read, locked and left behind. Lags, losses and failures are the simulator's.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reconcile import kernel
from reconcile.ids import END, LOWEST, SyncId
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.db.maintenance.retention import prune
from store.db.summaries.buckets import DAY_NS, HOUR_NS, MINUTE_NS
from store.db.summaries.fold import fold_until
from store.domain.hub import MAX_WRITTEN_IDS, WrittenIds
from store.domain.ports import StoreBusy, StoreUnavailable
from store.domain.retention import RetentionPolicy
from store.sync.index.hot import HotView
from store.sync.index.views import StoredView
from store.sync.limits import FRESH_NS, MAX_COLD_VIEWS
from tests.integration.storage.followers import LongTransaction
from tests.integration.storage.view_node import (
    PATIENT,
    WINDOW,
    ViewingNode,
    check_view,
    viewing,
)
from tests.integration.storage.world import DAY, NOW, random_batch

EDGES = (NOW, NOW - HOUR_NS, NOW - MINUTE_NS, NOW - DAY_NS, NOW - 3 * DAY_NS, NOW - 12 * HOUR_NS)
FLOOR = (NOW - WINDOW, bytes(32))
RECENT = (NOW - WINDOW // 2, bytes(32))
EVERYTHING = Spans.of([(LOWEST, END)])
TWO_DAYS = RetentionPolicy(2 * DAY, None)
IN_TRANSACTION = """
select count(*) from pg_stat_activity
where datname = current_database() and state = 'idle in transaction'
"""
TAMPER = "update storenode.buckets set count = count + 1 where level = 1"
NEWEST = "select position, token from storenode.commits order by 1 desc limit 1"


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


async def store_recent(node: ViewingNode, rng: random.Random, count: int = 20) -> None:
    moments = [node.clock.now_ns - rng.randrange(WINDOW) for _ in range(count)]
    await node.store(random_batch(rng, count, moments))


async def fold_all(node: ViewingNode) -> None:
    async with node.database.connection(node.database.read_pool) as connection:
        await fold_until(connection)


async def count_of(view: StoredView, lower: SyncId, upper: SyncId = END) -> int:
    answer = await view.answer(Read(measure=Spans.of([(lower, upper)])))
    assert answer.measured is not None
    return int(answer.measured.counts[0])


async def hot_view(node: ViewingNode) -> HotView | None:
    """Return the index with everything that is committed."""
    rows: list[Any] = await node.rows(NEWEST)
    ((position, token),) = rows
    return await node.hot.view_at((position, token % 2**64), 0)


async def check(node: ViewingNode) -> HotView:
    """Check that the index has exactly what is stored from its floor on."""
    view = await hot_view(node)
    assert view is not None
    oracle = await node.stored_view()
    rows = view.view.rows
    assert rows.between(0, len(rows)).pairs() == [each for each in oracle.ids if each >= view.floor]
    return view


@pytest.mark.parametrize("started", [True, False], ids=["index", "no index"])
async def test_every_answer_is_that_of_a_list_whatever_is_published_meanwhile(
    database_url: str, *, started: bool
) -> None:
    rng = random.Random(1)
    async with viewing(database_url, started=started) as node, viewing(database_url) as other:
        for number in range(3):
            await asyncio.gather(store(node, rng), store(other, rng))
            if number % 2:
                await fold_all(node)
            oracle, ended = await node.stored_view(), asyncio.Event()

            async def publish(publisher: ViewingNode, ended: asyncio.Event = ended) -> None:
                while not ended.is_set():
                    await store(publisher, rng, 20)

            async with node.views.open_view(LOWEST, END) as view, asyncio.TaskGroup() as group:
                for publisher in (node, other):
                    group.create_task(publish(publisher))
                try:
                    for _ in range(3):
                        await check_view(view, oracle, rng)
                finally:
                    ended.set()
        long = LongTransaction(node)
        await long.open([random_batch(rng, 5, range(NOW - 50, NOW)) for _ in range(2)])
        await store(other, rng)
        await long.commit()
        # What any node has acknowledged is in the next view of any node.
        for each in (node, other):
            async with each.views.open_view(RECENT, END) as view:
                await check_view(view, await node.stored_view(), rng, above=RECENT)
        oracle = await node.stored_view()
        recent = sum(each >= FLOOR for each in oracle.ids) if started else 0
        assert (node.views.index_entries, node.views.index_start_ns) == (
            recent,
            FLOOR[0] if started else 0,
        )
    async with viewing(database_url) as node, node.views.open_view(LOWEST, END) as view:
        await check_view(view, oracle, rng)
        name, fields = node.events[0]
        assert (name, fields["compiled"]) == ("index_warm", kernel.compiled is not None)


async def test_above_the_floor_no_connection_is_used(database_url: str) -> None:
    rng = random.Random(4)
    async with viewing(database_url) as node:
        await store(node, rng)
        oracle = await node.stored_view()
        await node.no_transaction()  # of the index, which has read what was there
        async with node.views.open_view(RECENT, END) as view:
            await check_view(view, oracle, rng, above=RECENT)
            assert await node.value(IN_TRANSACTION) == 0
            # A peer may ask about what is older all the same.
            assert await count_of(view, LOWEST) == len(oracle.ids)
            assert await node.value(IN_TRANSACTION) == 1
            await check_view(view, oracle, rng)
        await node.no_transaction()


async def test_an_index_of_everything_needs_no_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(22)
    async with viewing(database_url, window_ns=NOW) as node, viewing(database_url) as other:
        await store_recent(node, rng)
        await check(node)
        await node.until(lambda: node.hot.entries == 20)

        async def fail(*_: object) -> None:
            raise AssertionError

        monkeypatch.setattr(node.database, "read", fail)
        async with node.views.open_view(LOWEST, END, recent=True) as view:
            assert await count_of(view, LOWEST) == 20
        monkeypatch.undo()
        node.written_ids.offer(7, random_batch(rng, 1, [NOW]), None)
        assert await node.hot.recent_view() is None, "a commit is under way"
        node.written_ids.take(7)
        assert await node.hot.recent_view() is not None
        assert await other.hot.recent_view() is None, "it does not hold everything"
        await node.feed.stop()
        node.steady.offset_ns += FRESH_NS
        assert await node.hot.recent_view() is None, "the feed may be cut off"
        node.hot.lost()
        assert await node.hot.recent_view() is None


async def test_retention_waits_for_a_view_and_shows_in_the_next(database_url: str) -> None:
    rng = random.Random(7)
    async with viewing(database_url, window_ns=5 * DAY) as node, viewing(database_url) as cold:
        await store(cold, rng, 200)
        oracle = await node.stored_view()
        async with await node.database.connect() as connection:
            async with cold.views.open_view(LOWEST, END) as view:
                assert view.horizon == LOWEST
                await count_of(view, LOWEST)
                assert not (await prune(connection, TWO_DAYS, NOW, lock_timeout_ms=50)).dropped
                await check_view(view, oracle, rng)
            await cold.no_transaction()
            async with cold.views.open_view(RECENT, END) as view:
                report = await prune(connection, TWO_DAYS, NOW)
                assert report.dropped
                assert view.horizon == LOWEST
                await check_view(view, await node.stored_view(), rng, above=RECENT)
                with pytest.raises(StoreUnavailable, match="dropped since"):
                    await count_of(view, LOWEST)
        for each in (cold, node):
            async with each.views.open_view(LOWEST, END) as view:
                assert view.horizon == (report.horizon_ns, bytes(32))
                await check_view(view, await node.stored_view(), rng)
        assert (await check(node)).floor == (report.horizon_ns, bytes(32))


async def test_wrong_summaries_are_named(database_url: str) -> None:
    async with viewing(database_url) as node:
        await store(node, random.Random(9))
        await fold_all(node)
        await node.rows(TAMPER)
        async with node.views.open_view(LOWEST, END) as view:
            with pytest.raises(StoreUnavailable, match="storenode db check"):
                await view.answer(Read(split=(EVERYTHING, np.array([5_000]))))


async def test_few_views_read_from_the_database_and_leave_nothing_behind(
    database_url: str,
) -> None:
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
        for _ in range(MAX_COLD_VIEWS + 1):
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
            await check_view(view, oracle, rng)


# The index


def test_written_ids_are_handed_over_once_or_dropped_in_time() -> None:
    written_ids, rng = WrittenIds(), random.Random(16)
    batch = random_batch(rng, 1_024, range(NOW, NOW + 5))
    written_ids.offer(1, batch, None)
    written_ids.offer(2, batch, frozenset(batch.hashes[:3]))
    pairs = list(zip(batch.timestamps, batch.hashes, strict=True))
    for number, expected in ((2, pairs[:3]), (1, pairs)):
        taken = written_ids.take(number)
        assert taken is not None
        assert taken.pairs() == expected
        assert written_ids.take(number) is None
    offered = 2 * MAX_WRITTEN_IDS // len(batch)
    for number in range(offered):
        written_ids.offer(number, batch, None)
    stored = [number for number in range(offered) if written_ids.take(number) is not None]
    assert stored == list(range(offered // 2, offered))
