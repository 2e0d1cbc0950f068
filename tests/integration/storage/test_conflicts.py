"""Messages with one hash: the first one is stored, and the other one is a conflict."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa
import pytest

from store.db.checks.check import check
from store.db.schema.partitions import PartitionMap
from store.db.writing import writer as writer_module
from store.db.writing.unread import ConfirmationTracker, UnreadRows
from store.db.writing.writer import DatabaseWriter
from store.domain.ports import Source
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from store.pipeline.restore import COLUMNS, store_rows
from tests.integration.database.rows import until_some
from tests.integration.storage.following import LongTransaction
from tests.integration.storage.node import WORKERS, Node
from tests.integration.storage.test_writer import commits_blocked, occupy_workers
from tests.integration.storage.world import DAY, NOW, batch_of, random_batch

PUBSUB = "/waku/2/rs/1/0"
ONE = (NOW, (PUBSUB, "pha/1/x/proto"), b"transfer 10 to bob/al")
OTHER = (NOW, (PUBSUB, "/alpha/1/x/proto"), b"transfer 10 to bob")


def pair() -> tuple[RecordBatch, RecordBatch]:
    """Return both messages, each in a batch of its own."""
    one, other = batch_of([ONE]), batch_of([OTHER])
    assert one.hashes == other.hashes
    assert one.content_digests != other.content_digests
    return one, other


async def assert_stored(node: Node, database_url: str, batch: RecordBatch, count: int) -> None:
    """Check that the message of a batch is stored, and nothing of another one."""
    (digest,) = batch.hashes
    rows = await node.rows(
        "select content_digest, topic from storenode.messages where hash = %b", digest
    )
    assert rows == [(batch.content_digests[0], batch.topic_keys[0])]
    report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW)
    # No node makes partitions ahead here.
    assert [each for each in report.findings if "partition" not in each.kind] == []
    assert report.checked["messages"] == report.checked["hashes"] == count


@pytest.mark.parametrize("fewest_copied", [1, 10**6])
@pytest.mark.parametrize("beside", [0, 3])
async def test_a_message_with_the_hash_of_a_stored_one_is_a_conflict(
    node: Node,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    fewest_copied: int,
    beside: int,
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    one, other = pair()
    assert await node.store(one) == [True]
    batch = random_batch(random.Random(beside), beside, [NOW - 1])
    batch.extend(other)
    result = await node.writer.store(batch, Source.RESTORE)
    for digest in (one.content_digests[0], other.content_digests[0]):
        assert digest.hex() in caplog.text
    assert list(result) == [True] * beside + [False]
    assert result.conflicts == {beside: one.content_digests[0]}
    again = await node.writer.store(one, Source.CLIENT)
    assert (list(again), again.conflicts) == ([False], {})
    await assert_stored(node, database_url, one, 1 + beside)


async def test_of_two_that_wait_together_one_is_stored(node: Node, database_url: str) -> None:
    one, other = pair()
    rng = random.Random(1)
    async with commits_blocked(node):
        plugs = [random_batch(rng, 1, [NOW - 2]) for _ in range(WORKERS)]
        await occupy_workers(node, plugs)
        waiting = [
            asyncio.create_task(node.writer.store(each, Source.CLIENT))
            for each in (one, other, one)
        ]
        await asyncio.sleep(0)
    first, second, third = await asyncio.gather(*waiting)
    assert sum(map(sum, (first, second, third))) == 1
    # Workers race: either message may be the one that is stored.
    winner, loser = (other, one) if second[0] else (one, other)
    conflict = {0: winner.content_digests[0]}
    expected = {id(winner): {}, id(loser): conflict}
    for batch, result in ((one, first), (other, second), (one, third)):
        assert result.conflicts == expected[id(batch)]
    await assert_stored(node, database_url, winner, 1 + WORKERS)


@pytest.mark.parametrize("fewest_copied", [1, 10**6])
async def test_a_race_that_is_lost_to_another_node_is_a_conflict(
    node: Node, database_url: str, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    one, other = pair()
    first = LongTransaction(node)
    await first.open([one])
    losing = asyncio.create_task(node.writer.store(other, Source.GOSSIP))
    async with await node.database.connect() as watcher:
        await until_some(watcher, "select 1 from pg_locks where not granted limit 1")
    await first.commit()
    result = await losing
    assert (list(result), result.conflicts) == ([False], {0: one.content_digests[0]})
    await assert_stored(node, database_url, one, 1)


async def test_a_conflict_is_reported_and_not_tracked_as_unread(
    node: Node,
) -> None:
    one, other = pair()
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
        assert list(await writer.store(one, Source.CLIENT)) == [True]
        assert (await writer.store(other, Source.RESTORE, 1)).conflicts
        assert await unread.of(one.hashes) == []
        assert list(await writer.store(one, Source.CLIENT, 1)) == [False]
        (event,) = await unread.of(one.hashes)
        assert event.content_digest == one.content_digests[0]
    finally:
        await writer.stop()
    conflict = Conflict(one.hashes[0], one.content_digests[0], other.content_digests[0])
    assert reported == [(Source.RESTORE, conflict)]


async def test_a_restore_stores_the_rest_and_counts_conflicts(
    node: Node, database_url: str
) -> None:
    one, other = pair()
    assert await node.store(one) == [True]
    later = (NOW + 1, OTHER[1], OTHER[2])
    columns: dict[str, list[object]] = {
        "ts": [NOW, NOW + 1],
        "hash": [other.hashes[0], batch_of([later]).hashes[0]],
        "pubsub_topic": [PUBSUB] * 2,
        "content_topic": [OTHER[1][1]] * 2,
        "payload": [OTHER[2]] * 2,
    }
    columns |= {name: [None] * 2 for name in COLUMNS if name not in columns}
    rows = pa.RecordBatch.from_pydict(columns)
    assert await store_rows(database_url, iter([rows])) == 1
    await assert_stored(node, database_url, one, 2)
