"""The writer: each message once, by any number of writers, with its rows of look-up tables."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import NamedTuple, cast

import pytest
from psycopg import Error

from store.db.arrays import split_uuids
from store.db.locks import COMMIT_ORDER
from store.db.pool import Connection
from store.db.reading.messages import frame_of
from store.db.writing import insert as insert_module
from store.db.writing import writer as writer_module
from store.db.writing.insert import CommitPart, Inserted
from store.domain.ports import Source, StoreBusy
from store.messages.record import RecordBatch
from storenode.sds.codec import channel_key, encode, sds_key
from tests.integration.database.rows import until_some
from tests.integration.storage.following import LongTransaction, commit_order
from tests.integration.storage.node import WORKERS, Node
from tests.integration.storage.summaries import assert_true
from tests.integration.storage.world import (
    DAY,
    NOW,
    PUBSUBS,
    TOPICS,
    batch_of,
    messages_of,
    part_of,
    random_batch,
)
from tests.support.polling import PAUSE_S

_WAITING = """
select count(*) from pg_locks where locktype = 'advisory' and not granted
and database = (select oid from pg_database where datname = current_database())
"""
TIMES = (1, NOW - 800 * DAY, NOW - 40 * DAY, NOW - DAY, NOW - 1, NOW, NOW + DAY)
SEED = 20261120
HOWEVER_STORED = pytest.mark.parametrize("fewest_copied", [1, 10**9])
"""By COPY where it works, and never by COPY."""


@asynccontextmanager
async def commits_blocked(node: Node) -> AsyncIterator[None]:
    """Keep every transaction from its last step, so that what comes meanwhile is queued."""
    connection = await node.database.connect()
    async with connection:
        await connection.execute("select pg_advisory_lock(%s)", (COMMIT_ORDER,))
        yield


async def occupy_workers(
    node: Node, plugs: Sequence[RecordBatch]
) -> list[asyncio.Task[list[bool]]]:
    """Store one batch after the other, each by another worker, which all then wait."""
    tasks = []
    connection = await node.database.connect()
    async with connection, asyncio.timeout(90):
        for number, plug in enumerate(plugs, start=1):
            tasks.append(asyncio.create_task(node.store(plug)))
            waiting = 0
            while waiting != number:
                await asyncio.sleep(PAUSE_S)
                cursor = await connection.execute(_WAITING)
                [(waiting,)] = await cursor.fetchall()  # type: ignore[assignment]
    return tasks


async def queued(node: Node) -> None:
    """Let tasks that were made before reach the queue."""
    before = asyncio.create_task(node.writer.store(RecordBatch(), Source.CLIENT))
    await before


class Row(NamedTuple):
    """A row of the table of messages, without its batch."""

    ts: int
    hash: bytes
    topic: bytes
    frame: bytes


async def assert_tables_agree(node: Node, stored: Sequence[RecordBatch]) -> None:
    """Check that every table has exactly these batches, and every message is in a commit."""
    expected = {
        Row(batch.timestamps[index], digest, batch.topic_keys[index], batch.frame(index))
        for batch in stored
        for index, digest in enumerate(batch.hashes)
    }
    rows = cast(
        "list[tuple[int, bytes, bytes, bytes]]",
        await node.rows("select ts, hash, topic, head || payload || tail from storenode.messages"),
    )
    assert len(rows) == len(expected)
    assert {Row(ts, of, topic, frame_of(of, body)) for ts, of, topic, body in rows} == expected
    located = await node.rows("select ts, uuid_send(key), topic from storenode.hashes")
    assert Counter(located) == Counter((row.ts, row.hash[:16], row.topic) for row in expected)
    topics = {key: name for batch in stored for key, name in batch.topics.items()}
    named = await node.rows(
        "select distinct key, pubsub_topic, content_topic from storenode.topics"
    )
    assert {row[0]: row[1:] for row in named} == topics
    lows = {(row.topic, node.partitions.coarse_lower(row.ts)) for row in expected}
    assert set(await node.rows("select key, ts from storenode.topics")) == lows
    await assert_commits_agree(node)
    async with await node.database.connect() as connection:
        await assert_true(connection)


async def assert_commits_agree(node: Node) -> None:
    """Check that commits and batches have the same messages."""
    actual = await node.rows(
        "select batch, count(*), min(ts), max(ts), array_agg(distinct topic)"
        " from storenode.messages group by batch"
    )
    said = await node.rows(
        "select batch, messages, min_ts, max_ts, topics from storenode.commits order by position"
    )
    assert {row[0]: (*row[:4], _keys(row[4])) for row in actual} == {
        row[0]: (*row[:4], _keys(row[4])) for row in said
    }
    positions = await node.rows(
        "select position, committed_at from storenode.commits order by position"
    )
    assert len({row[0] for row in positions}) == len(positions)
    times = [row[1] for row in positions]
    assert times == sorted(times)  # type: ignore[type-var]
    tokens = await node.rows("select distinct token from storenode.commits")
    assert len(tokens) == len(positions)


def _keys(column: object) -> set[bytes]:
    assert isinstance(column, bytes)
    return set(split_uuids(column))


@HOWEVER_STORED
async def test_each_message_is_new_once_in_concurrent_batches(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    rng = random.Random(SEED)
    world = random_batch(rng, 400, TIMES)
    parts = [part_of(world, rng.sample(range(400), rng.choice((1, 5, 80)))) for _ in range(60)]
    parts.append(world)
    nodes = (node, other_node)
    verdicts = await asyncio.gather(
        *(nodes[number % 2].store(part) for number, part in enumerate(parts))
    )
    new = Counter(
        digest
        for part, answer in zip(parts, verdicts, strict=True)
        for digest, verdict in zip(part.hashes, answer, strict=True)
        if verdict
    )
    assert new == Counter(world.hashes)
    for each in nodes:
        await each.partitions.ensure(await each.database.connect(), world.timestamps)
        await assert_tables_agree(each, [world])
    assert await node.store(world) == await other_node.store(world) == [False] * 400
    assert sorted(await commit_order(node)) == sorted(world.hashes)


async def test_a_batch_without_anything_new_makes_no_commit(node: Node) -> None:
    batch = random_batch(random.Random(SEED), 10, TIMES)
    assert await node.store(batch) == [True] * 10
    assert await node.store(batch) == [False] * 10
    assert await node.store(part_of(batch, [3, 1])) == [False] * 2
    assert await node.store(RecordBatch()) == []
    assert await node.value("select count(*) from storenode.commits") == 1
    await assert_tables_agree(node, [batch])


async def test_queued_batches_share_a_transaction_and_the_first_copy_is_new(node: Node) -> None:
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    batch, other = random_batch(rng, 20, TIMES), random_batch(rng, 5, TIMES)
    half = part_of(batch, range(10))
    async with commits_blocked(node):
        plugged = await occupy_workers(node, plugs)
        calls = [half, batch, batch, other, half]
        stores = [asyncio.create_task(node.store(call)) for call in calls]
        restored = asyncio.create_task(node.store(plugs[0], Source.RESTORE))
    assert await asyncio.gather(*plugged) == [[True]] * WORKERS
    assert await asyncio.gather(*stores) == [
        [True] * 10,
        [False] * 10 + [True] * 10,
        [False] * 20,
        [True] * 5,
        [False] * 10,
    ]
    assert await restored == [False]
    assert await node.value("select count(*) from storenode.commits") == WORKERS + 1
    await assert_tables_agree(node, [*plugs, batch, other])


@pytest.mark.parametrize("size", [3, 60])
@pytest.mark.parametrize("known", [False, True])
async def test_sources_share_a_transaction_with_a_commit_each(
    node: Node, size: int, known: bool
) -> None:
    rng = random.Random(SEED)
    before = random_batch(rng, 2, TIMES)
    await node.store(before)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    batches = [random_batch(rng, size, TIMES) for _ in range(4)]
    if known:
        batches[1].extend(part_of(batches[0], [1]))
        batches[2].extend(before)
    sources = [Source.CLIENT, Source.GOSSIP, Source.CLIENT, Source.TRANSFER]
    async with commits_blocked(node):
        plugged = await occupy_workers(node, plugs)
        stores = [
            asyncio.create_task(node.store(batch, source))
            for batch, source in zip(batches, sources, strict=True)
        ]
    await asyncio.gather(*plugged)
    outcomes = await asyncio.gather(*stores)
    assert [outcome[:size].count(True) for outcome in outcomes[1:]] == [size] * 3
    assert outcomes[2][size:] == [False] * (len(before) if known else 0)
    assert outcomes[0].count(True) + outcomes[1].count(True) == 2 * size
    commits = await node.rows(
        "select xmin::text, source, messages from storenode.commits order by position"
    )
    shared = commits[WORKERS + 1 :]
    assert len({row[0] for row in shared}) == 1
    assert {row[1]: row[2] for row in shared} == {
        "client": outcomes[0].count(True) + outcomes[2].count(True),
        "gossip": outcomes[1].count(True),
        "transfer": size,
    }
    await assert_tables_agree(node, [before, *plugs, *batches])


async def test_groups_keep_to_their_limits(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_GROUP_MESSAGES", 10)
    monkeypatch.setattr(writer_module, "MAX_GROUP_BYTES", 10_000)
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    sizes = ((4, 40), (6, 40), (1, 40), (11, 40), (1, 6_000), (1, 6_000), (1, 40))
    batches = [random_batch(rng, count, [NOW], size=size) for count, size in sizes]
    async with commits_blocked(node):
        plugged = await occupy_workers(node, plugs)
        stores = [asyncio.create_task(node.store(batch)) for batch in batches]
    assert all(all(verdicts) for verdicts in await asyncio.gather(*plugged, *stores))
    groups = await node.rows("select messages from storenode.commits order by position")
    # The workers take groups in turn, so the order of two neighbours is open.
    assert Counter(groups[WORKERS:]) == Counter((count,) for count in (10, 1, 11, 1, 2))


async def test_the_queue_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BATCHES", 20)
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 100_000)
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    async with commits_blocked(node):
        plugged = await occupy_workers(node, plugs)
        small = [asyncio.create_task(node.store(random_batch(rng, 1, [NOW]))) for _ in range(20)]
        await queued(node)
        with pytest.raises(StoreBusy, match="retry with backoff"):
            await node.store(random_batch(rng, 1, [NOW]))
        for task in small[5:]:
            task.cancel()
        await asyncio.wait(small[5:])
    assert all(map(all, await asyncio.gather(*plugged, *small[:5])))
    assert node.writer.queued_bytes == 0
    async with commits_blocked(node):
        plugged = await occupy_workers(node, [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)])
        large = asyncio.create_task(node.store(random_batch(rng, 1, [NOW], size=90_000)))
        await queued(node)
        assert 90_000 < node.writer.queued_bytes < 100_000
        with pytest.raises(StoreBusy):
            await node.store(random_batch(rng, 1, [NOW], size=20_000))
    assert all(map(all, await asyncio.gather(*plugged, large)))
    assert await node.value("select count(*) from storenode.messages") == 2 * WORKERS + 5 + 1


async def test_what_is_stored_is_reported_after_its_caller_has_gone(node: Node) -> None:
    rng = random.Random(SEED)
    stored, half = random_batch(rng, 4, [NOW]), random_batch(rng, 5, [NOW])
    await node.store(stored, Source.GOSSIP)
    half.extend(stored)
    async with commits_blocked(node):
        left = await occupy_workers(node, [random_batch(rng, 3, [NOW]), half])
        for task in left:
            task.cancel()
        await asyncio.wait(left)
    async with asyncio.timeout(90):
        while len(node.stored) < 3:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)
    assert all(task.cancelled() for task in left)
    reported = Counter((source, len(batch.hashes), new) for batch, source, new in node.stored)
    assert reported == {("gossip", 4, 4): 1, ("client", 3, 3): 1, ("client", 9, 5): 1}


async def test_a_stopped_writer_answers_everybody(node: Node) -> None:
    rng = random.Random(SEED)
    async with commits_blocked(node):
        tasks = await occupy_workers(node, [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)])
        tasks += [asyncio.create_task(node.store(random_batch(rng, 1, [NOW]))) for _ in range(3)]
        await queued(node)
        await node.writer.stop()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, StoreBusy)
        with pytest.raises(StoreBusy, match="stopping"):
            await node.store(random_batch(rng, 1, [NOW]))
    assert node.writer.queued_bytes == 0
    assert await node.value("select count(*) from storenode.messages") == 0


async def until_one_waits(node: Node, mode: str) -> None:
    """Return when a lock of that mode on the table of messages, or the end of who wrote one, is
    waited for."""
    statement = (
        "select count(*) from pg_locks where not granted and mode = %s"
        " and (relation = 'storenode.messages'::regclass or locktype = 'transactionid')"
    )
    connection = await node.database.connect()
    async with connection:
        await until_some(connection, statement, mode)


async def test_a_writer_that_stops_while_it_tries_batches_one_by_one_answers_everybody(
    node: Node,
) -> None:
    rng = random.Random(SEED)
    good, bad, last = (random_batch(rng, 1, [NOW]) for _ in range(3))
    # What no admission lets through: Postgres refuses it, and each batch is tried by itself.
    bad.topics = dict.fromkeys(bad.topics, ("a\0topic", "of nobody"))
    blocker = await node.database.connect()
    async with blocker:
        await blocker.execute("begin")
        async with commits_blocked(node):
            plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
            plugged = await occupy_workers(node, plugs)
            tasks = [asyncio.create_task(node.store(batch)) for batch in (good, bad, last)]
            await queued(node)
            locking = asyncio.create_task(
                blocker.execute("lock table storenode.messages in share mode")
            )
            await until_one_waits(node, "ShareLock")
        await asyncio.gather(locking, *plugged)
        await until_one_waits(node, "RowExclusiveLock")
        await node.writer.stop()
        async with asyncio.timeout(90):
            errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [StoreBusy] * 3


@HOWEVER_STORED
async def test_who_waits_for_a_message_of_another_does_not_hold_up_all_commits(
    node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    rng = random.Random(SEED)
    contested, other = random_batch(rng, 1, [NOW]), random_batch(rng, 1, [NOW])
    restore = LongTransaction(node)
    await restore.open([contested])
    waiting = asyncio.create_task(node.store(contested))
    await until_one_waits(node, "ShareLock")
    async with asyncio.timeout(90):
        assert await node.store(other) == [True]
    await restore.commit()
    assert await waiting == [False]
    await assert_tables_agree(node, [contested, other])


async def test_who_falls_silent_before_its_commit_does_not_hold_up_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_module, "MAX_IDLE_IN_PLACE_MS", 50)
    batch = random_batch(random.Random(SEED), 3, [NOW])
    silent = await node.database.connect()
    await silent.execute("begin")
    await insert_module.assign_commit_position(silent, [], [])
    async with asyncio.timeout(90):
        assert all(await node.store(batch))
    with pytest.raises(Error, match="idle-in-transaction"):
        await silent.execute("commit")
    await silent.close()


async def test_a_commit_lists_its_topics_unless_there_are_many(node: Node) -> None:
    most = insert_module.MAX_LISTED_TOPICS
    for count in (1, most, most + 1):
        topics = [(PUBSUBS[0], f"/listed-{count}/1/{number}/proto") for number in range(count)]
        batch = batch_of((NOW, topic, b"x") for topic in topics)
        assert all(await node.store(batch))
        [[listed]] = await node.rows(
            "select topics from storenode.commits order by position desc limit 1"
        )
        if count > most:
            assert listed is None
        else:
            assert _keys(listed) == set(batch.topic_keys)


SDS_CASES = [
    encode("channel", "plain", sender_id="me", lamport=7, parents=[("a", None), ("b", bytes(32))]),
    encode("chan\0nel", "nul\0\0", sender_id="\0", lamport=2**64 - 1, parents=[("\0", b"\0")]),
    encode(
        "channel", "{\"quoted\\\", 'NULL'}", lamport=None, parents=[('"', b'"'), ("NULL", None)]
    ),
    encode("channel", "zero", lamport=0, parents=[("x", b""), ("x", None), ("zero", b"h" * 40)]),
    encode("channel", "half", lamport=2**63, parents=[]),
    encode("channel", "below", lamport=2**63 - 1, parents=[("ü€", b"\xff\x00")]),
    encode("channel", "many", lamport=1, parents=[(f"p{n}", bytes([n])) for n in range(256)]),
    # Sizes and numbers that are the code of a percent sign.
    encode("%" * 37, "%b" * 18 + "%", lamport=37, parents=[("%" * 37, b"%" * 37)] * 37),
    encode("channel", sha256(b"content").hexdigest(), lamport=1, content=b"content"),
    encode("channel", sha256(b"content").hexdigest(), lamport=1, content=b"other"),
]


@HOWEVER_STORED
@pytest.mark.parametrize("in_thread", [False, True])
async def test_sds_rows_hold_what_messages_claim(
    node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int, in_thread: bool
) -> None:
    laid_out_in: list[threading.Thread] = []

    def parameters(batch: RecordBatch) -> dict[str, object]:
        laid_out_in.append(threading.current_thread())
        return lay_out(batch)

    lay_out = insert_module._sds_parameters
    monkeypatch.setattr(insert_module, "_sds_parameters", parameters)
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    batch = batch_of(
        (NOW - 40 * DAY * (number % 2), TOPICS[0], payload)
        for number, payload in enumerate([b"no SDS", *SDS_CASES, b"\xff"])
    )
    assert len(batch.sds) == len(SDS_CASES)
    parents = sum(len(sds.parents) for sds in batch.sds)
    monkeypatch.setattr(insert_module, "MAX_INLINE_PARENTS", parents - in_thread)
    assert all(await node.store(batch))
    assert not any(await node.store(batch))
    rows = await node.rows(
        "select key, channel_key, ts, hash, channel, message_id, sender, lamport, parent_keys,"
        " parent_ids, parent_hints, proof from storenode.sds"
    )
    found = {row[3]: row for row in rows}
    assert len(rows) == len(found) == len(SDS_CASES)
    for index, sds in zip(batch.sds_index, batch.sds, strict=True):
        *values, parent_keys, parent_ids, parent_hints, proof = found[batch.hashes[index]]
        assert proof is sds.proven
        lamport = sds.lamport
        assert values == [
            sds_key(sds.channel_id, sds.message_id),
            channel_key(sds.channel_id),
            batch.timestamps[index],
            batch.hashes[index],
            sds.channel_id,
            sds.message_id,
            sds.sender_id,
            None if lamport is None else (lamport + 2**63) % 2**64 - 2**63,
        ]
        assert isinstance(parent_keys, bytes)
        assert split_uuids(parent_keys) == [
            sds_key(sds.channel_id, each) for each, _ in sds.parents
        ]
        assert parent_ids == [each for each, _ in sds.parents]
        assert parent_hints == [hint for _, hint in sds.parents]
    assert {thread is not threading.main_thread() for thread in laid_out_in} == {in_thread}
    await assert_tables_agree(node, [batch])


async def test_a_partition_that_was_dropped_is_made_again(node: Node) -> None:
    rng = random.Random(SEED)
    first = random_batch(rng, 5, [NOW])
    assert all(await node.store(first))
    for table in ("messages", "hashes", "sds", "topics"):
        await node.rows(f"drop table storenode.{table}_20261120")
    again = random_batch(rng, 5, [NOW])
    assert await node.store(again) == [True] * 5
    assert await node.store(first) == [True] * 5
    names = await node.rows("select key from storenode.topics")
    assert {row[0] for row in names} == {*first.topic_keys, *again.topic_keys}
    stored = {each.hash for batch in (first, again) for each in messages_of(batch)}
    assert {row[0] for row in await node.rows("select hash from storenode.messages")} == stored


async def test_messages_of_one_request_are_copied_in_the_order_of_their_keys(node: Node) -> None:
    rng = random.Random(SEED)
    batch = random_batch(rng, 1_200, [NOW + number % 7 for number in range(1_200)])
    assert await node.store(batch) == [True] * 1_200
    written = await node.rows("select ts, hash from storenode.messages order by ctid")
    assert written == sorted(zip(batch.timestamps, batch.hashes, strict=True))
    await assert_tables_agree(node, [batch])


async def test_copies_that_fail_grow_rare_and_their_messages_are_stored_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bytes] = []

    async def copy(connection: Connection, parts: Sequence[CommitPart]) -> list[Inserted]:
        tried.append(parts[0].batch.hashes[0])
        return await insert_module.copy(connection, parts)

    monkeypatch.setattr(writer_module, "copy", copy)
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", 2)
    rng = random.Random(SEED)
    known = random_batch(rng, 1, [NOW])
    assert await node.store(known) == [True]
    batches = [random_batch(rng, 2, [NOW]) for _ in range(140)]
    for batch in batches[:40]:
        batch.extend(known)
        assert await node.store(batch) == [True, True, False]
    for batch in batches[40:]:
        assert await node.store(batch) == [True, True]
    assert tried == [batches[number].hashes[0] for number in (0, 17, 34, *range(51, 140))]
    assert await node.value("select count(*) from storenode.messages") == 281


@HOWEVER_STORED
async def test_a_message_that_was_pruned_and_comes_again_finds_its_hash_there(
    node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    rng = random.Random(SEED)
    first = random_batch(rng, 5, [NOW])
    assert all(await node.store(first))
    await node.rows("drop table storenode.messages_20261120")
    assert await node.store(first) == [True] * 5
    assert await node.store(first) == [False] * 5
    assert await node.rows("select count(*), count(distinct key) from storenode.hashes") == [(5, 5)]
