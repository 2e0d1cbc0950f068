"""Look-ups by hash that arrive together, and those of many large messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from store.db.reading import lookups as lookups_module
from store.db.reading.lookups import MAX_DIRECT_HASHES
from store.domain.ports import PageRequest, QueryPage, StoreUnavailable, TopicFilter, TopicRights
from storenode.message.limits import MAX_RESPONSE_BYTES
from tests.integration.storage.node import Node, running
from tests.integration.storage.proxy import proxied
from tests.integration.storage.world import (
    DAY,
    NOW,
    TOPICS,
    KnownMessage,
    World,
    as_query,
    batch_of,
    in_order,
    messages_of,
    random_batch,
)
from tests.support.postgres import PostgresServer

SEED = 20261120
FOREVER = 2**63 - 1


async def filled(url: str) -> World:
    """Fill a database, and return what it holds then."""
    batch = random_batch(random.Random(SEED), 300, [NOW - 40 * DAY, NOW - 1, NOW])
    async with running(url) as node:
        assert all(await node.store(batch))
    return World(in_order(messages_of(batch)))


@pytest.fixture(scope="module")
def history(postgres: PostgresServer, template_database: str) -> Iterator[tuple[str, World]]:
    """Return the URL of a database that tests only read, and what it holds."""
    name = postgres.create_database(template_database)
    url = postgres.url(name)
    yield url, asyncio.run(filled(url))
    postgres.drop_database(name)


@pytest.fixture
async def node(history: tuple[str, World]) -> AsyncIterator[Node]:
    """Open a node on that database."""
    async with running(history[0]) as opened:
        yield opened


@pytest.fixture(params=[0, NOW, FOREVER], ids=["all-recent", "some-recent", "none-recent"])
def world(
    history: tuple[str, World], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> World:
    monkeypatch.setattr(lookups_module, "recent_ns", lambda: request.param)
    return history[1]


def look_up(
    hashes: tuple[bytes, ...],
    *,
    include_data: bool = True,
    forward: bool = True,
    limit: int = 1_000,
    after: KnownMessage | None = None,
) -> PageRequest:
    start = None if after is None else after.at
    return PageRequest(TopicFilter(), hashes, 0, FOREVER, start, forward, limit, include_data)


def expected(world: World, request: PageRequest) -> QueryPage:
    stored = [each for each in world if each.hash in set(request.hashes or ())]
    if request.after is not None:
        after = request.after
        stored = [
            each for each in stored if (each.at > after if request.forward else each.at < after)
        ]
    shown = stored[: request.limit] if request.forward else stored[-request.limit :]
    frames = [each.frame if request.include_data else each.presence for each in shown]
    last = shown[-1 if request.forward else 0].hash if len(shown) < len(stored) else None
    return QueryPage(as_query(frames), len(shown), last)


async def test_lookups_that_share_a_statement_get_their_own_answers(
    node: Node, world: World
) -> None:
    rng = random.Random(SEED)
    requests = []
    for _ in range(400):
        chosen = [each.hash for each in rng.sample(world, rng.randrange(8))]
        chosen += [rng.randbytes(32) for _ in range(rng.randrange(2))]
        requests.append(
            look_up(
                tuple(chosen),
                include_data=rng.random() < 0.5,
                forward=rng.random() < 0.5,
                limit=rng.choice((1, 2, 5, 100)),
                after=rng.choice((None, None, rng.choice(world))),
            )
        )
    pages = await asyncio.gather(*map(node.reader.query, requests))
    right = [
        page == expected(world, request) for page, request in zip(pages, requests, strict=True)
    ]
    assert right == [True] * len(requests)


@pytest.mark.parametrize("include_data", [True, False])
@pytest.mark.parametrize("count", [3, 100, 250])
async def test_hashes_that_begin_alike_are_distinguished(
    node: Node, world: World, include_data: bool, count: int
) -> None:
    chosen = [each.hash for each in world[:count]]
    alike = [digest[:-1] + bytes((digest[-1] ^ 1,)) for digest in chosen]
    asked = tuple(
        digest for pair in zip(alike, chosen, alike[::-1], strict=True) for digest in pair
    )
    for hashes in (asked, tuple(alike)):
        request = look_up(tuple(dict.fromkeys(hashes)), include_data=include_data)
        assert await node.reader.query(request) == expected(world, request)
    for digest in alike[:3]:
        assert await node.reader.position(digest, TopicRights()) is None


async def test_callers_that_go_away_do_not_disturb_the_others(node: Node, world: World) -> None:
    requests = [look_up((each.hash,)) for each in world[:200]]
    tasks = [asyncio.create_task(node.reader.query(request)) for request in requests]
    first = await tasks[0]
    for task in tasks[1::2]:
        task.cancel()
    assert first == expected(world, requests[0])
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    for request, answer in list(zip(requests, answers, strict=True))[::2]:
        assert answer == expected(world, request)


async def test_lookups_fail_together_and_work_again(database_url: str) -> None:
    async with proxied(database_url) as (proxy, url), running(url) as node:
        batch = random_batch(random.Random(SEED), 20, [NOW])
        assert all(await node.store(batch))
        world = World(in_order(messages_of(batch)))
        requests = [look_up((each.hash,)) for each in world]
        proxy.refuse()
        with node.impatient():
            lookups = map(node.reader.query, requests)
            answers = await asyncio.gather(*lookups, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailable}
        await proxy.open()
        async with asyncio.timeout(90):
            while True:
                try:
                    pages = await asyncio.gather(*map(node.reader.query, requests))
                    break
                except StoreUnavailable:
                    continue
        assert pages == [expected(world, request) for request in requests]


@pytest.mark.parametrize("count", [MAX_DIRECT_HASHES, MAX_DIRECT_HASHES + 1, 400])
async def test_pages_of_large_messages_are_cut_by_bytes(database_url: str, count: int) -> None:
    rng = random.Random(SEED)
    size = 9_000_000 // count
    batch = batch_of((NOW - rng.randrange(3), TOPICS[0], rng.randbytes(size)) for _ in range(count))
    world = in_order(messages_of(batch))
    hashes = tuple(rng.sample(batch.hashes, count))
    async with running(database_url) as node:
        assert all(await node.store(batch))
        for forward in (True, False):
            after, found = None, []
            while True:
                page = await node.reader.query(look_up(hashes, forward=forward, after=after))
                assert len(page.entries) <= MAX_RESPONSE_BYTES - 32_000
                found.append(page)
                if page.next_cursor is None:
                    break
                assert len(page.entries) > MAX_RESPONSE_BYTES - 100_000 - size
                [after] = [each for each in world if each.hash == page.next_cursor]
            assert len(found) == 3
            ordered = found if forward else found[::-1]
            joined = b"".join(page.entries for page in ordered)
            assert joined == as_query(each.frame for each in world), len(joined)
