"""Summaries in every snapshot while nodes write, fold, or are killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from store.db.pool import Connection
from store.db.schema.migrate import upgrade
from store.db.summaries import fold as fold_module
from store.db.summaries.fold import Folded, fold, fold_until, is_pending
from store.messages.record import COLUMNS, RecordBatch
from tests.integration.storage.node import Node, running
from tests.integration.storage.summaries import MINUTE, assert_folded, assert_true
from tests.integration.storage.world import DAY, NOW, TOPICS, batch_of, part_of, random_batch
from tests.support.postgres import PostgresServer

SEED = 20261120
MOMENTS = [
    *(NOW + seconds * 10**9 for seconds in range(-200, 1, 7)),
    NOW - DAY,
    NOW - DAY - 1,
    NOW - 30 * MINUTE,
    *(NOW // DAY * DAY + step for step in (-1, 0, MINUTE - 1, MINUTE)),
    NOW - 800 * DAY,
]
PATIENCE_S = 90.0
KILL = "select pg_terminate_backend(%s)"


async def deltas(node: Node) -> list[bytes]:
    """Return the summaries of all commits in their order."""
    rows = await node.rows("select summary from storenode.commits order by position")
    return [row[0] for row in rows]  # type: ignore[misc]


async def committed(node: Node) -> list[int]:
    """Return the positions of all commits."""
    rows = await node.rows("select position from storenode.commits order by position")
    return [row[0] for row in rows]  # type: ignore[misc]


def some(rng: random.Random, known: Sequence[RecordBatch]) -> RecordBatch:
    """Return new messages, and perhaps some that were published before, or twice in this batch."""
    parts = [random_batch(rng, rng.choice((1, 2, 9, 120)), MOMENTS)]
    for _ in range(rng.randrange(3)):
        other = rng.choice([*parts, *known])
        parts.append(part_of(other, [rng.randrange(len(other)) for _ in range(8)]))
    return together(parts)


def together(parts: Sequence[RecordBatch]) -> RecordBatch:
    """Join batches without SDS metadata."""
    joined = RecordBatch()
    for part in parts:
        for column in COLUMNS:
            getattr(joined, column).extend(getattr(part, column))
        joined.topics |= part.topics
    return joined


async def test_they_stay_true_while_two_nodes_write_and_two_fold(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_module, "MAX_FOLD_COMMITS", 3)
    known: list[RecordBatch] = []
    done = asyncio.Event()

    async def publish(each: Node, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(12):
            batch = some(rng, known)
            await each.store(batch)
            known.append(batch)

    async def keep_folding(each: Node) -> int:
        folded = 0
        async with await each.database.connect() as own:
            while not done.is_set():
                folded += (await fold(own)).commits
        return folded

    async def keep_looking() -> None:
        async with await node.database.connect() as own:
            while not done.is_set():
                await assert_true(own)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as others:
        folders = [others.create_task(keep_folding(each)) for each in (node, other_node)]
        others.create_task(keep_looking())
        async with asyncio.TaskGroup() as publishers:
            for seed, each in enumerate((node, other_node, node, other_node)):
                publishers.create_task(publish(each, seed))
        done.set()
    async with await node.database.connect() as own:
        rest = await fold_until(own)
        assert rest.complete
        assert sum(await asyncio.gather(*folders)) + rest.commits == len(await deltas(node))
        assert len(await assert_folded(own)) > 3 * len({ts // MINUTE for ts in MOMENTS}) // 2


async def test_folding_goes_by_small_steps_and_in_order(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_module, "MAX_FOLD_COMMITS", 4)
    monkeypatch.setattr(fold_module, "MAX_FOLD_BYTES", 3 * 48)
    assert not await is_pending(connection)
    assert await fold(connection) == Folded(0, 0, complete=True)
    for number, minutes in enumerate((1, 1, 1, 1, 1, 9, 1, 1, 2, 1, 1)):
        moments = [NOW - before * MINUTE for before in range(minutes)]
        await node.store(batch_of((ts, TOPICS[0], b"%d" % number) for ts in moments))
    assert await is_pending(connection)
    steps: list[Folded] = []
    while not steps or not steps[-1].complete:
        steps.append(await fold(connection))
        await assert_true(connection)
    # At most four commits, and no further one from three records on.
    assert [step.commits for step in steps] == [3, 3, 3, 2]
    positions = await committed(node)
    assert [step.position for step in steps] == [positions[each] for each in (2, 5, 8, 10)]
    await assert_folded(connection)
    assert not await is_pending(connection)


async def test_folding_goes_as_far_as_is_asked(
    node: Node, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_module, "MAX_FOLD_COMMITS", 2)
    for number in range(7):
        await node.store(batch_of([(NOW, TOPICS[0], b"%d" % number)]))
    positions = await committed(node)
    folded = await fold_until(connection, positions[2])
    assert folded == Folded(positions[3], 4, complete=False)
    # A position that was lost with its server is not waited for.
    assert await fold_until(connection, positions[-1] + 1_000) == Folded(
        positions[-1], 3, complete=True
    )
    await assert_folded(connection)


async def test_publishers_do_not_wait_for_who_folds(node: Node, connection: Connection) -> None:
    rng = random.Random(SEED)
    await node.store(random_batch(rng, 20, MOMENTS))
    await fold_until(connection)
    await node.store(random_batch(rng, 20, MOMENTS))
    async with kept(node, "select * from storenode.buckets where level = 2 for update"):
        folding = asyncio.create_task(fold(connection))
        await node.until_blocked("transactionid")
        async with asyncio.timeout(PATIENCE_S):
            await node.store(random_batch(rng, 20, MOMENTS))
        assert not folding.done()
    assert (await folding).commits == 1
    assert (await fold(connection)).commits == 1
    await assert_folded(connection)


@asynccontextmanager
async def kept(node: Node, statement: str) -> AsyncIterator[None]:
    """Keep what a statement locks."""
    async with await node.database.connect() as holder, holder.transaction():
        await holder.execute(statement.encode())
        yield


async def test_a_copy_of_the_database_goes_on_from_where_it_was(postgres: PostgresServer) -> None:
    """Open a copy without the newest commits, as after a promotion or a restore."""
    rng = random.Random(SEED)
    original = postgres.create_database()
    upgrade(postgres.url(original))
    async with running(postgres.url(original)) as node:
        await node.store(random_batch(rng, 30, MOMENTS))
        async with await node.database.connect() as own:
            await fold_until(own)
        await node.store(random_batch(rng, 30, MOMENTS))
    copy = postgres.create_database(original)
    async with running(postgres.url(original)) as node:
        lost = random_batch(rng, 30, MOMENTS)
        await node.store(lost)
        async with await node.database.connect() as own:
            await fold_until(own)
            beyond = await assert_folded(own)
    async with running(postgres.url(copy)) as node, await node.database.connect() as own:
        await assert_true(own)
        assert (await fold_until(own)).commits == 1
        await node.store(part_of(lost, range(10)))
        await node.store(lost)
        await fold_until(own)
        assert await assert_folded(own) == beyond
    for name in (original, copy):
        postgres.drop_database(name)
