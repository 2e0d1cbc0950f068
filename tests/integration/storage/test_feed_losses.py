"""The feed when its connection breaks, and when the database has lost commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from urllib.parse import urlsplit

import pytest

from store.db.commits import feed as feed_module
from store.db.commits import pages as commit_pages
from store.db.commits.feed import DatabaseFeed
from store.db.locks import NODES
from store.db.pool import Connection
from store.db.reading.messages import Topics
from store.domain.hub import CommitRow, Place, Row
from store.domain.ports import CursorOutOfRange, FollowRequest, TopicFilter
from store.messages.cursor import FollowCursor
from storenode.message.limits import MAX_MESSAGE_BYTES
from tests.integration.database.rows import until_some
from tests.integration.storage.following import (
    TERMINATE_OTHERS,
    LongTransaction,
    commit_order,
    following,
    from_beginning,
    from_cursor,
    from_now,
)
from tests.integration.storage.node import Node, running
from tests.integration.storage.world import CONTENTS, NOW, PUBSUBS, TOPICS, batch_of, random_batch
from tests.support.postgres import PostgresServer

SEED = 20261120
_BOTH_LISTEN = """
select (count(*) >= 2)::int from pg_locks where locktype = 'advisory' and granted and objid = %s
and database = (select oid from pg_database where datname = current_database())
"""
_FORGET = "delete from storenode.commits where position > %s"


async def store_some(node: Node, seed: int, batches: int = 3, size: int = 4) -> None:
    rng = random.Random(seed)
    for _ in range(batches):
        assert all(await node.store(random_batch(rng, size, [NOW, NOW + 1])))


async def store_one(node: Node, text: str, topic: tuple[str, str] = TOPICS[0]) -> bytes:
    batch = batch_of([(NOW, topic, text.encode())])
    assert await node.store(batch) == [True]
    return batch.hashes[0]


async def newest_cursor(node: Node) -> FollowCursor:
    async with following(node.feed, from_now()) as [follower]:
        await follower.until_live()
        return follower.pages[-1].cursor


async def refused(node: Node, request: FollowRequest) -> str:
    """Return the error of a follower that cannot be served."""
    async with following(node.feed, request) as [follower]:
        error = await follower.end()
        assert isinstance(error, CursorOutOfRange), error
        assert not follower.pages
        return str(error)


async def disconnect(node: Node) -> int:
    """End every connection to the database but the one that does it."""
    connection = await node.database.connect()
    async with connection:
        cursor = await connection.execute(TERMINATE_OTHERS)
        row = await cursor.fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


async def both_feeds_listen(node: Node) -> None:
    """Wait until the feeds of two nodes are connected, each beside the pools of its node."""
    async with await node.database.connect() as connection:
        await until_some(connection, _BOTH_LISTEN, NODES % 2**32)


async def test_followers_go_on_when_connections_are_killed(node: Node, other_node: Node) -> None:
    wanted = TopicFilter(PUBSUBS[0], CONTENTS)
    requests = (from_now(), from_now(wanted), from_beginning())
    async with (
        following(node.feed, *requests) as here,
        following(other_node.feed, *requests) as there,
    ):
        for follower in (*here, *there):
            await follower.until_live()
        for number in range(6):
            await store_some(node, number)
            await both_feeds_listen(node)
            assert await disconnect(node) > 2
            await store_some(other_node, 100 + number)
        end = await store_one(node, "end")
        order = await commit_order(node)
        assert len(order) == len(set(order)) == 6 * 24 + 1
        for follower, request in zip((*here, *there), (*requests, *requests), strict=True):
            given = await follower.until_given(end)
            if request.filter == wanted:
                assert given == [digest for digest in order if digest in set(given)]
                assert len(given) > 20
            else:
                assert given == order
    assert node.lost == other_node.lost == []


async def test_followers_get_everything_past_a_fault_of_the_tail(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Exception] = [ZeroDivisionError(), KeyError("topic"), AssertionError("rows")]
    expected, failed = list(faults), list[Exception]()

    async def faulty(
        connection: Connection, commits: Sequence[CommitRow], topics: Topics
    ) -> dict[int, list[Row]]:
        if faults:
            raise faults.pop(0)
        return await commit_pages.rows_of(connection, commits, topics)

    monkeypatch.setattr(feed_module, "rows_of", faulty)
    async with running(database_url) as node:
        feed = DatabaseFeed(node.database, on_failed=failed.append)
        await feed.start()
        async with following(feed, from_now()) as [follower]:
            await follower.until_live()
            await store_some(node, SEED)
            end = await store_one(node, "end")
            assert await follower.until_given(end) == await commit_order(node)
        assert feed.counted[1] == await node.value("select count(*) from storenode.messages")
        await feed.stop()
    assert failed == expected


async def test_the_tail_reads_a_bounded_number_of_messages_at_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[int]] = []

    async def noted(
        connection: Connection, commits: Sequence[CommitRow], topics: Topics
    ) -> dict[int, list[Row]]:
        read.append([commit.messages for commit in commits])
        return await commit_pages.rows_of(connection, commits, topics)

    rng = random.Random(SEED)
    long = LongTransaction(node)
    sizes = [1, 2, 60, 40, 30, 150, 1, 200, 3]
    await long.open([random_batch(rng, size, [NOW]) for size in sizes])
    monkeypatch.setattr(feed_module, "rows_of", noted)
    async with following(node.feed, from_now()) as [follower]:
        await follower.until_live()
        await long.commit()
        end = await store_one(node, "end")
        assert await follower.until_given(end) == await commit_order(node)
    assert [messages for some in read for messages in some] == [*sizes, 1]
    for some in read:
        assert len(some) == 1 or sum(some) * MAX_MESSAGE_BYTES <= 16 * 1024 * 1024
    assert len(read) <= len(sizes)


async def test_a_cursor_of_another_database_is_refused(node: Node) -> None:
    await store_some(node, SEED)
    cursor = await newest_cursor(node)
    stranger = FollowCursor(bytes(16), cursor.position, cursor.token)
    assert "another database" in await refused(node, from_cursor(stranger))


async def test_a_cursor_of_a_commit_that_is_not_there_is_refused(node: Node) -> None:
    await store_some(node, SEED)
    cursor = await newest_cursor(node)
    store_id, position, token = cursor.store_id, cursor.position, cursor.token
    for wrong in (
        FollowCursor(store_id, position + 1, token),
        FollowCursor(store_id, position, token ^ 1),
        FollowCursor(store_id, 2**63 - 1, 0),
    ):
        assert "lost" in await refused(node, from_cursor(wrong))
    async with following(
        node.feed, from_cursor(cursor), from_cursor(FollowCursor(store_id, 0, 0))
    ) as [newest, start]:
        await newest.until_live()
        await start.until_live()
        assert (len(newest.hashes), len(start.hashes)) == (0, 12)


async def test_a_cursor_of_a_pruned_commit_is_served(node: Node) -> None:
    await store_some(node, SEED)
    early = await newest_cursor(node)
    await store_some(node, SEED + 1)
    order = await commit_order(node)
    await node.rows("delete from storenode.commits where position <= %s", early.position + 1)
    async with following(node.feed, from_cursor(early)) as [follower]:
        await follower.until_live()
        assert follower.hashes == order[16:]


async def test_a_database_that_is_an_older_copy_refuses_what_it_never_saw(
    postgres: PostgresServer, database_url: str
) -> None:
    async with running(database_url) as node:
        await store_some(node, SEED)
        kept = await newest_cursor(node)
    copy = postgres.create_database(urlsplit(database_url).path[1:])
    try:
        async with running(database_url) as node:
            await store_some(node, SEED + 1)
            lost = await newest_cursor(node)
        async with running(postgres.url(copy)) as restored:
            assert "lost" in await refused(restored, from_cursor(lost))
            await store_some(restored, SEED + 2)
            assert (await newest_cursor(restored)).position == lost.position
            assert "lost" in await refused(restored, from_cursor(lost))
            async with following(restored.feed, from_cursor(kept)) as [follower]:
                await follower.until_live()
                assert follower.hashes == (await commit_order(restored))[12:]
    finally:
        postgres.drop_database(copy)


async def test_live_followers_learn_that_commits_were_lost(node: Node) -> None:
    await store_some(node, SEED)
    left = await newest_cursor(node)
    idle_topic = TopicFilter("named", (CONTENTS[5],))
    async with following(
        node.feed, from_now(), from_beginning(), from_cursor(left, idle_topic)
    ) as [fresh, old, idle]:
        for follower in (fresh, old, idle):
            await follower.until_live()
        last = await store_one(node, "to be lost")
        await fresh.until_given(last)
        await old.until_given(last)
        reached = fresh.pages[-1].cursor
        await node.rows(_FORGET, left.position)
        await node.rows("delete from storenode.messages where hash = %s", last)
        await disconnect(node)
        for follower in (fresh, old):
            error = await follower.end()
            assert isinstance(error, CursorOutOfRange)
            assert "lost" in str(error)
        assert node.lost == [((reached.position, reached.token), (left.position, left.token))]
        assert node.feed.counted[1] == 12
        # Who has seen nothing of what was lost goes on.
        mine = await store_one(node, "after", ("named", CONTENTS[5]))
        assert await idle.until_given(mine) == [mine]
        assert "lost" in await refused(node, from_cursor(reached))


@pytest.fixture
async def behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Keep the tail of the feed from seeing new commits until the event is set."""
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def gated(
        connection: Connection, first: int, last: int, topics: Topics, limit: int
    ) -> list[CommitRow]:
        waits.set()
        await go_on.wait()
        return await commit_pages.commits_between(connection, first, last, topics, limit)

    await store_some(node, SEED)
    monkeypatch.setattr(feed_module, "commits_between", gated)
    await store_one(node, "wakes the tail")
    await waits.wait()
    yield go_on
    go_on.set()


async def test_a_follower_ahead_of_the_tail_learns_of_a_loss_as_well(
    node: Node, behind: asyncio.Event
) -> None:
    left = await newest_cursor(node)
    await store_one(node, "to be lost")
    async with following(node.feed, from_now(), from_beginning()) as [fresh, old]:
        assert (await fresh.until_live()).pages[0].cursor.position > node.feed.head[0]
        await old.until_live()
        await node.rows(_FORGET, left.position)
        await disconnect(node)
        behind.set()
        for follower in (fresh, old):
            assert isinstance(await follower.end(), CursorOutOfRange)
    assert node.lost == []


async def test_the_beginning_holds_what_the_tail_has_not_seen(
    node: Node, behind: asyncio.Event
) -> None:
    last = await store_one(node, "acknowledged")
    async with following(node.feed, from_beginning()) as [follower]:
        await follower.until_live()
        assert follower.hashes[-1] == last
        assert len(follower.hashes) == 14
        behind.set()
        end = await store_one(node, "end")
        assert len(await follower.until_given(end)) == 15


async def test_what_a_standby_replays_while_it_is_looked_for_is_not_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_some(node, SEED)
    await store_one(node, "late")
    cursor = await newest_cursor(node)
    place = cursor.position, cursor.token
    await node.rows(
        "create table storenode.later as select * from storenode.commits where position = %s",
        place[0],
    )
    await node.rows(_FORGET, place[0] - 1)
    feed = DatabaseFeed(node.database, read_only=True)
    await feed.start()
    try:
        async with following(feed, from_cursor(cursor)) as [early]:
            assert "has not come to the commit" in str(await early.end())

        async def replay() -> None:
            await node.rows("insert into storenode.commits select * from storenode.later")
            await node.rows("drop table storenode.later")
            monkeypatch.undo()

        async def newest(connection: Connection) -> Place:
            found = await commit_pages.newest(connection)
            await replay()
            return found

        async def is_served(connection: Connection, wanted: Place) -> bool:
            found = await commit_pages.is_served(connection, wanted)
            if wanted == place:
                await replay()
            return found

        monkeypatch.setattr(feed_module, "newest", newest)
        monkeypatch.setattr(feed_module, "is_served", is_served)
        async with following(feed, from_cursor(cursor)) as [follower]:
            assert (await follower.until_live()).pages[0].cursor == cursor
    finally:
        await feed.stop()
