"""The primary dies while clients publish, and its standby is promoted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import pytest

from chaos.soak.postgres import Pair
from storenode.client.messages import new_message
from storenode.client.node import connect, content_filter
from storenode.client.types import PublishResult, WakuMessageAndTopic
from tests.faults.processes import is_refused, logged, metrics, until
from tests.support.command import Command
from tests.support.ledger import (
    PATIENCE_S,
    PATIENT,
    PUBSUB,
    TOPICS,
    Follower,
    Ledger,
    Publisher,
    check_node,
    following,
    found_by_hash,
    hashes_of,
    publishing,
)
from tests.support.node import NodeProcess
from tests.support.postgres import COMMITTING

NEWEST = "select max(position) from storenode.commits"


def start(pair: Pair, nodes: Sequence[NodeProcess]) -> None:
    """Start nodes that know both servers."""
    for node in nodes:
        node.database_url = pair.url
        node.start()


async def test_a_promoted_standby_holds_everything(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    ledger = Ledger()
    pair.synchronous()
    start(pair, nodes)
    publishers = [
        Publisher(node.listen, ledger, Random(rng.random())) for node in nodes for _ in range(2)
    ]
    followers = [Follower(node.listen) for node in nodes]
    async with following(*followers):
        async with publishing(publishers):
            await ledger.more(rng.randint(1_000, 4_000))
            await asyncio.to_thread(pair.first.kill)
            await asyncio.to_thread(pair.promote)
            await ledger.more(1_000)
        for node, follower in zip(nodes, followers, strict=True):
            stored = await check_node(node.listen, ledger)
            await follower.has_all(stored)
            assert set(follower.hashes) == stored == ledger.sent
    Command().ok("db", "check", "--database-url", pair.second.url)


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_that_did_not_wait_for_the_standby_is_not_acknowledged(
    pair: Pair, nodes: list[NodeProcess], rng: Random, end: str
) -> None:
    """Check a commit that is visible on the primary, and is lost with it."""
    ledger = Ledger()
    pair.synchronous()
    start(pair, nodes)
    # Makes partitions and the names of topics, so that only messages are waited for.
    await asyncio.gather(*(publish_everywhere(node) for node in nodes))
    request = ledger.sending(Publisher("", ledger, rng).request())

    async def publish(node: NodeProcess) -> None:
        async with connect(node.listen) as client:
            results = await client.publish(request.messages, timeout_s=PATIENCE_S)
            ledger.answered(request, results)

    pair.cut()
    calls = [asyncio.create_task(publish(nodes[0]))]
    await until(lambda: len(pair.first.ask(COMMITTING)) == 1)
    ((pid, since),) = pair.first.ask(COMMITTING)
    pair.first.ask(f"select {end}(%s)", pid)
    await until(lambda: any(row[1] > since for row in pair.first.ask(COMMITTING)))
    # The message is visible now; publishing it again must not be acknowledged.
    calls.append(asyncio.create_task(publish(nodes[1])))
    await until(lambda: len(pair.first.ask(COMMITTING)) == 2)
    assert not any(call.done() for call in calls)
    assert ledger.acknowledged == set()
    pair.first.kill()
    await asyncio.to_thread(pair.promote)
    await asyncio.gather(*calls)
    assert ledger.outcomes[PublishResult.STORED] == len(ledger.sent), "lost, and stored again"
    for node in nodes:
        async with connect(node.listen, retry=PATIENT) as client:
            assert await found_by_hash(client, ledger.sent) == ledger.sent


async def test_lost_commits_are_reported_and_cursors_beyond_them_refused(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    """Check asynchronous replication, whose failover loses commits."""
    kept, lost, after = Ledger(), Ledger(), Ledger()
    start(pair, nodes)
    reader = Follower(nodes[0].listen)
    async with following(reader):
        async with publishing([Publisher(nodes[0].listen, kept, rng)]):
            await kept.more(300)
        await reader.has_all(kept.sent)
    pair.catch_up()
    pair.cut()
    beyond = Follower(nodes[1].listen, reader.cursor)
    async with following(beyond):
        async with publishing([Publisher(nodes[0].listen, lost, rng)]):
            await lost.more(300)
        new_topic = [message_of(rng)]
        async with connect(nodes[0].listen) as client:
            await client.publish(new_topic)
        await beyond.has_all(lost.sent)
    nodes[0].terminate()
    ((reached,),) = pair.first.ask(NEWEST)
    pair.first.kill()
    await asyncio.to_thread(pair.promote)
    ((newest,),) = pair.second.ask(NEWEST)
    nodes[0].start()
    await logged(nodes[0], f'"reached": {reached}, "newest": {newest}')
    assert metrics(nodes[0])["storenode_database_events_total", "commits_lost"] == 1
    async with publishing([Publisher(node.listen, after, rng) for node in nodes]):
        await after.more(300)
    for node in nodes:
        assert await is_refused(node, beyond.cursor)
        resumed = Follower(node.listen, reader.cursor)
        async with following(resumed):
            await resumed.has_all(after.sent)
        assert set(resumed.hashes) == after.sent
    async with connect(nodes[0].listen) as client:
        again = [message_of(rng)]
        await client.publish(again)
        # By content topic alone: this needs the names of topics, which were lost too.
        wanted = content_filter(content_topics=[again[0].message.content_topic])
        found = [digest async for page in client.scan(filter=wanted) for digest in hashes_of(page)]
        assert len(found) == 1
    Command().ok("db", "check", "--database-url", pair.second.url)


async def publish_everywhere(node: NodeProcess) -> None:
    async with connect(node.listen) as client:
        await client.publish(
            new_message(node.listen.encode(), topic, PUBSUB, time.time_ns()) for topic in TOPICS
        )


def message_of(rng: Random) -> WakuMessageAndTopic:
    """Return a message on a topic of its own."""
    return new_message(rng.randbytes(20), "/faults/1/rare/proto", PUBSUB, time.time_ns())
