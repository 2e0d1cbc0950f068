"""Rows with copies of the hash, as older nodes read them, and rows without, side by side."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from functools import partial

import pytest
from psycopg import AsyncConnection
from psycopg.errors import LockNotAvailable, NotNullViolation

from reconcile.ids import SyncIds
from store.db.checks.check import check
from store.db.maintenance import narrowing, rebuild
from store.db.maintenance.rebuild import Rebuilder
from store.db.reading import hashes as hashes_module
from store.db.reading.frames import EXACT_POSITIONS, exact_frames, most_frames
from store.db.reading.transfer_reads import TransferReader
from store.db.schema import apply, migrate
from store.db.schema.names import TOPIC_INDEX
from store.db.writing import insert as insert_module
from store.db.writing import writer as writer_module
from store.db.writing.insert import Inserted
from store.domain.ports import PageRequest, ScanRequest, SyncId, TopicFilter, TopicRights
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse
from tests.integration.storage.following import following, from_beginning
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import (
    DAY,
    NOW,
    TOPICS,
    Held,
    as_query,
    batch_of,
    held_of,
    in_order,
    matching,
)
from tests.support.outlet import WideOutlet

# Around the sizes at which a length of a frame takes one more byte, whatever the topics.
SIZES = (*range(70), *range(110, 130), 200, *range(16_250, 16_390), 150_000)
EVERYTHING = TopicFilter()
FOREVER = 2**63 - 1
OLD_PARTITION = """
select c.relname::text from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'storenode.messages'::regclass order by 1 limit 1
"""
INDEXES = """
select i.indisvalid, i.indnkeyatts - 1 from pg_index i
where i.indrelid = 'storenode.messages'::regclass and not i.indisprimary and i.indnkeyatts > 1
"""
FORMS = """
select octet_length(m.head) < 32, h.rest is null, count(*)
from storenode.messages m join storenode.hashes h
    on h.ts = m.ts and uuid_send(h.key) = substr(m.hash, 1, 16)
group by 1, 2 order by 1
"""


async def store_in_each_way(
    node: Node, dice: random.Random, monkeypatch: pytest.MonkeyPatch
) -> list[Held]:
    """Store by COPY, by one statement, and by the one that looks at each message."""
    held: list[Held] = []
    known = RecordBatch()
    for fewest_copied in (1, 10**6, 10**6):
        monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
        new = batch_of(
            (
                NOW - size % 5 * DAY - dice.randrange(10**9),
                dice.choice(TOPICS),
                dice.randbytes(size),
            )
            for size in SIZES
        )
        held += held_of(new)
        both = new.select(range(len(new)))
        both.extend(known)
        assert await node.store(both) == [True] * len(new) + [False] * len(known)
        if held[len(new) :]:
            known = new
    return held


def differing(found: list[bytes | None], expected: list[bytes]) -> list[int]:
    """Places at which they differ: frames are too large to be printed."""
    assert len(found) == len(expected)
    return [n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]


async def test_both_forms_are_read_alike_and_the_short_one_waits_for_the_end_of_the_upgrade(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, dice = empty_database_url, random.Random(20261124)
    with apply.connect(url) as opened, opened.begin():
        apply.driver_connection(opened).execute("CREATE SCHEMA storenode")
        apply.upgrade(opened, migrate.LOCATION, "0011")
    async with running(url) as node:
        held = await store_in_each_way(node, dice, monkeypatch)
        count = len(held)
        assert await node.rows(FORMS) == [(False, False, count)]
        assert migrate.upgrade(url) == migrate.head()
        # It has not looked since, which does no harm.
        held += held_of(early := batch_of([(NOW, TOPICS[0], b"early")]))
        assert await node.store(early) == [True]
    async with running(url) as node:
        held += await store_in_each_way(node, dice, monkeypatch)
        assert await node.rows(FORMS) == [(False, False, count + 1), (True, True, count)]
        await assert_read(node, in_order(held), monkeypatch)
        await assert_index_is_replaced(url, monkeypatch)
        await assert_paged(node, held)
    report = await asyncio.to_thread(check, url, now_ns=lambda: NOW)
    # No node makes partitions ahead here.
    assert [each for each in report.findings if "partition" not in each.kind] == []
    assert report.checked["messages"] == report.checked["hashes"] == len(held)


async def assert_read(node: Node, held: list[Held], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way to read gives the bytes that were admitted."""
    frames, positions = [each.frame for each in held], [each.at for each in held]
    for page_size in (0, 300):
        scan = ScanRequest(EVERYTHING, 0, FOREVER, None, True, page_size)
        async with aclosing(node.reader.scan(scan, WideOutlet())) as pages:
            found = b"".join([page.frames async for page in pages])
        assert found == b"".join(frames), "a scan"
    await assert_queried(node, held, monkeypatch)
    async with following(node.feed, from_beginning(include_data=True)) as (follower,):
        await follower.until_live()
        given = b"".join(page.frames for page in follower.pages)
    assert len(given) == sum(map(len, frames)), "a follower"
    assert sorted(follower.hashes) == sorted(each.hash for each in held)
    loaded = await TransferReader(node.database).load(SyncIds.of(positions), 2**40)
    assert differing(loaded, [transferred(frame) for frame in frames]) == []
    async with await node.database.connect() as connection:
        for start in range(0, len(held), EXACT_POSITIONS):
            part = slice(start, start + EXACT_POSITIONS)
            assert differing(await exact_frames(connection, positions[part]), frames[part]) == []
        most = await most_frames(connection, positions)
    small = [n for n, frame in enumerate(frames) if len(frame) < 8_000]
    assert differing([most[n] for n in small], [frames[n] for n in small]) == []


async def assert_index_is_replaced(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance goes on where it was stopped, and gives up where something lasts."""
    findings = (await asyncio.to_thread(check, url, now_ns=lambda: NOW)).findings
    assert [each for each in findings if "partition" not in each.kind] == []
    connect = partial(AsyncConnection.connect, url, autocommit=True)
    async with await connect() as connection, await connect() as reader:
        (name,) = await (await connection.execute(OLD_PARTITION)).fetchone() or ("",)
        await connection.execute(
            f"create index {name}_topic_key_idx on storenode.{name} (ts)".encode()
        )
        async with reader.transaction():
            await reader.execute("select from storenode.messages limit 1")
            with monkeypatch.context() as patched:
                patched.setattr(rebuild, "LOCK_TIMEOUT_MS", 50)
                with pytest.raises(LockNotAvailable):
                    await Rebuilder().rebuild(connection, NOW)
        assert await narrowing.is_pending(connection)
        assert await Rebuilder().is_due(connection, NOW)
        replaced = await Rebuilder().rebuild(connection, NOW)
        assert replaced is not None
        assert replaced.index == TOPIC_INDEX
        assert 0 < replaced.after_bytes < replaced.before_bytes
        assert not await narrowing.is_pending(connection)
        assert await (await connection.execute(INDEXES)).fetchall() == [(True, 2)]


async def assert_paged(node: Node, held: list[Held]) -> None:
    """Pages of one topic and of several, either way."""
    for topics in (TOPICS[:1], TOPICS[:4]):
        wanted = TopicFilter(TOPICS[0][0], tuple(content for _, content in topics))
        for forward in (True, False):
            expected = [each.hash for each in in_order(matching(held, wanted))]
            found: list[bytes] = []
            after: SyncId | None = None
            while len(found) < len(expected):
                request = PageRequest(wanted, None, 0, FOREVER, after, forward, 3, False)
                page = await node.reader.query(request)
                response = StoreQueryResponse.FromString(page.entries)
                shown = [each.message_hash for each in response.messages]
                assert len(shown) == min(3, len(expected) - len(found))
                found += shown if forward else reversed(shown)
                assert (page.next_cursor is None) == (len(found) == len(expected))
                after = await node.reader.position(found[-1], TopicRights())
            assert found == (expected if forward else expected[::-1])


async def test_hashes_that_begin_alike_at_one_time_are_paged_in_order(node: Node) -> None:
    """The index by topic does not tell them apart."""
    dice = random.Random(7)
    held: list[Held] = []
    for start in (b"\0" * 7, b"\x7f" * 7, b"\xff" * 7):
        batch = batch_of((NOW, dice.choice(TOPICS[:4]), dice.randbytes(20)) for _ in range(40))
        batch.hashes = [start + dice.randbytes(25) for _ in batch.hashes]
        assert all(await node.store(batch))
        held += held_of(batch)
    await assert_paged(node, held)


async def assert_queried(node: Node, held: list[Held], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, look-ups by hash, and cursors."""

    def request(hashes: tuple[bytes, ...] | None, after: SyncId | None) -> PageRequest:
        return PageRequest(EVERYTHING, hashes, 0, FOREVER, after, True, 100, True)

    after: SyncId | None = None
    for start in range(0, len(held), 100):
        part = held[start : start + 100]
        expected = as_query([each.frame for each in part])
        chosen = tuple(each.hash for each in part)
        for recent_ns in (0, FOREVER):
            monkeypatch.setattr(hashes_module, "recent_ns", lambda at=recent_ns: at)
            assert (await node.reader.query(request(chosen, None))).entries == expected
        assert (await node.reader.query(request(None, after))).entries == expected
        after = part[-1].at
        assert await node.reader.position(part[-1].hash, TopicRights()) == after
        alike = part[-1].hash[:-1] + bytes((part[-1].hash[-1] ^ 1,))
        assert await node.reader.position(alike, TopicRights()) is None


@pytest.mark.parametrize("fewest_copied", [1, 10**6])
async def test_after_a_failover_that_lost_the_upgrade_rows_have_the_long_form(
    node: Node, monkeypatch: pytest.MonkeyPatch, fewest_copied: int
) -> None:
    monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
    for back, _ in enumerate(("its partitions are made", "they are known")):
        assert await node.store(batch_of([(NOW - back, TOPICS[0], b"lost")])) == [True]
    assert await node.rows(FORMS) == [(True, True, 2)]
    await lose_upgrade(node)
    batch = batch_of((NOW - 2 - back, TOPICS[1], b"kept") for back in range(5))
    assert await node.store(batch) == [True] * 5
    assert await node.rows(FORMS) == [(False, False, 5)]


async def test_a_failover_is_survived_that_another_worker_notices_first(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for back, _ in enumerate(("its partitions are made", "they are known")):
        assert await node.store(batch_of([(NOW - back, TOPICS[0], b"lost")])) == [True]
    await lose_upgrade(node)
    assert node.partitions.takes_short_form
    forms: list[bool] = []

    async def insert(*given: object, short: bool) -> Inserted:
        forms.append(short)
        try:
            return await insert_module.insert(*given, short=short)  # type: ignore[arg-type]
        except NotNullViolation:
            node.partitions.takes_short_form = False
            raise

    monkeypatch.setattr(writer_module, "insert", insert)
    batch = batch_of((NOW - back, TOPICS[1], b"kept") for back in range(5))
    assert await node.store(batch) == [True] * 5
    assert forms == [True, False]
    assert await node.rows(FORMS) == [(False, False, 5)]


async def lose_upgrade(node: Node) -> None:
    """Make the database what a standby holds that fell behind before the upgrade and takes over."""
    for table in ("messages", "hashes", "topics", "commits"):
        await node.rows(f"delete from storenode.{table}")
    await node.rows("alter table storenode.hashes alter column rest set not null")
    await node.rows("update storenode.store set serves_from = '0010'")
