"""Large answers, shared timestamps, pruning, and calls that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from store.db import sds
from store.db.retention import prune
from store.db.sds import DatabaseSdsReader, SdsPages
from store.domain.ports import HistoryEntry, SdsPage, StoreBusyError
from store.domain.retention import RetentionPolicy
from store.messages.frames import sds_stored_message
from tests.integration.sds.channel import Channel, look_up, walk_from
from tests.integration.storage.node import Node
from tests.integration.storage.world import DAY, NOW
from tests.support.outlet import WideOutlet
from tests.unit.domain.causal_world import Parent, digest, request

LARGE = 140 * 1024


def chain(length: int, content_bytes: int = 0, spacing: int = 1, start: int = 0) -> Channel:
    """Return messages of which each names the one before it."""
    channel = Channel()
    head: list[Parent] = []
    for number in range(length):
        at = start + number * spacing
        message_id = b"%d" % number
        head = [(message_id, channel.say(message_id, head, at=at, content=bytes(content_bytes)))]
    return channel


def head_of(channel: Channel) -> list[Parent]:
    last = channel.stored[-1]
    assert last.message_id is not None
    return [(last.message_id, last.hash)]


def started(reader: DatabaseSdsReader, heads: list[Parent]) -> AsyncGenerator[SdsPage, None]:
    """Return a walk whose pages the test takes one by one."""
    return reader.causal_history(request(heads), WideOutlet())


async def prune_all_before(node: Node, now: int) -> None:
    """Keep one day before ``now``, as the maintainer would."""
    async with await node.database.connect() as connection:
        # Vacuum, or what a walk reads ahead, may hold its locks for longer than a maintainer waits.
        report = await prune(connection, RetentionPolicy(age_ns=DAY), now, lock_timeout_ms=60_000)
    assert report.dropped
    assert not report.problems


async def test_large_messages_come_in_pages_and_in_order(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(150, LARGE)
    await channel.store(node, 50)
    walked = await walk_from(reader, head_of(channel))
    assert walked.ids == [b"%d" % number for number in range(150)]
    assert walked.pages >= 150 * LARGE // (4 * 1024 * 1024)
    assert not walked.missing
    assert not walked.truncated


async def test_what_is_pruned_is_missing_and_not_walked_past(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(10, spacing=DAY, start=-9 * DAY)
    await channel.store(node)
    assert len((await walk_from(reader, head_of(channel))).ids) == 10
    await prune_all_before(node, NOW)
    ids = [b"%d" % number for number in range(10)]
    answered = await look_up(reader, [(message_id, None) for message_id in ids])
    kept = len(answered.ids)
    assert 1 <= kept <= 3
    assert answered.ids == ids[-kept:]
    walked = await walk_from(reader, head_of(channel))
    assert walked.ids == ids[-kept:]
    lost = channel.stored[-kept - 1]
    assert lost.message_id is not None
    assert walked.missing == [HistoryEntry(lost.message_id, lost.hash)]


async def test_a_restored_message_below_the_horizon_is_found(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(10, spacing=DAY, start=-9 * DAY)
    await channel.store(node)
    await node.rows("update storenode.store set horizon_ns = %s", NOW)
    assert len((await walk_from(reader, head_of(channel))).ids) == 10


async def test_what_is_pruned_while_it_is_sent_is_missing(
    node: Node, reader: DatabaseSdsReader
) -> None:
    # More than is read ahead at most, so that something is left to be pruned.
    older = 8_000
    channel = chain(older, 3_500, start=-20 * DAY)
    parents: list[Parent] = head_of(channel)
    for number in range(20):
        message_id = b"new-%d" % number
        parents = [(message_id, channel.say(message_id, parents, at=number))]
    await channel.store(node, 500)
    sent: list[int] = []
    missing: list[HistoryEntry] = []
    async with aclosing(started(reader, parents)) as pages:
        async for page in pages:
            sent.append(page.count)
            missing += page.missing
            if len(sent) == 1:
                await prune_all_before(node, NOW)
    assert sent
    assert sum(sent) + len(missing) == older + 20
    assert len(missing) > 100
    by_id = {each.message_id: each.hash for each in channel.stored}
    assert all(by_id[entry.message_id] == entry.retrieval_hint for entry in missing)


async def test_long_lists_of_missing_parents_come_in_pages(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = Channel()
    ids = [b"%d-" % number + b"x" * 100_000 for number in range(60)]
    parents: list[Parent] = []
    for number, lost in enumerate(ids):
        message_id = b"%d" % number
        parents = [(message_id, channel.say(message_id, [*parents, (lost, None)], at=number))]
    await channel.store(node)
    walked = await walk_from(reader, parents)
    assert len(walked.ids) == 60
    assert [entry.message_id for entry in walked.missing] == ids[::-1]
    assert walked.pages >= 2


async def test_walks_wait_for_their_turn_and_are_refused_beyond(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sds, "MAX_WALKS_OF_CALLER", 1)
    monkeypatch.setattr(sds, "MAX_WAITING_CALLS", 2)
    reader = DatabaseSdsReader(node.database)
    channel = chain(100, LARGE)
    await channel.store(node, 50)
    walks = [asyncio.ensure_future(walk_from(reader, head_of(channel))) for _ in range(3)]
    done, waiting = await asyncio.wait(walks, return_when=asyncio.FIRST_COMPLETED)
    assert done == {walks[2]}
    with pytest.raises(
        StoreBusyError, match="1 causal walks are waiting already; retry with backoff"
    ):
        await walks[2]
    assert [len((await walk).ids) for walk in waiting] == [100, 100]


async def test_who_does_not_read_a_walk_takes_no_place_from_others(node: Node) -> None:
    reader = DatabaseSdsReader(node.database)
    channel = chain(100, LARGE)
    await channel.store(node, 50)
    unread = [started(reader, head_of(channel)) for _ in range(20)]
    for pages in unread:
        assert (await anext(pages)).count > 0
    assert len((await walk_from(reader, head_of(channel))).ids) == 100
    assert len((await look_up(reader, head_of(channel))).ids) == 1
    for pages in unread:
        await pages.aclose()


async def test_a_caller_that_leaves_early_gives_its_connections_back(
    node: Node, reader: DatabaseSdsReader
) -> None:
    channel = chain(100, LARGE)
    await channel.store(node, 50)
    for _ in range(2 * node.database.settings.bulk_connections):
        async with aclosing(started(reader, head_of(channel))) as pages:
            assert (await anext(pages)).count > 0
    assert len((await walk_from(reader, head_of(channel))).ids) == 100


@pytest.mark.parametrize("id_bytes", [1, 90, 91, 92, 127, 128, 256])
def test_entries_are_encoded_as_frames_are_spliced(id_bytes: int) -> None:
    pages = SdsPages()
    frames = {digest(size): b"\x0a" + bytes(size) for size in (1, 20, 127, 16_000, 16_400)}
    portion = [(b"key", 1, each, b"i" * id_bytes, b"", b"", False) for each in frames]
    assert not list(pages.add(portion, list(frames.values())))
    (page,) = pages.finish(truncated=False)
    assert page.messages == b"".join(
        sds_stored_message(b"i" * id_bytes, each, frame) for each, frame in frames.items()
    )
    assert page.count == len(frames)
