"""Summaries when partitions are dropped and damage is repaired."""

from __future__ import annotations

import asyncio
import random

import pytest

from store.db.checks.check import CheckReport, check
from store.db.checks.summaries import FOLDED_BEYOND, WRONG_LEVEL, WRONG_SUMMARY
from store.db.maintenance import maintainer as maintainer_module
from store.db.maintenance.maintainer import Maintainer
from store.db.maintenance.retention import prune
from store.db.pool import Connection
from store.db.schema import partitions
from store.db.summaries import fold as fold_module
from store.db.summaries.fold import fold_until, is_pending
from store.db.summaries.resummarize import Resummarized, resummarize
from store.domain.partitioning import COMMITS_PER_PARTITION, Bounds
from store.domain.retention import RetentionPolicy
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.node import Node
from tests.integration.storage.summaries import (
    LENGTHS,
    MINUTE,
    Summary,
    assert_folded,
    assert_true,
    buckets,
    stored_summaries,
)
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, random_batch
from tests.support.polling import PAUSE_S

SEED = 20261120
TODAY = NOW // DAY * DAY
NEVER_S = 3_600.0
PATIENCE_S = 90.0
TWO_DAYS = RetentionPolicy(age_ns=2 * DAY)
WAITING = "select count(*) from pg_locks where not granted and locktype = 'relation'"
BURST = 10
"""Commits of a publisher between two times that all is folded."""

SPREAD = [NOW - number * DAY // 7 for number in range(60)]


def within(found: Summary, low: int, high: int) -> Summary:
    """Return those that begin in a range of time."""
    return {key: value for key, value in found.items() if low <= key[1] < high}


# Retention


async def test_a_drop_that_is_put_off_changes_no_summary(
    node: Node, connection: Connection
) -> None:
    await node.store(random_batch(random.Random(SEED), 100, SPREAD))
    async with await node.database.connect() as reader, reader.transaction():
        await reader.execute("select from storenode.messages where ts = %s", (min(SPREAD),))
        report = await prune(connection, TWO_DAYS, NOW, lock_timeout_ms=40)
        assert report.problems != ()
        assert len(await assert_folded(connection)) > 60
    assert (await prune(connection, TWO_DAYS, NOW)).problems == ()
    await assert_folded(connection)


async def test_what_is_written_while_a_drop_waits_for_it_goes_too(
    node: Node, connection: Connection
) -> None:
    """Let the last delta of a partition become visible when its buckets are gone already."""
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 100, SPREAD))
    slow = LongTransaction(node)
    await slow.open([random_batch(rng, 10, SPREAD)])
    async with asyncio.timeout(PATIENCE_S):
        pruning = asyncio.create_task(prune(connection, TWO_DAYS, NOW, lock_timeout_ms=20_000))
        await node.until_blocked("relation")
        assert not pruning.done()
        await slow.commit()
        report = await pruning
    assert report.problems == ()
    left = await assert_true(connection)
    assert within(left, 0, report.horizon_ns) == {}
    assert within(await buckets(connection), 0, report.horizon_ns) == {}


async def test_commits_are_folded_before_they_go(node: Node, connection: Connection) -> None:
    rng = random.Random(SEED)
    old = [TODAY - 5 * DAY, TODAY - 5 * DAY + 1]
    position = COMMITS_PER_PARTITION - 3
    await connection.execute("select setval('storenode.position_seq', %s)", (position,))
    for moments in (old, old, old, [NOW], [NOW, *old], [NOW]):
        await node.store(random_batch(rng, 5, moments))
    report = await prune(connection, TWO_DAYS, NOW)
    gone = {each.partition.name for each in report.dropped}
    assert {"commits_0", "messages_20261115"} <= gone
    assert len(await assert_folded(connection)) == len(LENGTHS)


# Check and repair


async def checked(url: str, sample: int | None = None) -> CheckReport:
    return await asyncio.to_thread(check, url, now_ns=lambda: NOW, sample=sample)


@pytest.fixture
async def filled_url(node: Node, connection: Connection, database_url: str) -> str:
    """Return a database with folded and unfolded summaries."""
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 100, SPREAD))
    await fold_until(connection)
    await node.store(random_batch(rng, 100, SPREAD))
    return database_url


A_MINUTE = f"level = 0 and start_ns = {NOW - NOW % MINUTE}"
DAMAGES = {
    "count": f"update storenode.buckets set count = count + 1 where {A_MINUTE}",
    "hashes": f"update storenode.buckets set x2 = x2 # 1 where {A_MINUTE}",
    "lost": f"delete from storenode.buckets where {A_MINUTE}",
    "invented": f"insert into storenode.buckets values (0, {NOW - 400 * DAY}, 1, 1, 1, 1, 1)",
    "before time": f"insert into storenode.buckets values (0, {-MINUTE}, 1, 1, 1, 1, 1)",
    "delta": "update storenode.commits set summary = '' where position ="
    " (select max(position) from storenode.commits)",
    "folded twice": "update storenode.store set folded_position = 0",
    "hour": f"update storenode.buckets set x0 = x0 # 1 where level = 1 and start_ns <= {NOW}",
    "day": f"update storenode.buckets set count = 7 where level = 2 and start_ns = {TODAY}",
    "everything": "delete from storenode.buckets",
}
IN_LEVELS = {"hour", "day"}
IN_BOTH = DAMAGES.keys() - IN_LEVELS - {"delta", "folded twice", "everything"}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_is_wrong_is_found_and_made_anew(
    filled_url: str, connection: Connection, damage: str
) -> None:
    assert (await checked(filled_url)).findings == []
    before = await assert_true(connection)
    await connection.execute(DAMAGES[damage].encode())
    report = await checked(filled_url)
    expected = {WRONG_LEVEL} if damage in IN_LEVELS else {WRONG_SUMMARY}
    if damage in IN_BOTH:
        expected.add(WRONG_LEVEL)
    assert {each.kind for each in report.findings} == expected
    assert {each.where for each in report.findings} == {"buckets"}
    assert all(each.advice for each in report.findings)
    done = await resummarize(connection)
    assert done == Resummarized(days_of(before), 200)
    assert (await checked(filled_url)).findings == []
    assert await assert_true(connection) == before
    await fold_until(connection)
    assert await assert_folded(connection) == before


def days_of(found: Summary) -> int:
    return sum(level == 2 for level, _ in found)


async def test_what_differs_is_named(filled_url: str, connection: Connection) -> None:
    await fold_until(connection)
    right = (await stored_summaries(connection))[0, NOW - NOW % MINUTE][0]
    await connection.execute(DAMAGES["count"].encode())
    findings = {each.kind: each for each in (await checked(filled_url)).findings}
    minute = f"minute 2026-11-20T12:00Z ({NOW - NOW % MINUTE})"
    assert findings[WRONG_SUMMARY].examples == [
        f"{minute}: {right} messages held, {right + 1} in the summary"
    ]
    assert findings[WRONG_SUMMARY].count == findings[WRONG_LEVEL].count == 1
    assert findings[WRONG_LEVEL].examples[0].startswith("hour 2026-11-20T12:00Z ")
    await connection.execute(DAMAGES["hashes"].encode())
    await connection.execute(f"update storenode.buckets set count = {right} where {A_MINUTE}")
    findings = {each.kind: each for each in (await checked(filled_url)).findings}
    assert findings[WRONG_SUMMARY].examples == [f"{minute}: {right} messages, but of other hashes"]


async def test_a_sample_looks_at_some_hours(filled_url: str, connection: Connection) -> None:
    await fold_until(connection)
    minutes = sum(level == 0 for level, _ in await stored_summaries(connection))
    report = await checked(filled_url, sample=1_000)
    assert (report.findings, report.checked["buckets"]) == ([], minutes)
    assert 0 < (await checked(filled_url, sample=3)).checked["buckets"] < minutes
    await connection.execute("update storenode.buckets set x0 = x0 # 1 where level = 0")
    assert WRONG_SUMMARY in {each.kind for each in (await checked(filled_url, sample=3)).findings}


async def test_a_place_beyond_all_commits_is_found(filled_url: str, connection: Connection) -> None:
    await connection.execute("update storenode.store set folded_position = 1000000")
    assert FOLDED_BEYOND in {each.kind for each in (await checked(filled_url)).findings}
    await connection.execute(
        "update storenode.store set folded_position = (select max(position) from storenode.commits)"
    )
    await resummarize(connection)
    assert (await checked(filled_url)).findings == []
    await assert_folded(connection)


@pytest.mark.usefixtures("filled_url")
async def test_only_the_days_that_are_asked_for_are_made_anew(connection: Connection) -> None:
    await fold_until(connection)
    right = await assert_folded(connection)
    await connection.execute("delete from storenode.buckets")
    part = Bounds(TODAY - 3 * DAY + 5, TODAY - DAY - 5)
    done = await resummarize(connection, part)
    low, high = TODAY - 3 * DAY, TODAY - DAY
    assert await buckets(connection) == within(right, low, high)
    assert done.days == 2
    rest = [Bounds(-(2**63), low), Bounds(high, 2**63)]
    assert sum([(await resummarize(connection, each)).days for each in rest]) == days_of(right) - 2
    assert await buckets(connection) == right


async def test_nodes_go_on_while_summaries_are_made_anew(
    node: Node, filled_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_module, "MAX_FOLD_COMMITS", 16)  # publishers are faster than 1
    rng = random.Random(SEED)
    done = asyncio.Event()
    folded = asyncio.Event()

    async def publish() -> None:
        while not done.is_set():
            for _ in range(BURST):
                await node.store(random_batch(rng, 5, SPREAD))
            if not done.is_set():  # without a pause, what is not folded grows without end
                folded.clear()
                await folded.wait()

    async def keep_folding() -> None:
        async with await node.database.connect() as own:
            while not done.is_set():
                await fold_until(own)
                await assert_true(own)
                folded.set()
            folded.set()

    async with await node.database.connect() as own:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as others:
            for work in (publish, publish, keep_folding):
                others.create_task(work())
            for _ in range(2):
                await resummarize(own)
            assert (await checked(filled_url)).findings == []
            done.set()
        await fold_until(own)
        await assert_folded(own)


# The maintainer


@pytest.fixture
def quick_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintainer_module, "FOLD_INTERVAL_S", 0.01)


def maintainer(node: Node, events: list[dict[str, object]], **options: object) -> Maintainer:
    def note(name: str, /, **fields: object) -> None:
        events.append({"name": name, **fields})

    return Maintainer(
        node.database.connect,
        RetentionPolicy,
        on_event=note,
        now_ns=lambda: NOW,
        interval_s=NEVER_S,
        **options,  # type: ignore[arg-type]
    )


async def until_folded(connection: Connection) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await is_pending(connection):  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)


@pytest.mark.usefixtures("quick_folds")
async def test_a_maintainer_folds_between_its_rounds(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a slow machine the writer makes its first partitions for longer than a round would wait.
    monkeypatch.setattr(partitions, "CREATE_LOCK_TIMEOUT_MS", 60_000)
    rng, events = random.Random(SEED), list[dict[str, object]]()
    keeper = maintainer(node, events)
    task = asyncio.create_task(keeper.run())
    for _ in range(4):
        await node.store(random_batch(rng, 20, SPREAD))
        await until_folded(connection)
        await assert_folded(connection)
    assert keeper.rounds == 1
    task.cancel()
    await asyncio.wait([task])
    assert "maintenance_failed" not in {each["name"] for each in events}


@pytest.mark.usefixtures("quick_folds")
async def test_a_maintainer_whose_clock_is_wrong_still_folds(
    node: Node, connection: Connection
) -> None:
    keeper = maintainer(node, [], max_lead_ns=-(10 * 366 * DAY))
    task = asyncio.create_task(keeper.run())
    await node.store(random_batch(random.Random(SEED), 20, SPREAD))
    await until_folded(connection)
    assert (keeper.rounds, keeper.in_charge) == (0, False)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.usefixtures("quick_folds")
async def test_a_fold_that_fails_is_reported_and_tried_again(
    node: Node, connection: Connection
) -> None:
    events: list[dict[str, object]] = []
    await node.store(batch_of([(NOW, TOPICS[0], b"")]))
    await node.rows("alter table storenode.commits drop constraint commits_summary_check")
    damage = "update storenode.commits set summary = summary || '\\x00'"
    repair = "update storenode.commits set summary = substring(summary for 48)"
    await node.rows(damage)
    keeper = maintainer(node, events)
    task = asyncio.create_task(keeper.run())
    async with asyncio.timeout(PATIENCE_S):
        while len(events) < 3:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)
    assert [each.get("task") for each in events[:3]] == [None, "fold", "fold"]
    assert "multiple of 48 bytes" in str(events[1]["error"])
    await node.rows(repair)
    await until_folded(connection)
    await assert_folded(connection)
    assert keeper.in_charge
    task.cancel()
    await asyncio.wait([task])
