"""The primary dies while clients publish, and its standby is promoted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from chaos.checker.clients import TOPICS, Publisher, new_messages
from chaos.checker.history import History
from chaos.soak.postgres import Pair
from tests.faults.processes import is_refused, logged, metrics, until
from tests.support.clients import (
    acknowledged,
    check_nodes,
    follower,
    following,
    found,
    publisher,
    publishing,
    receives,
    scanned,
)
from tests.support.command import Command
from tests.support.node import NodeProcess
from tests.support.postgres import COMMITTING

RARE = ("/faults/1/rare/proto",)
NEWEST = "select max(position) from storenode.commits"


def start(pair: Pair, nodes: Sequence[NodeProcess]) -> None:
    """Start nodes that know both servers."""
    for node in nodes:
        node.database_url = pair.url
        node.start()


async def test_a_promoted_standby_holds_everything(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    history = History()
    pair.synchronous()
    start(pair, nodes)
    publishers = [
        publisher(node.listen, history, Random(rng.random())) for node in nodes for _ in range(2)
    ]
    followers = [follower(node.listen) for node in nodes]
    async with following(*followers):
        async with publishing(publishers):
            await acknowledged(history, rng.randint(1_000, 4_000))
            await asyncio.to_thread(pair.first.kill)
            await asyncio.to_thread(pair.promote)
            await acknowledged(history, 1_000)
        stored = await check_nodes(history, *(node.listen for node in nodes))
        assert stored == history.published.keys()
        for each in followers:
            await receives(each, stored)
            assert each.stored == stored
    Command().ok("db", "check", "--database-url", pair.second.url)


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_that_did_not_wait_for_the_standby_is_not_acknowledged(
    pair: Pair, nodes: list[NodeProcess], rng: Random, end: str
) -> None:
    """Check a commit that is visible on the primary, and is lost with it."""
    history = History()
    pair.synchronous()
    start(pair, nodes)
    clients = [publisher(node.listen, history, rng) for node in nodes]
    # Makes partitions and the names of topics, so that only messages are waited for.
    for each in clients:
        await each.publish([new_messages(rng, 1, topics=[topic])[0] for topic in TOPICS])
    before = history.acks.copy()
    messages = new_messages(rng, 5)

    pair.cut()
    calls = [asyncio.create_task(clients[0].publish(messages))]
    await until(lambda: len(pair.first.ask(COMMITTING)) == 1)
    ((pid, since),) = pair.first.ask(COMMITTING)
    pair.first.ask(f"select {end}(%s)", pid)
    await until(lambda: any(row[1] > since for row in pair.first.ask(COMMITTING)))
    # The message is visible now; publishing it again must not be acknowledged.
    calls.append(asyncio.create_task(clients[1].publish(messages)))
    await until(lambda: len(pair.first.ask(COMMITTING)) == 2)
    assert not any(call.done() for call in calls)
    assert history.acks == before
    stored_before = count_stored(clients)
    pair.first.kill()
    await asyncio.to_thread(pair.promote)
    await asyncio.gather(*calls)
    assert count_stored(clients) - stored_before == len(messages), "lost, and stored again"
    sent = history.published.keys() - before.keys()
    for node in nodes:
        assert await found(node.listen, sent) == sent


def count_stored(clients: Sequence[Publisher]) -> int:
    return sum(each.outcomes["STORED"] for each in clients)


async def test_lost_commits_are_reported_and_cursors_beyond_them_refused(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    """Check asynchronous replication, whose failover loses commits."""
    kept, lost, after = History(), History(), History()
    start(pair, nodes)
    reader = follower(nodes[0].listen)
    async with following(reader):
        async with publishing([publisher(nodes[0].listen, kept, rng)]):
            await acknowledged(kept, 300)
        await receives(reader, kept.published)
    pair.catch_up()
    pair.cut()
    beyond = follower(nodes[1].listen, reader.cursor)

    def rare(history: History) -> Publisher:
        return publisher(nodes[0].listen, history, rng, content_topics=RARE, batch_messages=1)

    async with following(beyond):
        async with publishing([publisher(nodes[0].listen, lost, rng)]):
            await acknowledged(lost, 300)
        assert await rare(lost).attempt() is None
        await receives(beyond, lost.published)
    nodes[0].terminate()
    ((reached,),) = pair.first.ask(NEWEST)
    pair.first.kill()
    await asyncio.to_thread(pair.promote)
    ((newest,),) = pair.second.ask(NEWEST)
    nodes[0].start()
    await logged(nodes[0], f'"reached": {reached}, "newest": {newest}')
    assert metrics(nodes[0])["storenode_database_events_total", "commits_lost"] == 1
    async with publishing([publisher(node.listen, after, rng) for node in nodes]):
        await acknowledged(after, 300)
    for node in nodes:
        assert await is_refused(node, beyond.cursor)
        resumed = follower(node.listen, reader.cursor)
        async with following(resumed):
            await receives(resumed, after.published)
        assert resumed.stored == after.published.keys()
    assert await rare(after).attempt() is None
    # By content topic alone: this needs the names of topics, which were lost too.
    assert len(await scanned(nodes[0].listen, RARE)) == 1
    Command().ok("db", "check", "--database-url", pair.second.url)
