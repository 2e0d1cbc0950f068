"""Messages of every size, stored and read in every way."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from reconcile.ids import SyncIds
from store.db.checks.check import check
from store.db.reading import lookups as lookups_module
from store.db.reading.messages import frames_at
from store.db.reading.transfer_reads import TransferReader
from store.db.writing import writer as writer_module
from store.domain.ports import PageRequest, ScanRequest, SyncId, TopicFilter, TopicRights
from store.messages.record import RecordBatch
from store.messages.transfer import transferred
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryResponse
from tests.integration.storage.following import following, from_beginning
from tests.integration.storage.node import Node
from tests.integration.storage.world import (
    DAY,
    NOW,
    TOPICS,
    KnownMessage,
    as_query,
    batch_of,
    in_order,
    matching,
    messages_of,
)
from tests.support.outlet import WideOutlet

# Around the sizes at which a length of a frame takes one more byte, whatever the topics.
SIZES = (*range(70), *range(110, 130), 200, *range(16_250, 16_390), 150_000)
EVERYTHING = TopicFilter()
FOREVER = 2**63 - 1


async def store_in_each_way(
    node: Node, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> list[KnownMessage]:
    """Store by COPY, by one statement, and by the one that looks at each message."""
    stored: list[KnownMessage] = []
    known = RecordBatch()
    for fewest_copied in (1, 10**6, 10**6):
        monkeypatch.setattr(writer_module, "FEWEST_COPIED", fewest_copied)
        new = batch_of(
            (
                NOW - size % 5 * DAY - rng.randrange(10**9),
                rng.choice(TOPICS),
                rng.randbytes(size),
            )
            for size in SIZES
        )
        stored += messages_of(new)
        both = new.select(range(len(new)))
        both.extend(known)
        assert await node.store(both) == [True] * len(new) + [False] * len(known)
        if stored[len(new) :]:
            known = new
    return stored


def differing(found: list[bytes | None], expected: list[bytes]) -> list[int]:
    """Return the places at which they differ: frames are too large to be printed."""
    assert len(found) == len(expected)
    return [n for n, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]]


async def test_every_way_to_read_gives_the_bytes_that_were_admitted(
    node: Node, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await store_in_each_way(node, random.Random(20261124), monkeypatch)
    await assert_read(node, in_order(stored), monkeypatch)
    await assert_paged(node, stored)
    report = await asyncio.to_thread(check, database_url, now_ns=lambda: NOW)
    # No node makes partitions ahead here.
    assert [each for each in report.findings if "partition" not in each.kind] == []
    assert report.checked["messages"] == report.checked["hashes"] == len(stored)


async def assert_read(
    node: Node, stored: list[KnownMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that every way to read gives the bytes that were admitted."""
    frames, positions = [each.frame for each in stored], [each.at for each in stored]
    for page_size in (0, 300):
        scan = ScanRequest(EVERYTHING, 0, FOREVER, None, True, page_size)
        async with aclosing(node.reader.scan(scan, WideOutlet())) as pages:
            found = b"".join([page.frames async for page in pages])
        assert found == b"".join(frames), "a scan"
    await assert_queried(node, stored, monkeypatch)
    async with following(node.feed, from_beginning(include_data=True)) as (follower,):
        await follower.until_live()
        given = b"".join(page.frames for page in follower.pages)
    assert len(given) == sum(map(len, frames)), "a follower"
    assert sorted(follower.hashes) == sorted(each.hash for each in stored)
    loaded = await TransferReader(node.database).load(SyncIds.of(positions), 2**40)
    assert differing(loaded, [transferred(frame) for frame in frames]) == []
    async with await node.database.connect() as connection:
        for max_bytes in (2**40, 400_000):
            read: list[bytes | None] = []
            while part := await frames_at(connection, positions[len(read) :], max_bytes):
                read += part
            assert differing(read, frames) == []


async def assert_paged(node: Node, stored: list[KnownMessage]) -> None:
    """Check pages of one topic and of several, either way."""
    for topics in (TOPICS[:1], TOPICS[:4]):
        wanted = TopicFilter(TOPICS[0][0], tuple(content for _, content in topics))
        for forward in (True, False):
            expected = [each.hash for each in in_order(matching(stored, wanted))]
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
    """Check the order of messages that the index by topic does not order."""
    rng = random.Random(7)
    stored: list[KnownMessage] = []
    for start in (b"\0" * 7, b"\x7f" * 7, b"\xff" * 7):
        batch = batch_of((NOW, rng.choice(TOPICS[:4]), rng.randbytes(20)) for _ in range(40))
        batch.hashes = [start + rng.randbytes(25) for _ in batch.hashes]
        assert all(await node.store(batch))
        stored += messages_of(batch)
    await assert_paged(node, stored)


async def assert_queried(
    node: Node, stored: list[KnownMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check pages, look-ups by hash, and cursors."""

    def request(hashes: tuple[bytes, ...] | None, after: SyncId | None) -> PageRequest:
        return PageRequest(EVERYTHING, hashes, 0, FOREVER, after, True, 100, True)

    after: SyncId | None = None
    for start in range(0, len(stored), 100):
        part = stored[start : start + 100]
        expected = as_query([each.frame for each in part])
        chosen = tuple(each.hash for each in part)
        for recent_ns in (0, FOREVER):
            monkeypatch.setattr(lookups_module, "recent_ns", lambda at=recent_ns: at)
            assert (await node.reader.query(request(chosen, None))).entries == expected
        assert (await node.reader.query(request(None, after))).entries == expected
        after = part[-1].at
        assert await node.reader.position(part[-1].hash, TopicRights()) == after
        alike = part[-1].hash[:-1] + bytes((part[-1].hash[-1] ^ 1,))
        assert await node.reader.position(alike, TopicRights()) is None
