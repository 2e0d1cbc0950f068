"""Wrong summaries are found by a check, and rebuilt while nodes continue."""

from __future__ import annotations

import asyncio
import random

import pytest

from store.db import buckets as buckets_module
from store.db.buckets import Resummarized, fold_until, resummarize, seal
from store.db.check import (
    FOLDED_BEYOND,
    WRONG_LATTICE,
    WRONG_LEVEL,
    WRONG_SUMMARY,
    CheckReport,
    Finding,
    check,
)
from store.db.connection import Connection
from store.domain.partitioning import Bounds
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
from tests.integration.storage.world import DAY, NOW, random_batch

SEED = 20261120
TODAY = NOW // DAY * DAY
PATIENCE_S = 90.0
BURST = 10
"""Commits of a publisher between two times that all is folded."""

SPREAD = [NOW - number * DAY // 7 for number in range(28)]
A_MINUTE = f"level = 0 and start_ns = {NOW - NOW % MINUTE}"
FLIP = "update storenode.buckets set lattice = set_byte(lattice, 77, 255 # get_byte(lattice, 77))"
LAST = "(select max(position) from storenode.commits)"
HOUR_START = NOW // LENGTHS[1] * LENGTHS[1]
BOTH = {WRONG_SUMMARY, WRONG_LEVEL}
DAMAGES = (
    (f"update storenode.commits set summary = '' where position = {LAST}", {WRONG_SUMMARY}),
    (f"update storenode.buckets set count = count + 1 where {A_MINUTE}", BOTH),
    (f"update storenode.buckets set x2 = x2 # 1 where {A_MINUTE}", BOTH),
    (f"insert into storenode.buckets values (0, {-MINUTE}, 1, 1, 1, 1, 1)", BOTH),
    (
        f"update storenode.buckets set count = 7 where level = 2 and start_ns = {TODAY}",
        {WRONG_LEVEL},
    ),
    ("delete from storenode.buckets", {WRONG_SUMMARY}),
    (f"{FLIP} where level = 1 and start_ns = {HOUR_START}", {WRONG_LATTICE}),
    (f"{FLIP} where level = 2 and start_ns = {TODAY}", {WRONG_LATTICE}),
    ("update storenode.store set folded_position = 0", {WRONG_SUMMARY, WRONG_LATTICE}),
)


@pytest.fixture(autouse=True)
async def _filled(node: Node, connection: Connection) -> None:
    """Store folded and unfolded messages."""
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 100, SPREAD))
    await fold_until(connection)
    await seal(connection, NOW + 2 * DAY)
    await node.store(random_batch(rng, 100, SPREAD))


async def checked(node: Node, sample: int | None = None) -> CheckReport:
    return await asyncio.to_thread(check, node.database.url, now_ns=lambda: NOW, sample=sample)


async def findings(node: Node, sample: int | None = None) -> dict[str, Finding]:
    return {each.kind: each for each in (await checked(node, sample)).findings}


def days_of(found: Summary) -> int:
    return sum(level == 2 for level, _ in found)


async def test_what_is_wrong_is_found_and_made_anew(node: Node, connection: Connection) -> None:
    assert await findings(node) == {}
    right = await assert_true(connection)
    for damage, kinds in DAMAGES:
        await connection.execute(damage.encode())
        found = await findings(node)
        assert found.keys() == kinds, damage
        assert {each.where for each in found.values()} == {"buckets"}
        assert all("resummarize" in each.advice for each in found.values())
        assert await resummarize(connection) == Resummarized(days_of(right), 200)
        assert await assert_true(connection) == right
    await fold_until(connection)
    assert await assert_folded(connection) == right
    await connection.execute("update storenode.store set folded_position = 1000000")
    assert FOLDED_BEYOND in await findings(node)
    await connection.execute(f"update storenode.store set folded_position = {LAST}".encode())
    await resummarize(connection)
    assert await findings(node) == {}


async def test_a_sample_looks_at_some_hours(node: Node, connection: Connection) -> None:
    await fold_until(connection)
    minutes = sum(level == 0 for level, _ in await stored_summaries(connection))
    report = await checked(node, sample=1_000)
    assert (report.findings, report.checked["buckets"]) == ([], minutes)
    assert 0 < (await checked(node, sample=3)).checked["buckets"] < minutes
    await connection.execute("update storenode.buckets set x0 = x0 # 1 where level = 0")
    assert WRONG_SUMMARY in await findings(node, sample=3)


async def test_only_the_days_that_are_asked_for_are_made_anew(connection: Connection) -> None:
    await fold_until(connection)
    right = await assert_folded(connection)
    await connection.execute("delete from storenode.buckets")
    low, high = TODAY - 3 * DAY, TODAY - DAY
    done = await resummarize(connection, Bounds(low + 5, high - 5))
    assert done.days == 2
    within = {key: value for key, value in right.items() if low <= key[1] < high}
    assert await buckets(connection) == within
    rest = [Bounds(-(2**63), low), Bounds(high, 2**63)]
    assert sum([(await resummarize(connection, each)).days for each in rest]) == days_of(right) - 2
    assert await buckets(connection) == right


async def test_nodes_go_on_while_summaries_are_made_anew(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets_module, "MAX_FOLD_COMMITS", 16)  # publishers are faster than 1
    rng = random.Random(SEED)
    done, folded = asyncio.Event(), asyncio.Event()

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

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as others:
        for work in (publish, publish, keep_folding, keep_folding):
            others.create_task(work())
        await resummarize(connection)
        assert await findings(node) == {}
        done.set()
    await fold_until(connection)
    await assert_folded(connection)
