"""Filters turned into topic keys: exactly those that they select, without reading all topics."""

from __future__ import annotations

from itertools import product

import pytest

from store.db.commits import pages as commit_pages
from store.db.reading.messages import resolve
from store.db.writing.insert import insert_topics
from store.domain.hub import CommitRow
from store.domain.ports import TopicFilter, TopicRights
from storenode.message.topics import topic_key
from tests.integration.storage.following import commit_order, following, from_beginning
from tests.integration.storage.node import Node
from tests.integration.storage.test_plans import Explained
from tests.integration.storage.world import NOW, TOPICS, Topic, batch_of

# What sorts around a prefix: wildcards, the ends of the code space and of its surrogates.
STEMS = ("a", "a%", "a_", "b", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffa", "a\U0010ffff")
NAMES = (*STEMS, "a0", "A", "aa", "a\x01", "a\U0010ffff\U0010ffff", "\ud7ff\U0010ffff", "é", "e")
PAIRS: tuple[Topic, ...] = tuple(product(NAMES, NAMES))
MANY = 5_000


async def name_topics(node: Node, pairs: tuple[Topic, ...]) -> None:
    connection = await node.database.connect()
    async with connection:
        await node.partitions.ensure(connection, [NOW])
        low = node.partitions.coarse_lower(NOW)
        await insert_topics(connection, [(topic_key(*pair), low, *pair) for pair in pairs])


def filters() -> list[TopicFilter]:
    rights = [
        TopicRights(),
        *(TopicRights((stem,)) for stem in STEMS),
        *(TopicRights((), (stem,)) for stem in STEMS),
        TopicRights(("a", "\ud7ff", "a"), ("a_", "\U0010ffff", "b")),
        TopicRights(("",), ("a",)),
        TopicRights(("zzz",)),
    ]
    exact = [(None, ()), ("a", ()), (None, ("a", "a%", "nobody")), ("é", ("e", "a"))]
    return [TopicFilter(*topics, each) for topics, each in product(exact, rights)]


async def test_a_filter_selects_what_it_matches(node: Node) -> None:
    await name_topics(node, PAIRS)
    connection = await node.database.connect()
    async with connection:
        for wanted in filters():
            keys = (await resolve(connection, wanted)).keys
            if keys is None:
                assert wanted == TopicFilter()
                continue
            assert len(keys) == len(set(keys))
            assert set(keys) & {topic_key(*pair) for pair in PAIRS} == {
                topic_key(*pair) for pair in PAIRS if wanted.matches(*pair)
            }, wanted


@pytest.mark.parametrize(
    "wanted",
    [
        TopicFilter("/shard/17"),
        TopicFilter(None, ("/app/17", "/app/18")),
        TopicFilter(rights=TopicRights(("/shard/17",))),
        TopicFilter(rights=TopicRights((), ("/app/17", "/app/18"))),
        TopicFilter(None, ("/app/17",), TopicRights(("/shard/17",))),
        TopicFilter(rights=TopicRights(("/shard/17",), ("/app/17",))),
    ],
)
async def test_few_topics_are_found_without_reading_all(node: Node, wanted: TopicFilter) -> None:
    pairs = tuple((f"/shard/{number}/x", f"/app/{number}") for number in range(MANY))
    await name_topics(node, (*pairs, ("/shard/17", "/app/17")))
    await node.rows("analyze storenode.topics")
    connection = await node.database.connect()
    async with connection:
        explained = Explained(connection)
        keys = (await resolve(explained, wanted)).keys  # type: ignore[arg-type]
    assert keys is not None
    assert len(keys) >= 1
    assert explained.full_reads() == set()
    assert explained.rows_from("topics") <= MANY // 10


async def test_a_follower_of_few_messages_looks_through_commits_in_parts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans: list[int] = []

    async def noted(*given: object) -> list[CommitRow]:
        _, first, last, *_ = given
        assert isinstance(first, int)
        assert isinstance(last, int)
        spans.append(last - first)
        return await commits_between(*given)  # type: ignore[arg-type]

    commits_between = commit_pages.commits_between
    monkeypatch.setattr(commit_pages, "commits_between", noted)
    monkeypatch.setattr(commit_pages, "MAX_POSITIONS", 4)
    wanted = []
    for number in range(30):
        topic = TOPICS[1] if number in {0, 17, 29} else TOPICS[0]
        batch = batch_of([(NOW - number, topic, b"%d" % number)])
        assert await node.store(batch) == [True]
        # Positions that no commit has: transactions that were rolled back.
        await node.rows("select nextval('storenode.position_seq') from generate_series(1, 7)")
        wanted += batch.hashes if topic == TOPICS[1] else []
    rare = TopicFilter(TOPICS[1][0], (TOPICS[1][1],))
    async with following(node.feed, from_beginning(rare), from_beginning()) as [few, everything]:
        assert await few.until_given(wanted[-1]) == wanted
        assert await everything.until_given(wanted[-1]) == await commit_order(node)
    assert len(spans) > 30
    assert max(spans) <= 4 + 7
