"""The writer: each message once by any number of writers, through failures and conflicts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest

from chaos.ports import ReservedPort
from store.db import feed as feed_module
from store.db import insert as insert_module
from store.db import writer as writer_module
from store.db.arrays import fixed_bytes, split_uuids
from store.db.check import check
from store.db.gossip import UnreadRows
from store.db.insert import join
from store.db.messages import frame_of, locate, rows_of_hashes
from store.db.partitions import PartitionMap
from store.db.writer import DatabaseWriter
from store.domain.ports import (
    PageRequest,
    Source,
    StoreBusyError,
    StoreUnavailableError,
    TopicFilter,
)
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from storenode.common.bounded_dict import BoundedDict
from storenode.sds.codec import encode
from tests.integration.storage.followers import (
    TERMINATE_OTHERS,
    LongTransaction,
    commit_order,
    following,
    from_now,
)
from tests.integration.storage.node import WORKERS, Node, running
from tests.integration.storage.world import DAY, NOW, PUBSUBS, TOPICS, batch_of, random_batch
from tests.support.polling import until

_CHUNK_BYTES = 65_536


class Proxy:
    """Relays TCP connections to a port of 127.0.0.1."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answer_to_swallow: bytes | None = None
        self._port = ReservedPort()
        self.port = self._port.number
        self.swallowed = asyncio.Event()

    async def open(self) -> None:
        """Accept connections, always on the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Break every connection and accept no more."""
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection on the node's side; the server is not reported."""
        for client in list(self._clients):
            client.transport.abort()

    def swallow_answer_to(self, request: bytes) -> None:
        """Let the next request that contains these bytes through, but cut instead of its answer."""
        self._answer_to_swallow = request
        self.swallowed.clear()

    async def close(self) -> None:
        """Break everything."""
        self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(client)
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._target_port)
            with contextlib.closing(server):
                await self._relay(reader, client, answers, server)
        finally:
            client.close()
            self._clients.discard(client)
            self._tasks.discard(task)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        marked = asyncio.Event()

        async def there() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK_BYTES):
                    if self._answer_to_swallow is not None and self._answer_to_swallow in data:
                        self._answer_to_swallow = None
                        marked.set()
                    server.write(data)
                    await server.drain()
                if not client.transport.is_closing():
                    server.close()

        request = asyncio.create_task(there())
        try:
            # Continues when the client is cut: the server then finishes what it was asked.
            while data := await answers.read(_CHUNK_BYTES):
                if marked.is_set():
                    client.transport.abort()
                    self.swallowed.set()
                elif not client.transport.is_closing():
                    client.write(data)
                    with contextlib.suppress(OSError):
                        await client.drain()
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[Proxy, str]]:
    """Open a proxy; yield it, and the URL of the same database through it."""
    parts = urlsplit(url)
    assert parts.port is not None
    proxy = Proxy(parts.port)
    await proxy.open()
    try:
        yield proxy, url.replace(f":{parts.port}/", f":{proxy.port}/")
    finally:
        await proxy.close()


TIMES = (1, NOW - 800 * DAY, NOW - 40 * DAY, NOW - DAY, NOW - 1, NOW, NOW + DAY)
SEED = 20261120
HOWEVER_STORED = pytest.mark.usefixtures("fewest_copied")

DROP_TODAY = "drop table storenode.{}_20261120"
LISTED_TOPICS = "select topics from storenode.commits order by position desc limit 1"
STORED = "select count(*) from storenode.messages"
COMMITS = "select count(*) from storenode.commits"


@pytest.fixture(params=[1, 10**9], ids=["copy", "at once"])
def fewest_copied(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Insert in both ways: by COPY where possible, and never by COPY."""
    fewest: int = request.param
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest)
    return fewest


async def assert_tables_agree(node: Node, stored: Sequence[RecordBatch]) -> None:
    """Check that exactly these batches are stored, with their commits, and all tables agree."""
    expected = {
        (batch.timestamps[index], digest, batch.topic_keys[index], batch.frame(index))
        for batch in stored
        for index, digest in enumerate(batch.hashes)
    }
    rows: list[Any] = await node.rows(
        "select ts, hash, topic, head || payload || tail from storenode.messages"
    )
    assert len(rows) == len(expected)
    assert {(*row[:3], frame_of(row[1], row[3])) for row in rows} == expected
    commits: list[Any] = await node.rows(
        "select committed_at, messages, token from storenode.commits order by position"
    )
    times, counts, tokens = zip(*commits, strict=True)
    assert list(times) == sorted(times)
    assert len(set(tokens)) == len(tokens)
    assert sum(counts) == len(expected)
    await assert_sound(node, len(expected))


async def assert_sound(node: Node, messages: int) -> None:
    """Check the database, and that it has ``messages`` messages and rows of their hashes."""
    report = await asyncio.to_thread(check, node.database.url)
    # No node makes partitions ahead here.
    assert [each for each in report.findings if "partition" not in each.kind] == []
    assert report.checked["messages"] == report.checked["hashes"] == messages


def _keys(column: object) -> set[bytes]:
    assert isinstance(column, bytes)
    return set(split_uuids(column))


@HOWEVER_STORED
async def test_each_message_of_many_publishers_is_new_once_and_given_once(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let two nodes store the same messages at once, in any parts, from several sources."""
    monkeypatch.setattr(feed_module, "POLL_S", 3_600.0)
    rng = random.Random(SEED)
    world = random_batch(rng, 400, TIMES)
    parts = [world.select(rng.sample(range(400), rng.choice((1, 5, 80)))) for _ in range(60)]
    parts += [parts[0], parts[0], world]
    nodes = (node, other_node)
    sources = (Source.CLIENT, Source.GOSSIP, Source.CLIENT, Source.TRANSFER)
    async with (
        following(node.feed, from_now()) as [here],
        following(other_node.feed, from_now()) as [there],
    ):
        for follower in (here, there):
            await follower.until_live()
        calls = [nodes[n % 2].store(part, rng.choice(sources)) for n, part in enumerate(parts)]
        verdicts = await asyncio.gather(*calls)
        order = await commit_order(node)
        for follower in (here, there):
            await follower.until(lambda each: len(each.hashes) >= 400)
            assert follower.hashes == order
    new = Counter(
        digest
        for part, answer in zip(parts, verdicts, strict=True)
        for digest, verdict in zip(part.hashes, answer, strict=True)
        if verdict
    )
    assert new == Counter(world.hashes) == Counter(order)
    assert await node.store(world) == await other_node.store(world) == [False] * 400
    assert await commit_order(node) == order, "a batch without anything new makes no commit"
    assert await node.store(RecordBatch()) == []
    await assert_tables_agree(node, [world])


@pytest.mark.parametrize(("size", "known"), [(3, False), (3, True), (60, True)])
async def test_queued_batches_share_a_transaction_with_a_commit_for_each_source(
    node: Node, size: int, known: bool
) -> None:
    rng = random.Random(SEED)
    before = random_batch(rng, 2, TIMES)
    await node.store(before)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    batches = [random_batch(rng, size, TIMES) for _ in range(4)]
    if known:
        batches[1].extend(batches[0].select([1]))
        batches[2].extend(before)
    sources = [Source.CLIENT, Source.GOSSIP, Source.CLIENT, Source.TRANSFER, Source.CLIENT]
    async with node.blocked(*plugs) as plugged:
        calls = zip([*batches, batches[0]], sources, strict=True)
        stores = [asyncio.create_task(node.store(*call)) for call in calls]
    outcomes = (await asyncio.gather(*plugged, *stores))[WORKERS:]
    assert [outcome[:size].count(True) for outcome in outcomes[1:]] == [size, size, size, 0]
    assert outcomes[2][size:] == [False] * (len(before) if known else 0)
    assert outcomes[0].count(True) + outcomes[1].count(True) == 2 * size
    statement = "select xmin::text, source, messages from storenode.commits order by position"
    shared = (await node.rows(statement))[WORKERS + 1 :]
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
    sizes = ((4, 40), (6, 40), (1, 40), (11, 40), (1, 6_000), (1, 6_000), (1, 40))
    batches = [random_batch(rng, count, [NOW], size=size) for count, size in sizes]
    async with node.blocked() as plugged:
        stores = [asyncio.create_task(node.store(batch)) for batch in batches]
    assert all(all(verdicts) for verdicts in await asyncio.gather(*plugged, *stores))
    groups = await node.rows("select messages from storenode.commits order by position")
    # The workers take groups in turn, so the order of two neighbours is open.
    assert Counter(groups[WORKERS:]) == Counter((count,) for count in (10, 1, 11, 1, 2))


async def test_the_queue_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BATCHES", 20)
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 100_000)
    rng = random.Random(SEED)

    async def queue(size: int) -> asyncio.Task[list[bool]]:
        call = asyncio.create_task(node.store(random_batch(rng, 1, [NOW], size=size)))
        await asyncio.sleep(0)
        return call

    async with node.blocked() as plugged:
        small = [await queue(40) for _ in range(20)]
        with pytest.raises(StoreBusyError, match="retry with backoff"):
            await node.store(random_batch(rng, 1, [NOW]))
        for task in small[5:]:
            task.cancel()
        await asyncio.wait(small[5:])
        large = await queue(90_000)
        assert 90_000 < node.writer.queued_bytes < 100_000
        with pytest.raises(StoreBusyError):
            await node.store(random_batch(rng, 1, [NOW], size=20_000))
    assert all(map(all, await asyncio.gather(*plugged, *small[:5], large)))
    assert node.writer.queued_bytes == 0
    assert await node.value(STORED) == WORKERS + 5 + 1


async def test_what_is_stored_is_reported_after_its_caller_has_gone(node: Node) -> None:
    rng = random.Random(SEED)
    stored, half = random_batch(rng, 4, [NOW]), random_batch(rng, 5, [NOW])
    await node.store(stored, Source.GOSSIP)
    half.extend(stored)
    async with node.blocked(random_batch(rng, 3, [NOW]), half) as calls:
        for task in calls:
            task.cancel()
        await asyncio.wait(calls)

    async def are_reported() -> bool:
        return len(node.stored) == 3

    await until(are_reported)
    reported = Counter((source, len(batch.hashes), new) for batch, source, new in node.stored)
    assert reported == {("gossip", 4, 4): 1, ("client", 3, 3): 1, ("client", 9, 5): 1}


async def test_a_stopped_writer_answers_everybody(node: Node) -> None:
    rng = random.Random(SEED)
    async with node.blocked() as tasks:
        tasks += [asyncio.create_task(node.store(random_batch(rng, 1, [NOW]))) for _ in range(3)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(node.writer.stop())
        await asyncio.sleep(0)
        node.writer._most_writers += 1
        node.writer._note_stall()  # by the timer of a writer that has not ended yet
        await stopping
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, StoreBusyError)
        with pytest.raises(StoreBusyError, match="stopping"):
            await node.store(random_batch(rng, 1, [NOW]))
    assert node.writer.queued_bytes == 0
    assert await node.value(STORED) == 0


async def test_a_writer_that_stops_while_it_tries_batches_one_by_one_answers_everybody(
    node: Node,
) -> None:
    rng = random.Random(SEED)
    good, bad, last = (random_batch(rng, 1, [NOW]) for _ in range(3))
    # What no admission lets through: Postgres refuses it, and each batch is tried by itself.
    bad.topics = dict.fromkeys(bad.topics, ("a\0topic", "of nobody"))
    async with await node.database.connect() as blocker:
        await blocker.execute("begin")
        async with node.blocked() as plugged:
            tasks = [asyncio.create_task(node.store(batch)) for batch in (good, bad, last)]
            await asyncio.sleep(0)
            lock = "lock table storenode.messages in share mode"
            locking = asyncio.create_task(blocker.execute(lock))
            await node.until_blocked("relation")
        await asyncio.gather(locking, *plugged)
        await node.until_blocked("relation")
        await node.writer.stop()
        async with asyncio.timeout(90):
            errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [StoreBusyError] * 3


@HOWEVER_STORED
async def test_who_waits_for_a_message_of_another_does_not_hold_up_all_commits(node: Node) -> None:
    rng = random.Random(SEED)
    contested, other = random_batch(rng, 1, [NOW]), random_batch(rng, 1, [NOW])
    restore = LongTransaction(node)
    await restore.open([contested])
    waiting = asyncio.create_task(node.store(contested))
    await node.until_blocked("transactionid")
    async with asyncio.timeout(90):
        assert await node.store(other) == [True]
    await restore.commit()
    assert await waiting == [False]
    await assert_tables_agree(node, [contested, other])


async def test_who_falls_silent_before_its_commit_does_not_hold_up_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insert_module, "MAX_IDLE_IN_PLACE_MS", 50)
    async with await node.database.connect() as silent:
        part = insert_module.CommitPart(RecordBatch(), Source.CLIENT)
        part.new = random_batch(random.Random(0), 1, [NOW])
        await silent.execute("begin")
        await insert_module.assign_commit_position(silent, [part], "")
        async with asyncio.timeout(90):
            assert all(await node.store(random_batch(random.Random(SEED), 3, [NOW])))
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            await silent.execute("commit")


async def test_a_commit_lists_its_topics_unless_there_are_many(node: Node) -> None:
    most = insert_module.MAX_LISTED_TOPICS
    for count in (1, most, most + 1):
        topics = [(PUBSUBS[0], f"/listed-{count}/1/{number}/proto") for number in range(count)]
        batch = batch_of((NOW, topic, b"x") for topic in topics)
        assert all(await node.store(batch))
        listed = await node.value(LISTED_TOPICS)
        assert listed is None if count > most else _keys(listed) == set(batch.topic_keys)


async def test_a_batch_looks_up_its_own_topics_alone(node: Node) -> None:
    class Known(BoundedDict[tuple[int, bytes], None]):
        def keys(self) -> NoReturn:
            raise AssertionError("with 65,536 known topics, each batch took 3 ms more")

    node.writer._topics._known = Known(9)
    assert all(await node.store(random_batch(random.Random(SEED), 3, [NOW])))


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


async def test_sds_rows_hold_what_messages_claim(
    node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(insert_module, "MAX_INLINE_PARENTS", fewest_copied)
    batch = batch_of(
        (NOW - 40 * DAY * (number % 2), TOPICS[0], payload)
        for number, payload in enumerate([b"no SDS", *SDS_CASES, b"\xff"])
    )
    assert len(batch.sds) == len(SDS_CASES)
    assert all(await node.store(batch))
    assert not any(await node.store(batch))
    # The check compares each row with what the payload says.
    await assert_tables_agree(node, [batch])
    assert await node.value("select count(*) from storenode.sds") == len(SDS_CASES)


@HOWEVER_STORED
async def test_what_was_dropped_and_comes_again_is_stored_again(node: Node) -> None:
    rng = random.Random(SEED)
    first, again = random_batch(rng, 5, [NOW]), random_batch(rng, 5, [NOW])
    assert all(await node.store(first))
    await node.rows(DROP_TODAY.format("messages"))
    assert await node.store(first) == [True] * 5
    assert await node.store(first) == [False] * 5
    # The first rows of `hashes` were left; they give no message twice.
    assert await node.value("select count(*) from storenode.hashes") == 10
    positions = sorted(zip(first.timestamps, first.hashes, strict=True))
    async with await node.database.connect() as connection:
        assert sorted(await locate(connection, first.hashes)) == positions
        rows, _ = await rows_of_hashes(connection, first.hashes, 10**6)
    assert sorted(row[:2] for row in rows) == positions
    for table in ("messages", "hashes", "sds", "topics"):
        await node.rows(DROP_TODAY.format(table))
    assert await node.store(again) == await node.store(first) == [True] * 5
    names = await node.rows("select key from storenode.topics")
    assert {row[0] for row in names} == {*first.topic_keys, *again.topic_keys}
    assert await node.value(STORED) == 10


PATIENCE_S = 90.0
HOLD_UP = """
create function storenode.hold_up() returns trigger language plpgsql
as $$ begin perform pg_advisory_xact_lock(42); return null; end $$
"""
HOLD_UP_COMMITS = """
create constraint trigger hold_up after insert on storenode.commits
deferrable initially deferred for each row execute function storenode.hold_up()
"""
EVERYTHING = PageRequest(TopicFilter(), None, 0, 2**63 - 1, None, True, 100, False)


async def test_what_is_answered_is_there_whatever_is_killed(node: Node, other_node: Node) -> None:
    rng = random.Random(SEED)
    stored: list[RecordBatch] = []
    progress = asyncio.Condition()

    async def publish(each: Node, seed: int) -> None:
        own = random.Random(seed)
        for _ in range(12):
            batch = random_batch(own, own.choice((1, 3, 200)), [NOW - DAY, NOW, NOW])
            # Nobody else stores these: DUPLICATE would tell of a lost answer.
            assert await each.store(batch) == [True] * len(batch)
            async with progress:
                stored.append(batch)
                progress.notify_all()

    async def kill() -> None:
        async with await node.database.connect() as connection:
            while True:
                await connection.execute(TERMINATE_OTHERS)
                wanted = len(stored) + rng.randrange(1, 8)
                async with progress:
                    await progress.wait_for(lambda: len(stored) >= wanted)  # noqa: B023

    killer = asyncio.create_task(kill())
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as publishers:
        for seed, each in enumerate((node, other_node) * 3):
            publishers.create_task(publish(each, seed))
    killer.cancel()
    await asyncio.wait([killer])
    await assert_tables_agree(node, stored)
    order = await commit_order(node)
    assert len(order) == len(set(order)) == sum(map(len, stored))


@HOWEVER_STORED
async def test_a_lost_answer_to_a_commit_is_recovered(
    database_url: str, fewest_copied: int
) -> None:
    rng = random.Random(SEED)
    async with proxied(database_url) as (proxy, url), running(url) as node:

        async def store(batch: RecordBatch) -> list[bool]:
            """Store a batch whose answer is lost; a COPY is committed by a statement of its own."""
            by_copy = len(batch) >= fewest_copied
            proxy.swallow_answer_to(b"COMMIT" if by_copy else batch.hashes[0])
            answer = await node.store(batch)
            assert proxy.swallowed.is_set()
            return answer

        known, *new = (random_batch(rng, count, [NOW - DAY, NOW]) for count in (5, 30, 30))
        await node.store(known)
        for batch in new:
            assert await store(batch) == [True] * 30
        assert await store(known) == [False] * 5
        assert await node.value(COMMITS) == 3
        await assert_tables_agree(node, [known, *new])


@pytest.mark.parametrize("is_mixed", [False, True])
async def test_a_commit_that_is_under_way_when_its_connection_breaks_is_recovered(
    node: Node, database_url: str, is_mixed: bool
) -> None:
    """Try it with new messages alone, and beside one that is stored, for which the writer looks."""
    stored = random_batch(random.Random(1), 1, [NOW])
    await node.store(stored)
    await node.rows(HOLD_UP)
    await node.rows(HOLD_UP_COMMITS)
    async with (
        proxied(database_url) as (proxy, url),
        running(url) as cut_off,
        await node.database.connect() as holder,
        asyncio.timeout(PATIENCE_S),
    ):
        await holder.execute("select pg_advisory_lock(42)")
        batch = random_batch(random.Random(2), 9, [NOW])
        whole = join([batch, stored]) if is_mixed else batch
        answer = asyncio.create_task(cut_off.store(whole))
        await node.until_blocked("advisory")
        proxy.cut()
        # The second attempt waits for what the first has inserted.
        await node.until_blocked("transactionid")
        await holder.execute("select pg_advisory_unlock(42)")
        assert await answer == [True] * 9 + [False] * is_mixed
    assert await node.value(COMMITS) == 2
    assert sorted((await commit_order(node))[1:]) == sorted(batch.hashes)


@HOWEVER_STORED
async def test_a_commit_that_the_server_refuses_at_its_end_is_not_answered(node: Node) -> None:
    """Let a deferred trigger fail, as a full queue of notifications does: behind the rows."""
    await node.rows(HOLD_UP.replace("perform pg_advisory_xact_lock(42)", "raise 'refused'"))
    await node.rows(HOLD_UP_COMMITS)
    with pytest.raises(psycopg.errors.RaiseException, match="refused"):
        await node.store(random_batch(random.Random(SEED), 1, [NOW]))
    assert await node.value(COMMITS) == 0


async def test_one_batch_that_cannot_be_stored_fails_alone(node: Node) -> None:
    rng = random.Random(SEED)
    plugs = [random_batch(rng, 1, [NOW]) for _ in range(WORKERS)]
    odd = "alter table storenode.messages add constraint odd check (octet_length(payload) <> 13)"
    await node.rows(odd)
    good = [random_batch(rng, 10, [NOW]) for _ in range(3)]
    refused = random_batch(rng, 1, [NOW], size=13)
    unnameable = random_batch(rng, 1, [NOW], [("p", "not known yet")])
    unnameable.topics = dict.fromkeys(unnameable.topics, ("p", "with\0nul"))
    timeless = random_batch(rng, 1, [NOW])
    timeless.timestamps = [-5]
    calls = [good[0], refused, unnameable, good[1], timeless, good[2]]
    async with node.blocked(*plugs) as plugged:
        tasks = [asyncio.create_task(node.store(call)) for call in calls]
    await asyncio.gather(*plugged)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [answers.pop(place) for place in (4, 2, 1)]
    assert answers == [[True] * 10] * 3
    assert not any(isinstance(error, StoreUnavailableError) for error in errors)
    expected = (ValueError, psycopg.DataError, psycopg.errors.CheckViolation)
    for error, kind in zip(errors, expected, strict=True):
        assert isinstance(error, kind)
    await assert_tables_agree(node, [*plugs, *good])


async def test_a_byte_string_of_another_size_is_refused(node: Node) -> None:
    for wrong in ([b"x" * 31], [b"x" * 32, b"x" * 33], [b"", b"x" * 32]):
        with pytest.raises(psycopg.DataError):
            await node.rows("select %b::bytea[]", fixed_bytes(wrong, 32))


async def test_a_database_that_is_away_is_waited_for_reported_and_used_again(
    database_url: str,
) -> None:
    rng = random.Random(SEED)
    async with (
        proxied(database_url) as (proxy, url),
        running(url) as node,
        asyncio.timeout(PATIENCE_S),
    ):
        first, *later = (random_batch(rng, 3, [NOW], TOPICS[:1]) for _ in range(7))
        await node.store(first)
        proxy.refuse()
        with node.impatient():
            with pytest.raises(StoreUnavailableError, match="retry with backoff"):
                await node.store(random_batch(rng, 3, [NOW]))
            with pytest.raises(StoreUnavailableError, match="retry with backoff"):
                await node.reader.query(EVERYTHING)
        # A short absence is waited out.
        stores = [asyncio.create_task(node.store(batch)) for batch in later]
        await asyncio.sleep(0)
        assert not any(task.done() for task in stores)
        await proxy.open()
        assert await asyncio.gather(*stores) == [[True] * 3] * 6
        assert (await node.reader.query(EVERYTHING)).count == 21


# Messages with one hash: the first one is stored, and the other one is a conflict.
PUBSUB = "/waku/2/rs/1/0"
OTHER = (NOW, (PUBSUB, "/alpha/1/x/proto"), b"transfer 10 to bob")
ONE = batch_of([(NOW, (PUBSUB, "pha/1/x/proto"), b"transfer 10 to bob/al")])
TWO = batch_of([OTHER])
assert ONE.hashes == TWO.hashes
assert ONE.content_digests != TWO.content_digests


async def assert_stored(node: Node, batch: RecordBatch, count: int) -> None:
    """Check that the message of a batch is stored, and nothing of another one."""
    rows = await node.rows(
        "select content_digest, topic from storenode.messages where hash = %b", batch.hashes[0]
    )
    assert rows == [(batch.content_digests[0], batch.topic_keys[0])]
    await assert_sound(node, count)


@HOWEVER_STORED
async def test_a_message_with_the_hash_of_a_stored_one_is_a_conflict(node: Node) -> None:
    reported: list[tuple[Source, Conflict]] = []
    unread = UnreadRows(node.database)
    writer = DatabaseWriter(
        node.database,
        PartitionMap(lambda: NOW, 30 * DAY),
        unread=unread,
        on_conflict=lambda source, conflict: reported.append((source, conflict)),
    )
    await writer.start()
    try:
        assert list(await writer.store(ONE, Source.CLIENT)) == [True]
        for beside in (0, 3):
            batch = random_batch(random.Random(beside), beside, [NOW - 1])
            batch.extend(TWO)
            result = await writer.store(batch, Source.RESTORE, 1)
            assert list(result) == [True] * beside + [False]
            assert result.conflicts == {beside: ONE.content_digests[0]}
        assert await unread.of(ONE.hashes) == [], "nothing waits for a conflict to be confirmed"
        again = await writer.store(ONE, Source.CLIENT, 1)
        assert (list(again), again.conflicts) == ([False], {})
        (event,) = await unread.of(ONE.hashes)
        assert event.content_digest == ONE.content_digests[0]
    finally:
        await writer.stop()
    conflict = Conflict(ONE.hashes[0], ONE.content_digests[0], TWO.content_digests[0])
    assert reported == [(Source.RESTORE, conflict)] * 2
    await assert_stored(node, ONE, 4)


async def test_of_two_that_wait_together_one_is_stored(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with node.blocked() as plugged:
        waiting = [
            asyncio.create_task(node.writer.store(each, Source.CLIENT)) for each in (ONE, TWO, ONE)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*plugged)
    first, second, third = await asyncio.gather(*waiting)
    assert sum(map(sum, (first, second, third))) == 1
    # Workers race: either message may be the one that is stored.
    winner, loser = (TWO, ONE) if second[0] else (ONE, TWO)
    conflict = {0: winner.content_digests[0]}
    for batch, result in ((ONE, first), (TWO, second), (ONE, third)):
        assert result.conflicts == (conflict if batch is loser else {})
    for digest in (ONE.content_digests[0], TWO.content_digests[0]):
        assert digest.hex() in caplog.text
    await assert_stored(node, winner, 1 + WORKERS)


@HOWEVER_STORED
async def test_a_race_that_is_lost_to_another_node_is_a_conflict(node: Node) -> None:
    first = LongTransaction(node)
    await first.open([ONE])
    losing = asyncio.create_task(node.writer.store(TWO, Source.GOSSIP))
    await node.until_blocked("transactionid")
    await first.commit()
    result = await losing
    assert (list(result), result.conflicts) == ([False], {0: ONE.content_digests[0]})
