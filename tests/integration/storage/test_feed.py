"""Followers on real databases: everything once, in one commit order, whatever comes between."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import pytest
from psycopg import OperationalError

from store.db import feed as feed_module
from store.db import insert as insert_module
from store.db import writer as writer_module
from store.db.connection import Connection
from store.db.feed import _COMMITS_AT_ONCE, commits_between, is_served, newest, rows_of
from store.db.locks import NODES
from store.domain.hub import CommitRow, Place, Row
from store.domain.ports import CursorOutOfRangeError, FollowRequest, TopicFilter, TopicRights
from store.messages.cursor import FollowCursor
from storenode.message.limits import MAX_RESPONSE_BYTES
from tests.integration.database.rows import until_some
from tests.integration.storage.followers import (
    PATIENCE_S,
    TERMINATE_OTHERS,
    Following,
    LongTransaction,
    WideOutlet,
    commit_order,
    following,
    from_beginning,
    from_cursor,
    from_now,
)
from tests.integration.storage.node import Node
from tests.integration.storage.world import (
    CONTENTS,
    DAY,
    NOW,
    PUBSUBS,
    TOPICS,
    KnownMessage,
    Topic,
    batch_of,
    hashes_in,
    messages_of,
    random_batch,
)

TIMES = (NOW - 9 * DAY, NOW - DAY, NOW - 1, NOW, NOW, NOW + 1)
SEED = 20261120
PAGE_BYTES = MAX_RESPONSE_BYTES - 32_000
# Every filter selects the first topic, so that a follower's end can be waited for.
FILTERS = (
    TopicFilter(),
    TopicFilter(PUBSUBS[0], CONTENTS[:2]),
    TopicFilter(PUBSUBS[0]),
    TopicFilter(None, (CONTENTS[0], CONTENTS[4])),
    TopicFilter(rights=TopicRights(("/waku/2/rs/1/0",), ("/app-0/",))),
    TopicFilter(PUBSUBS[0], CONTENTS, TopicRights((), (CONTENTS[0], CONTENTS[1]))),
)
NOBODYS = TopicFilter("unknown")
BOTH_LISTEN = """
select (count(*) >= 2)::int from pg_locks where locktype = 'advisory' and granted and objid = %s
and database = (select oid from pg_database where datname = current_database())
"""
FORGET = "delete from storenode.commits where position > %s"


async def store_one(node: Node, text: str = "end", topic: Topic = TOPICS[0]) -> bytes:
    batch = batch_of([(NOW, topic, text.encode())])
    assert await node.store(batch) == [True]
    return batch.hashes[0]


async def publish(
    node: Node, seed: int, batches: int = 3, sizes: tuple[int, ...] = (4,)
) -> list[KnownMessage]:
    """Store batches one after the other."""
    rng = random.Random(seed)
    stored = []
    for _ in range(batches):
        batch = random_batch(rng, rng.choice(sizes), TIMES)
        assert all(await node.store(batch))
        stored += messages_of(batch)
    return stored


async def selected(node: Node, wanted: TopicFilter) -> list[bytes]:
    """Return the hashes that a filter selects of everything, in commit order."""
    rows = await node.rows("select key, pubsub_topic, content_topic from storenode.topics")
    keys = {row[0] for row in rows if wanted.matches(row[1], row[2])}  # type: ignore[arg-type]
    rows = await node.rows("select hash, topic from storenode.messages")
    topics: dict[object, object] = dict(rows)  # type: ignore[arg-type]
    return [digest for digest in await commit_order(node) if topics[digest] in keys]


async def all_live(*followers: Following) -> None:
    for follower in followers:
        await follower.until_live()


async def kill_connections(node: Node, _patch: pytest.MonkeyPatch) -> None:
    async with await node.database.connect() as connection:
        # Each feed beside the pools of its node.
        await until_some(connection, BOTH_LISTEN, NODES % 2**32)
    await disconnect(node)


async def lose_an_answer(_node: Node, patch: pytest.MonkeyPatch) -> None:
    """Let the answer to the next commit of a node get lost."""

    async def insert(*given: Any) -> None:  # noqa: ANN401
        patch.setattr(writer_module, "insert_at_once", insert_module.insert_at_once)
        await insert_module.insert_at_once(*given)
        raise OperationalError("the answer was lost")

    patch.setattr(writer_module, "insert_at_once", insert)


async def move_to_another_server(node: Node, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node.database, "have_one_server", lambda *_: False)


async def fail_the_tail(_node: Node, patch: pytest.MonkeyPatch) -> None:
    async def faulty(*_: object) -> dict[int, list[Row]]:
        patch.setattr(feed_module, "rows_of", rows_of)
        raise ZeroDivisionError

    patch.setattr(feed_module, "rows_of", faulty)


FAULTS = (kill_connections, lose_an_answer, move_to_another_server, fail_the_tail)


@pytest.mark.parametrize("seed", range(2))
async def test_all_followers_of_all_nodes_see_one_order_whatever_happens(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("store.domain.hub.MAX_QUEUED_COMMITS", 4)
    monkeypatch.setattr(feed_module, "POLL_S", 3_600.0)
    rng = random.Random(SEED + seed)
    await publish(node, 1, 5, (1, 20))
    before = set(await commit_order(node))
    requests = [
        begin(wanted, include_data=data)
        for wanted in FILTERS
        for begin, data in ((from_beginning, True), (from_beginning, False), (from_now, True))
    ]
    # It takes nothing, is cut off, and catches up.
    slow = node.feed.follow(from_now(include_data=True), WideOutlet())
    async with (
        following(node.feed, *requests) as here,
        following(other_node.feed, *requests) as there,
        aclosing(slow),
    ):
        await all_live(*here, *there)
        assert (await anext(slow)).live
        long = LongTransaction(node)
        await long.open([random_batch(rng, 30, TIMES) for _ in range(3)])
        nodes = (node, other_node, node, other_node)
        work = [publish(each, 10 + number, 8, (1, 3, 40)) for number, each in enumerate(nodes)]
        await asyncio.gather(*work)
        # The long transaction is still open: nobody waits for it.
        middle = await store_one(other_node, "middle")
        for follower in (*here, *there):
            await follower.until_given(middle)
        work = [publish(each, 20 + number, 6, (1, 3)) for number, each in enumerate(nodes)]
        await asyncio.gather(long.commit(), *work)
        for number, fault in enumerate(rng.sample(FAULTS, len(FAULTS))):
            with monkeypatch.context() as patch:
                await fault(node, patch)
                for each in rng.sample(nodes[:2], 2):
                    await publish(each, 100 + 2 * number + (each is node), 2, (1, 4))
                    await there[0].until_given(await store_one(each, f"{number} {each is node}"))
        end = await store_one(node)
        right = {wanted: await selected(node, wanted) for wanted in FILTERS}
        for follower, request in zip((*here, *there), (*requests, *requests), strict=True):
            order = right[request.filter]
            if not request.from_beginning:
                order = [digest for digest in order if digest not in before]
            assert await follower.until_given(end) == order
            for page in follower.pages:
                assert page.cursor.store_id == node.database.store_id
                assert len(page.frames) <= PAGE_BYTES
        given: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while end not in given:
                given += hashes_in((await anext(slow)).frames)
        assert given == [each for each in right[TopicFilter()] if each not in before]
    assert node.lost == other_node.lost == []


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages of the backlog end inside commits, and read few commits and topics at once."""
    monkeypatch.setattr("store.db.messages.MAX_MERGED_TOPICS", 2)
    monkeypatch.setattr(feed_module, "MAX_PAGE_MESSAGES", 7)
    monkeypatch.setattr(feed_module, "_MAX_COMMITS", 5)


@pytest.mark.usefixtures("small_pages")
async def test_a_follower_resumes_from_every_cursor(node: Node, other_node: Node) -> None:
    await publish(node, SEED, 10, (1, 2, 9, 90))
    end = await store_one(node)
    for wanted in FILTERS:
        order = await selected(node, wanted)
        async with following(node.feed, from_beginning(wanted)) as [follower]:
            assert await follower.until_given(end) == order
        assert all(page.count <= 7 for page in follower.pages)
        assert any(page.cursor.hash for page in follower.pages)
        given = list(accumulate(page.count for page in follower.pages))
        tried = range(0, len(given), 1 + len(given) // 10)
        resumes = [from_cursor(follower.pages[index].cursor, wanted) for index in tried]
        async with following(other_node.feed, *resumes) as others:
            for index, resumed in zip(tried, others, strict=True):
                await resumed.until_live()
                assert resumed.hashes == order[given[index] :]


@pytest.mark.usefixtures("small_pages")
async def test_pages_are_live_from_the_end_of_the_backlog_on(node: Node) -> None:
    async with following(node.feed, from_beginning(), from_now()) as followers:
        await all_live(*followers)
        assert [[page.count for page in each.pages] for each in followers] == [[0], [0]]
    await publish(node, SEED, 10, (9,))
    async with following(
        node.feed, from_beginning(), from_now(), from_beginning(NOBODYS)
    ) as followers:
        await all_live(*followers)
        backlogged, fresh, other = followers
        end = await store_one(node)
        await backlogged.until_given(end)
        await fresh.until_given(end)
        lives = [page.live for page in backlogged.pages]
        assert lives == sorted(lives)
        assert sum(lives) == 2
        assert [(page.count, page.live) for page in fresh.pages] == [(0, True), (1, True)]
        assert [(page.count, page.live) for page in other.pages] == [(0, True)]


async def test_backlog_pages_are_cut_by_bytes(node: Node) -> None:
    rng = random.Random(SEED)
    batch = batch_of((NOW + number % 3, TOPICS[0], rng.randbytes(150_000)) for number in range(70))
    assert all(await node.store(batch))
    async with following(
        node.feed, from_beginning(include_data=True), from_beginning()
    ) as followers:
        await all_live(*followers)
        full, bare = followers
        assert len(full.pages) == 3
        assert max(len(page.frames) for page in full.pages) <= PAGE_BYTES
        assert full.hashes == bare.hashes == await commit_order(node)
        assert [page.count for page in bare.pages] == [70]


async def test_a_follower_of_few_messages_looks_through_commits_in_parts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[int] = []

    async def noted(connection: Connection, first: int, last: int, *rest: Any) -> list[CommitRow]:  # noqa: ANN401
        if _COMMITS_AT_ONCE not in rest:  # the tail reads all that there is
            spans.append(last - first)
        return await commits_between(connection, first, last, *rest)

    monkeypatch.setattr(feed_module, "commits_between", noted)
    monkeypatch.setattr(feed_module, "MAX_POSITIONS", 4)
    for number in range(30):
        await store_one(node, str(number), TOPICS[number in {0, 17, 29}])
        # Positions that no commit has: transactions that were rolled back.
        await node.rows("select nextval('storenode.position_seq') from generate_series(1, 7)")
    rare = TopicFilter(TOPICS[1][0], (TOPICS[1][1],))
    async with following(node.feed, from_beginning(rare)) as [few]:
        order = await commit_order(node)
        assert await few.until_given(order[-1]) == [order[number] for number in (0, 17, 29)]
    assert len(spans) > 20
    assert max(spans) <= 4 + 7


async def test_an_idle_followers_cursor_moves_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "IDLE_PAGE_S", 0.05)
    async with following(node.feed, from_now(NOBODYS), from_now()) as [idle, busy]:
        await all_live(idle, busy)
        await busy.until_given(await store_one(node))
        at_end = busy.pages[-1].cursor
        await idle.until(lambda self: self.pages[-1].cursor == at_end)
        assert idle.hashes == []
        assert all(page.live for page in idle.pages)


# When connections break, and when the database has lost commits


async def newest_cursor(node: Node) -> FollowCursor:
    async with following(node.feed, from_now()) as [follower]:
        return (await follower.until_live()).pages[-1].cursor


async def refused(node: Node, request: FollowRequest) -> str:
    """Return the error of a follower that cannot be served."""
    async with following(node.feed, request) as [follower]:
        error = await follower.end()
        assert isinstance(error, CursorOutOfRangeError), error
        assert not follower.pages
        return str(error)


async def disconnect(node: Node) -> None:
    """End every connection to the database but the one that does it."""
    await node.rows(TERMINATE_OTHERS)


async def test_a_cursor_is_served_if_its_commit_is_there_or_was_pruned(node: Node) -> None:
    await publish(node, SEED)
    cursor = await newest_cursor(node)
    store_id, position, token = cursor.store_id, cursor.position, cursor.token
    assert "another database" in await refused(
        node, from_cursor(FollowCursor(bytes(16), position, token))
    )
    for wrong in ((position + 1, token), (position, token ^ 1), (2**63 - 1, 0)):
        assert "lost" in await refused(node, from_cursor(FollowCursor(store_id, *wrong)))
    served = [cursor, FollowCursor(store_id, 0, 0)]
    async with following(node.feed, *map(from_cursor, served)) as followers:
        await all_live(*followers)
        assert [len(each.hashes) for each in followers] == [0, 12]
    await publish(node, SEED + 1)
    order = await commit_order(node)
    await node.rows("delete from storenode.commits where position <= %s", position + 1)
    async with following(node.feed, from_cursor(cursor)) as [follower]:
        await follower.until_live()
        assert follower.hashes == order[16:]


async def test_live_followers_learn_that_commits_were_lost(node: Node) -> None:
    await publish(node, SEED)
    left = await newest_cursor(node)
    idle_topic = TopicFilter("named", ("/idle/1/0/proto",))
    requests = (from_now(), from_beginning(), from_cursor(left, idle_topic))
    async with following(node.feed, *requests) as followers:
        await all_live(*followers)
        *moved, idle = followers
        last = await store_one(node, "to be lost")
        for follower in moved:
            await follower.until_given(last)
        reached = moved[0].pages[-1].cursor
        await node.rows(FORGET, left.position)
        await node.rows("delete from storenode.messages where hash = %s", last)
        await disconnect(node)
        for follower in moved:
            error = await follower.end()
            assert isinstance(error, CursorOutOfRangeError)
            assert "lost" in str(error)
        assert node.lost == [((reached.position, reached.token), (left.position, left.token))]
        # Who has seen nothing of what was lost continues.
        mine = await store_one(node, "after", ("named", "/idle/1/0/proto"))
        assert await idle.until_given(mine) == [mine]
        assert "lost" in await refused(node, from_cursor(reached))


async def test_what_a_standby_replays_while_it_is_looked_for_is_not_lost(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(node, SEED)
    cursor = await newest_cursor(node)
    place = cursor.position, cursor.token
    keep = "create table storenode.later as select * from storenode.commits where position = %s"
    await node.rows(keep, place[0])
    await node.rows(FORGET, place[0] - 1)
    feed = feed_module.DatabaseFeed(node.database, read_only=True)
    await feed.start()
    try:
        async with following(feed, from_cursor(cursor)) as [early]:
            assert "has not come to the commit" in str(await early.end())

        async def replay() -> None:
            await node.rows("insert into storenode.commits select * from storenode.later")
            await node.rows("drop table storenode.later")
            monkeypatch.undo()

        async def noted_newest(connection: Connection) -> Place:
            found = await newest(connection)
            await replay()
            return found

        async def noted_served(connection: Connection, wanted: Place) -> bool:
            found = await is_served(connection, wanted)
            if wanted == place:
                await replay()
            return found

        monkeypatch.setattr(feed_module, "newest", noted_newest)
        monkeypatch.setattr(feed_module, "is_served", noted_served)
        async with following(feed, from_cursor(cursor)) as [follower]:
            assert (await follower.until_live()).pages[0].cursor == cursor
    finally:
        await feed.stop()


async def test_who_comes_while_commits_are_read_misses_nothing(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def gated(*given: Any) -> dict[int, list[Row]]:  # noqa: ANN401
        reading.set()
        await go_on.wait()
        return await rows_of(*given)

    monkeypatch.setattr(feed_module, "rows_of", gated)
    other = TopicFilter(TOPICS[1][0], (TOPICS[1][1],))
    async with following(node.feed, from_now(), from_now(other)) as [early, filtered]:
        await early.until_live()
        cursor = (await filtered.until_live()).pages[0].cursor
        await filtered.stop()
        batch = batch_of((NOW, topic, b"payload") for topic in TOPICS[:3])
        await other_node.store(batch)
        await reading.wait()
        mine = batch.hashes[1]
        async with following(
            node.feed, from_cursor(cursor, other), from_cursor(cursor), from_now(other)
        ) as [late, wide, ahead]:
            await late.until_given(mine)
            await wide.until_given(mine)
            await ahead.until_live()
            go_on.set()
            end = await store_one(node)
            assert await wide.until_given(end) == await early.until_given(end)
            last = await store_one(node, "last", TOPICS[1])
            assert await late.until_given(last) == [mine, last]
            assert await ahead.until_given(last) == [last]
