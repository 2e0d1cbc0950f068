"""The index in memory follows the database's commits, and gives nothing when it does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reconcile import kernel
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.view import Spans
from reconcile.view import ViewRead as Read
from store.db import reconciliation
from store.db.maintenance.retention import prune
from store.db.pool import Connection
from store.db.reconciliation import ids_of
from store.domain.hub import MAX_WRITTEN_IDS, CommitRow, WrittenIds
from store.domain.ports import StoreUnavailable
from store.domain.retention import RetentionPolicy
from store.domain.view import StoredIds
from store.sync.index import hot
from store.sync.index.hot import HotView, Warm, warm_up
from store.sync.limits import FLOOR_STEP_NS, FRESH_NS, IndexLimits
from storenode.message.limits import NS_PER_S
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.view_node import (
    PATIENCE_S,
    PATIENT,
    WINDOW,
    ViewingNode,
    viewing,
)
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch

MINUTE = 60 * NS_PER_S
_FORGET = "delete from storenode.commits where position > %s"
_LOSE = "delete from storenode.messages where batch in"
_LOSE += " (select batch from storenode.commits where position > %s)"


async def store(
    node: ViewingNode, rng: random.Random, count: int = 20, span_ns: int = WINDOW
) -> None:
    times = [node.clock.now_ns - rng.randrange(span_ns) for _ in range(count)]
    await node.store(random_batch(rng, count, times))


async def hot_view(node: ViewingNode) -> HotView | None:
    """Return the index with everything that is committed."""
    position, token = (
        await node.rows("select position, token from storenode.commits order by 1 desc limit 1")
    )[0]
    assert isinstance(position, int)
    assert isinstance(token, int)
    return await node.hot.view_at((position, token % 2**64), 0)


async def check(node: ViewingNode) -> HotView:
    """Check that the index has exactly what is stored from its floor on."""
    view = await hot_view(node)
    assert view is not None
    oracle = await node.stored_view()
    rows = view.view.rows
    assert rows.between(0, len(rows)).pairs() == [each for each in oracle.ids if each >= view.floor]
    return view


async def test_it_has_what_was_there_and_what_comes(database_url: str) -> None:
    rng = random.Random(1)
    async with viewing(database_url, started=False) as node:
        for _ in range(3):
            await store(node, rng, span_ns=2 * WINDOW)
        assert await hot_view(node) is None
        assert (node.hot.entries, node.hot.floor_ns) == (0, 0)
        node.hot.start()
        await node.until_warm()
        for _ in range(3):
            view = await check(node)
            assert view.floor == (NOW - WINDOW, bytes(32))
            assert 0 < len(view.view) < len((await node.stored_view()).ids)
            await store(node, rng, span_ns=2 * WINDOW)
        name, fields = node.events[0]
        assert name == "index_warm"
        assert fields["compiled"] == (kernel.compiled is not None)


async def test_what_this_node_writes_is_not_read_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> SyncIds:
        raise AssertionError

    monkeypatch.setattr(reconciliation, "ids_of", fail)
    messages = [(NOW - number, TOPICS[0], bytes([number])) for number in range(30)]
    async with viewing(database_url) as node:
        await node.store(batch_of(messages[:20]))
        assert (await node.store(batch_of(messages[10:]))).count(True) == 10
        assert len((await check(node)).view) == 30
        assert [name for name, _ in node.events] == ["index_warm"]


async def test_what_other_nodes_write_comes_too(database_url: str) -> None:
    rng = random.Random(3)
    async with viewing(database_url) as node, viewing(database_url) as other:
        for _ in range(4):
            await asyncio.gather(*(store(each, rng) for each in (node, other, node, other)))
            for each in (node, other):
                await check(each)
        transaction = LongTransaction(node)
        times = range(NOW - 50, NOW)
        await transaction.open([random_batch(rng, 5, times), random_batch(rng, 5, times)])
        await store(other, rng)
        await check(other)
        await transaction.commit()
        for each in (node, other):
            assert len((await check(each)).view) == 16 * 20 + 20 + 10


async def test_views_do_not_change(database_url: str) -> None:
    rng = random.Random(4)
    async with viewing(database_url) as node:
        await store(node, rng)
        views = []
        for _ in range(5):
            view = await check(node)
            views.append((view, view.view.rows.between(0, len(view.view)).pairs()))
            await store(node, rng)
            node.clock.now_ns += MINUTE
            for kept, ids in views:
                assert kept.view.rows.between(0, len(kept.view)).pairs() == ids


async def test_a_view_waits_for_a_commit_and_not_for_ever(database_url: str) -> None:
    async with viewing(database_url, limits=IndexLimits(patience_s=0.05)) as node:
        await store(node, random.Random(7))
        await node.until(lambda: node.hot.entries == 20)
        await check(node)
        position = node.hot.place[0]
        assert await node.hot.view_at((position + 1, 0), 0) is None
        assert await node.hot.view_at((position, 0), 0) is not None


async def test_commits_wait_for_others_unless_a_view_waits_or_many_do(database_url: str) -> None:
    rng = random.Random(21)
    limits = IndexLimits(gather_s=3_600, patience_s=3_600, waiting_commits=8)
    async with viewing(database_url, limits=limits) as node, asyncio.timeout(PATIENCE_S):
        for _ in range(2):
            await store(node, rng)
            assert node.hot.entries % 40 == 0
            assert await hot_view(node) is not None
            await store(node, rng)
            await check(node)
        for _ in range(5):
            await store(node, rng)
        await node.until(lambda: node.hot.entries > 80)
        await check(node)


@pytest.mark.parametrize("gathered", [True, False], ids=["before", "meanwhile"])
async def test_it_never_holds_more_than_there_is_room_for(
    database_url: str, *, gathered: bool
) -> None:
    rng = random.Random(8)
    async with viewing(database_url, limits=replace(PATIENT, entries=100), started=False) as node:
        if not gathered:
            node.hot.start()
            await node.until_warm()
        for _ in range(6):
            await store(node, rng, 50)
            if not gathered:
                assert len((await check(node)).view) <= 100
        if gathered:
            node.hot.start()
            await node.until_warm()
        view = await check(node)
        assert 50 <= len(view.view) <= 100
        assert view.floor[0] > NOW - WINDOW
        assert view.floor[0] % FLOOR_STEP_NS == 0


async def test_more_in_one_moment_than_there_is_room_for_is_left_to_the_database(
    database_url: str,
) -> None:
    rng = random.Random(9)
    async with viewing(database_url, limits=replace(PATIENT, entries=10)) as node:
        await node.store(random_batch(rng, 50, [NOW]))
        assert len((await check(node)).view) == 0
        await node.store(random_batch(rng, 5, [NOW + 2 * MINUTE]))
        assert len((await check(node)).view) == 5
    async with viewing(database_url, limits=replace(PATIENT, entries=10)) as node:
        assert len((await check(node)).view) <= 10


async def test_what_lies_below_the_horizon_is_dropped(database_url: str) -> None:
    rng = random.Random(10)
    async with viewing(database_url, window_ns=5 * DAY) as node:
        await store(node, rng, 100, span_ns=5 * DAY)
        await check(node)
        connection = await node.database.connect()
        async with connection:
            report = await prune(connection, RetentionPolicy(2 * DAY, None), NOW)
        assert report.dropped
        view = await node.hot.view_at(node.hot.place, report.horizon_ns)
        assert view is not None
        assert view.floor == (report.horizon_ns, bytes(32))
        await check(node)
    async with viewing(database_url, window_ns=5 * DAY) as node:
        assert (await check(node)).horizon_ns == report.horizon_ns


async def test_an_index_of_everything_needs_no_statement(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(22)
    async with viewing(database_url, window_ns=NOW) as node, viewing(database_url) as other:
        await store(node, rng)
        recent = await node.hot.recent_view()
        assert recent is None or len(recent.view) == 20, "it has what this node has acknowledged"
        await check(node)
        await node.until(lambda: node.hot.entries == 20)

        async def fail(*_: object) -> None:
            raise AssertionError

        monkeypatch.setattr(node.database, "read", fail)
        async with node.views.open_view(LOWEST, END, recent=True) as view:
            answer = await view.answer(Read(measure=Spans.of([(LOWEST, END)])))
            assert answer.measured is not None
            assert answer.measured.counts.tolist() == [20]
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


async def test_after_a_failure_there_is_no_index_until_one_is_made(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Exception] = [StoreUnavailable("away"), ZeroDivisionError(), KeyError("x")]
    seen: list[int] = []

    async with viewing(database_url, started=False) as node:

        async def faulty(stored: StoredIds, limits: IndexLimits) -> Warm:
            seen.append(node.hot.floor_ns)
            assert await hot_view(node) is None
            if faults:
                raise faults.pop(0)
            return await warm_up(stored, limits)

        monkeypatch.setattr(hot, "warm_up", faulty)
        await store(node, random.Random(11))
        node.hot.start()
        await node.until_warm()
        await check(node)
        assert seen == [0, 0, 0, 0]
        assert [name for name, _ in node.events] == ["index_failed"] * 3 + ["index_warm"]
        assert [fields["retry_s"] for _, fields in node.events[:3]] == [0.01, 0.02, 0.04]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (StoreUnavailable("away"), ["index_warm"]),
        (ZeroDivisionError(), ["index_warm", "index_failed", "index_warm"]),
    ],
    ids=["away", "other"],
)
async def test_it_outlives_a_fault_while_it_follows(
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    fault: Exception,
    expected: list[str],
) -> None:
    faults = [fault]

    async def faulty(connection: Connection, commits: Sequence[CommitRow]) -> SyncIds:
        if faults:
            raise faults.pop()
        return await ids_of(connection, commits)

    monkeypatch.setattr(reconciliation, "ids_of", faulty)
    rng = random.Random(12)
    async with viewing(database_url) as node, viewing(database_url, started=False) as other:
        await store(other, rng)
        await node.until(lambda: node.hot.entries == 20)
        await check(node)
        await store(other, rng)
        await check(node)
        assert [name for name, _ in node.events] == expected


async def test_lost_commits_are_not_in_a_new_index(database_url: str) -> None:
    rng = random.Random(13)
    async with viewing(database_url) as node:
        await store(node, rng)
        await check(node)
        kept = node.hot.place[0]
        await store(node, rng)
        assert len((await check(node)).view) == 40
        # As after a standby that lagged was promoted: the newest commit is not there any more.
        await node.rows(_LOSE, kept)
        await node.rows(_FORGET, kept)
        node.hot.lost()
        assert node.hot.entries == 0
        await node.until_warm()
        assert len((await check(node)).view) == 20
        assert [name for name, _ in node.events] == ["index_warm", "index_lost", "index_warm"]


async def test_too_many_commits_in_line_make_it_anew(database_url: str) -> None:
    rng = random.Random(14)
    async with viewing(database_url, limits=replace(PATIENT, waiting_commits=3)) as node:
        for _ in range(3):
            await store(node, rng)
        await check(node)
        newest = node.hot.place[0]
        node.hot.commits([CommitRow((newest + n, 0), 0, 1, NOW, NOW, None) for n in range(1, 5)])
        assert node.hot.entries == 0
        await node.until_warm()
        assert len((await check(node)).view) == 60
        assert [name for name, _ in node.events] == ["index_warm", "index_lost", "index_warm"]


async def test_commits_that_come_again_are_passed_over(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    async def counted(connection: Connection, commits: Sequence[CommitRow]) -> SyncIds:
        read.extend(commit.batch for commit in commits)
        return await ids_of(connection, commits)

    monkeypatch.setattr(reconciliation, "ids_of", counted)
    rng = random.Random(15)
    async with viewing(database_url) as node, viewing(database_url) as other:
        await store(other, rng)
        await check(node)
        node.hot.commits([CommitRow(node.hot.place, 1, 20, NOW - WINDOW, NOW, None)])
        await store(other, rng)
        await check(node)
        assert len(read) == len(set(read)) == 2


async def test_a_batch_is_handed_over_once_with_what_was_new_of_it() -> None:
    written_ids, rng = WrittenIds(), random.Random(16)
    batch = random_batch(rng, 10, range(NOW, NOW + 5))
    written_ids.offer(1, batch, None)
    written_ids.offer(2, batch, frozenset(batch.hashes[:3]))
    pairs = list(zip(batch.timestamps, batch.hashes, strict=True))
    for number, expected in ((2, pairs[:3]), (1, pairs)):
        taken = written_ids.take(number)
        assert taken is not None
        assert taken.pairs() == expected
        assert written_ids.take(number) is None


async def test_a_number_that_comes_again_is_another_batch(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Show that a promoted standby may give numbers again that the lost primary gave."""
    rng = random.Random(18)
    async with viewing(database_url) as node, viewing(database_url) as other:
        await store(node, rng)
        offer = node.written_ids.offer

        def offer_and_fail(*offered: Any) -> None:  # noqa: ANN401
            offer(*offered)
            raise RuntimeError("rolled back")

        with monkeypatch.context() as patched:
            patched.setattr(node.written_ids, "offer", offer_and_fail)
            with pytest.raises(RuntimeError, match="rolled back"):
                await store(node, rng)
        again = "select setval('storenode.batch_seq', last_value, false) from storenode.batch_seq"
        await node.rows(again)
        await store(other, rng)
        await check(node)


async def test_what_is_not_taken_is_dropped_in_time() -> None:
    written_ids, rng = WrittenIds(), random.Random(17)
    batch = random_batch(rng, 1_024, range(NOW, NOW + 5))
    offered = 2 * MAX_WRITTEN_IDS // len(batch)
    for number in range(offered):
        written_ids.offer(number, batch, None)
    stored = [number for number in range(offered) if written_ids.take(number) is not None]
    assert stored == list(range(offered // 2, offered))
