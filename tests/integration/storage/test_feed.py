"""Followers on real databases: everything once, in one commit order, whatever comes between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import accumulate
from typing import Any

import pytest
from psycopg import OperationalError

from store.db.commits import feed as feed_module
from store.db.commits import pages as commit_pages
from store.db.pool import Connection
from store.db.reading.messages import Topics
from store.db.writing import insert as insert_module
from store.db.writing import writer as writer_module
from store.db.writing.insert import OwnCommit
from store.domain.hub import MAX_QUEUED_BYTES, MAX_QUEUED_COMMITS, CommitRow, Place, Row, Subscriber
from store.domain.ports import Ephemeral, TopicFilter, TopicRights
from storenode.message.limits import MAX_RESPONSE_BYTES
from storenode.message.topics import topic_key
from tests.integration.storage.following import (
    PATIENCE_S,
    Following,
    LongTransaction,
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
    batch_of,
    hashes_in,
    messages_of,
    part_of,
    random_batch,
)
from tests.support.outlet import WideOutlet
from tests.support.polling import PAUSE_S

TIMES = (NOW - 9 * DAY, NOW - DAY, NOW - 1, NOW, NOW, NOW + 1)
SEED = 20261120
# Every topic filter selects the last of these, so that a follower's end can be waited for.
END_TOPIC = TOPICS[0]
FILTERS = (
    TopicFilter(),
    TopicFilter(PUBSUBS[0], CONTENTS[:2]),
    TopicFilter(PUBSUBS[0]),
    TopicFilter(None, (CONTENTS[0], CONTENTS[4])),
    TopicFilter(rights=TopicRights(("/waku/2/rs/1/0",), ("/app-0/",))),
    TopicFilter(PUBSUBS[0], CONTENTS, TopicRights((), (CONTENTS[0], CONTENTS[1]))),
)


def end_marker(number: int = 0) -> KnownMessage:
    return messages_of(batch_of([(NOW, END_TOPIC, b"end %d" % number)]))[0]


async def store_end(node: Node, number: int = 0) -> bytes:
    """Store a message that everybody follows."""
    await node.store(batch_of([(NOW, END_TOPIC, b"end %d" % number)]))
    return end_marker(number).hash


async def publish(
    node: Node, seed: int, batches: int, sizes: tuple[int, ...]
) -> list[KnownMessage]:
    """Store batches one after the other."""
    rng = random.Random(seed)
    stored = []
    for _ in range(batches):
        batch = random_batch(rng, rng.choice(sizes), TIMES)
        assert all(await node.store(batch))
        stored += messages_of(batch)
    return stored


async def assert_complete(
    follower: Following,
    wanted: TopicFilter,
    order: list[bytes],
    stored: list[KnownMessage],
    end: bytes,
) -> None:
    """Check that the follower was given what its filter selects, once, in commit order."""
    matches = {each.hash for each in stored if wanted.matches(*each.topic)}
    given = await follower.until_given(end)
    assert given == [digest for digest in order if digest in matches]


async def test_all_followers_of_all_nodes_see_one_order_past_a_long_transaction(
    node: Node, other_node: Node
) -> None:
    rng = random.Random(SEED)
    restored = [random_batch(rng, 30, TIMES) for _ in range(3)]
    stored = [each for batch in restored for each in messages_of(batch)]
    stored += await publish(node, 1, 5, (1, 20))
    requests = [
        begin(wanted, include_data=data)
        for wanted in FILTERS
        for begin, data in ((from_beginning, True), (from_beginning, False), (from_now, True))
    ]
    before = {each.hash for each in stored} - {
        each.hash for b in restored for each in messages_of(b)
    }
    async with (
        following(node.feed, *requests) as here,
        following(other_node.feed, *requests) as there,
    ):
        for follower in (*here, *there):
            await follower.until_live()
        long = LongTransaction(node)
        await long.open(restored)
        nodes = (node, other_node, node, other_node)
        work = [publish(each, 10 + seed, 12, (1, 3, 40)) for seed, each in enumerate(nodes)]
        for some in await asyncio.gather(*work):
            stored += some
        # The long transaction is still open: nobody waits for it.
        middle = await store_end(other_node, 1)
        for follower in (*here, *there):
            assert middle in await follower.until_given(middle)
        work = [publish(each, 20 + seed, 6, (1, 3)) for seed, each in enumerate(nodes)]
        late = asyncio.create_task(long.commit())
        for some in await asyncio.gather(*work):
            stored += some
        await late
        end = await store_end(node, 2)
        stored += [end_marker(1), end_marker(2)]

        order = await commit_order(node)
        assert sorted(order) == sorted(each.hash for each in stored)
        for follower, request in zip((*here, *there), (*requests, *requests), strict=True):
            seen = stored if request.from_beginning else [e for e in stored if e.hash not in before]
            await assert_complete(follower, request.filter, order, seen, end)
            for page in follower.pages:
                assert page.cursor.store_id == node.database.store_id
                assert len(page.frames) <= MAX_RESPONSE_BYTES - 32_000


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pages of the backlog end inside commits, and read few commits at once."""
    monkeypatch.setattr(commit_pages, "MAX_PAGE_MESSAGES", 7)
    monkeypatch.setattr(commit_pages, "_MAX_COMMITS", 5)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("wanted", FILTERS)
async def test_a_follower_resumes_from_every_cursor(
    node: Node, other_node: Node, wanted: TopicFilter
) -> None:
    stored = await publish(node, SEED, 10, (1, 2, 9, 90, 150))
    end = await store_end(node)
    stored.append(end_marker())
    matches = {each.hash for each in stored if wanted.matches(*each.topic)}
    order = [digest for digest in await commit_order(node) if digest in matches]
    async with following(node.feed, from_beginning(wanted)) as [follower]:
        assert await follower.until_given(end) == order
        assert all(page.count <= 7 for page in follower.pages)
        assert any(page.cursor.hash for page in follower.pages)
        given = list(accumulate(page.count for page in follower.pages))
        tried = range(0, len(given), 1 + len(given) // 20)
        resumes = [from_cursor(follower.pages[index].cursor, wanted) for index in tried]
        async with following(other_node.feed, *resumes) as others:
            for index, resumed in zip(tried, others, strict=True):
                await resumed.until_live()
                assert resumed.hashes == order[given[index] :]


@pytest.mark.usefixtures("small_pages")
async def test_pages_are_live_from_the_end_of_the_backlog_on(node: Node) -> None:
    async with following(node.feed, from_beginning(), from_now()) as followers:
        for follower in followers:
            await follower.until(lambda self: bool(self.pages))
            assert [(page.count, page.live) for page in follower.pages] == [(0, True)]
    await publish(node, SEED, 10, (9,))
    nothing = TopicFilter("unknown")
    async with following(
        node.feed, from_beginning(), from_now(), from_beginning(nothing)
    ) as followers:
        backlogged, fresh, other = [await follower.until_live() for follower in followers]
        end = await store_end(node)
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
    async with following(node.feed, from_beginning(include_data=True)) as [follower]:
        await follower.until_live()
        sizes = [len(page.frames) for page in follower.pages]
        assert len(sizes) == 3
        assert max(sizes) <= MAX_RESPONSE_BYTES - 32_000
        assert follower.hashes == await commit_order(node)
    async with following(node.feed, from_beginning()) as [follower]:
        await follower.until_live()
        assert [page.count for page in follower.pages] == [70]


async def test_a_follower_that_takes_nothing_costs_little_and_catches_up(node: Node) -> None:
    rng = random.Random(SEED)
    async with following(node.feed, from_now()) as [quick]:
        await quick.until_live()
        # What has been dispatched shows that the tail is up: who comes now is live by it.
        await quick.until_given(await store_end(node, 1))
        pages = node.feed.follow(from_now(include_data=True), WideOutlet())
        assert (await anext(pages)).live
        # First too many bytes, then too many commits.
        for number in range(8):
            await node.store(
                batch_of((NOW, TOPICS[number % 3], rng.randbytes(140_000)) for _ in range(9))
            )
        for _ in range(MAX_QUEUED_COMMITS // 2):
            await publish(node, rng.randrange(2**32), 4, (1,))
        end = await store_end(node)
        await quick.until_given(end)
        [queued] = [each.queued_bytes for each in _subscribers(node) if each.include_data]
        assert queued <= MAX_QUEUED_BYTES
        given: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            async for page in pages:
                assert page.live
                assert len(page.frames) <= MAX_RESPONSE_BYTES - 32_000
                given += hashes_in(page.frames)
                if end in given:
                    break
        await pages.aclose()
        assert quick.hashes == await commit_order(node)
        assert given == quick.hashes[1:]


def _subscribers(node: Node) -> list[Subscriber]:
    return list(node.feed._hub._keys)


async def until_tail_waits(node: Node) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while node.feed._waiting is None:  # noqa: ASYNC110 - tells nobody
            await asyncio.sleep(PAUSE_S)


async def test_own_commits_are_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "POLL_S", 3_600.0)
    wanted = TopicFilter(None, CONTENTS[:2])
    requests = [from_now(), from_now(wanted), from_now(include_data=True)]
    async with following(node.feed, *requests) as followers:
        for follower in followers:
            await follower.until_live()
        await until_tail_waits(node)
        reads: list[str] = []
        for name in ("commits_between", "rows_of", "topic_names"):
            monkeypatch.setattr(feed_module, name, lambda *_, name=name: reads.append(name))
        messages = await publish(node, SEED, 8, (1, 3, 150))
        # Queued before the writer begins, these share its transaction.
        shared = random_batch(random.Random(SEED + 1), 20, TIMES)
        await asyncio.gather(*map(node.store, (shared, part_of(shared, [3, 5]), shared)))
        messages += messages_of(shared)
        end, order = await store_end(node), await commit_order(node)
        messages.append(end_marker())
        for follower, each in zip(followers, (TopicFilter(), wanted, TopicFilter()), strict=True):
            await assert_complete(follower, each, order, messages, end)
        assert reads == []
    assert node.feed.counted[1] == len(messages)


@pytest.mark.parametrize("fault", ["lost answer", "other server"])
async def test_a_commit_whose_messages_cannot_be_handed_over_is_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(feed_module, "POLL_S", 3_600.0)
    attempts: list[int] = []

    async def lose_first_answer(*given: Any) -> list[OwnCommit]:  # noqa: ANN401
        committed = await insert_module.insert_at_once(*given)
        attempts.append(len(committed))
        if len(attempts) == 1:
            raise OperationalError("the answer was lost")
        return committed

    if fault == "lost answer":
        monkeypatch.setattr(writer_module, "insert_at_once", lose_first_answer)
    else:
        monkeypatch.setattr(node.database, "have_one_server", lambda *_: False)
    async with following(node.feed, from_now()) as [follower]:
        await follower.until_live()
        batches = [batch_of([(NOW, END_TOPIC, b"%d" % number)]) for number in range(3)]
        for batch in batches:
            assert await node.store(batch) == [True]
            await follower.until_given(batch.hashes[0])
        assert follower.hashes == [batch.hashes[0] for batch in batches]


async def test_who_comes_while_commits_are_read_misses_nothing(
    node: Node, other_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def gated(
        connection: Connection, commits: Sequence[CommitRow], topics: Topics
    ) -> dict[int, list[Row]]:
        reading.set()
        await go_on.wait()
        return await commit_pages.rows_of(connection, commits, topics)

    monkeypatch.setattr(feed_module, "rows_of", gated)
    other = TopicFilter(*TOPICS[1][:1], (TOPICS[1][1],))
    async with following(node.feed, from_now(), from_now(other)) as [early, filtered]:
        await early.until_live()
        cursor = (await filtered.until_live()).pages[0].cursor
        await filtered.stop()
        batch = batch_of((NOW, topic, b"payload") for topic in TOPICS[:3])
        await other_node.store(batch)
        await reading.wait()
        mine = messages_of(batch)[1].hash
        async with following(
            node.feed, from_cursor(cursor, other), from_cursor(cursor), from_now(other)
        ) as [late, wide, ahead]:
            await late.until_given(mine)
            await wide.until_given(mine)
            await ahead.until_live()
            go_on.set()
            end = await store_end(node)
            assert await wide.until_given(end) == await early.until_given(end)
            last = batch_of([(NOW, TOPICS[1], b"last")])
            await node.store(last)
            assert await late.until_given(last.hashes[0]) == [mine, *last.hashes]
            assert await ahead.until_given(last.hashes[0]) == last.hashes


async def test_idle_followers_are_not_woken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[TopicFilter] = []

    def counting(
        wanted: TopicFilter,
        include_data: bool,
        place: Place,
        wake: Callable[[], None],
        most_bytes: int,
    ) -> Subscriber:
        def counted() -> None:
            woken.append(wanted)
            wake()

        return Subscriber(wanted, include_data, place, counted, most_bytes)

    monkeypatch.setattr(feed_module, "Subscriber", counting)
    # On a slow machine an idle follower's cursor would move on meanwhile.
    monkeypatch.setattr(feed_module, "IDLE_PAGE_S", 3_600.0)
    quiet = [TopicFilter(PUBSUBS[0], (f"/quiet/1/{number}/proto",)) for number in range(2_000)]
    async with AsyncExitStack() as stack:
        idle: list[Following] = []
        # Not all at once: each takes a connection for a moment, and waits 5 s for it at most.
        for start in range(0, len(quiet), 100):
            some = map(from_now, quiet[start : start + 100])
            idle += await stack.enter_async_context(following(node.feed, *some))
            for follower in idle[start:]:
                await follower.until_live()
        assert node.feed.followers == len(quiet)
        async with following(node.feed, from_now()) as [busy]:
            await busy.until_live()
            await publish(node, SEED, 40, (1, 20))
            await busy.until_given(await store_end(node))
            assert set(woken) == {TopicFilter()}
            assert all(len(follower.pages) == 1 for follower in idle)
            wanted = batch_of([(NOW, (PUBSUBS[0], "/quiet/1/1234/proto"), b"at last")])
            await node.store(wanted)
            assert await idle[1234].until_given(wanted.hashes[0]) == wanted.hashes
            assert woken.count(quiet[1234]) == 1
    assert node.feed.followers == 0


async def test_an_idle_followers_cursor_moves_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "IDLE_PAGE_S", 0.05)
    async with following(node.feed, from_now(TopicFilter("unknown")), from_now()) as [idle, busy]:
        await idle.until_live()
        await busy.until_live()
        end = await store_end(node)
        await busy.until_given(end)
        at_end = busy.pages[-1].cursor
        await idle.until(lambda self: self.pages[-1].cursor == at_end)
        assert idle.hashes == []
        assert all(page.live for page in idle.pages)


async def test_ephemeral_messages_reach_live_followers_and_move_no_cursor(node: Node) -> None:
    message = end_marker()
    ephemeral = Ephemeral(topic_key(*message.topic), *message.topic, message.frame, message.hash)
    requests = [from_now(wanted, include_data=True) for wanted in FILTERS]
    async with following(node.feed, *requests, from_now(TopicFilter("unknown"))) as [
        *interested,
        other,
    ]:
        for follower in (*interested, other):
            await follower.until_live()
        node.feed.announce_ephemeral([ephemeral])
        for follower in interested:
            await follower.until_given(message.hash)
            first, second = follower.pages
            assert (second.frames, second.cursor) == (message.frame, first.cursor)
        assert other.hashes == []
    assert await commit_order(node) == []
