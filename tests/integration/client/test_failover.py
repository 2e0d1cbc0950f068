"""A client with several nodes goes on at another one: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storenode.client import (
    AsyncClient,
    Message,
    Outcome,
    Retry,
)
from storenode.client.streams import AsyncMessageStream
from tests.support.node import NodeProcess

TOPIC = "/failover/1/all/proto"
PATIENT = Retry(attempts=400, first_delay_s=0.05, max_delay_s=0.25, at_start=True)
LATE = ("--max-clock-drift", "off", "--drain-timeout", "1s")


@pytest.fixture
def two(tmp_path: Path, database_url: str) -> Iterator[list[NodeProcess]]:
    """Return two nodes on one Postgres."""
    nodes = [NodeProcess(tmp_path / name, LATE, database_url) for name in ("a", "b")]
    try:
        yield [node.start() for node in nodes]
    finally:
        for node in nodes:
            node.close()


def made(count: int, payload_bytes: int = 10) -> list[Message]:
    start_ns = time.time_ns()
    return [
        Message(b"%d" % n + bytes(payload_bytes), TOPIC, timestamp=start_ns + n)
        for n in range(count)
    ]


def addresses(nodes: list[NodeProcess]) -> list[str]:
    return [node.listen for node in nodes]


async def taken(stream: AsyncMessageStream, count: int) -> list[Message]:
    return [await anext(stream) for _ in range(count)]


async def ended(node: NodeProcess, how: Callable[[NodeProcess], object]) -> None:
    await asyncio.to_thread(how, node)


KILLED: Callable[[NodeProcess], object] = NodeProcess.kill
STOPPED: Callable[[NodeProcess], object] = NodeProcess.terminate


@pytest.mark.parametrize("how", [KILLED, STOPPED])
async def test_streams_and_calls_go_on_at_another_node_of_the_store(
    two: list[NodeProcess], how: Callable[[NodeProcess], object]
) -> None:
    messages = made(400, payload_bytes=20_000)
    async with AsyncClient(addresses(two), retry=PATIENT) as client:
        results = await client.publish_many(messages[:300])
        assert {result.outcome for result in results} == {Outcome.STORED}
        scan, feed = client.scan(TOPIC, page_size=5), client.follow(TOPIC, from_beginning=True)
        scanned, followed = await taken(scan, 20), await taken(feed, 20)
        async with client.publisher() as publisher:
            for message in messages[300:350]:
                await publisher.send(message)
            await ended(two[0], how)
            for message in messages[350:]:
                await publisher.send(message)
        scanned += [message async for message in scan]
        followed += await taken(feed, len(messages) - 20)
        assert scanned[:300] == messages[:300]
        present = {message.hash for message in scanned}
        assert scanned == [message for message in messages if message.hash in present]
        assert sorted(message.hash for message in followed) == sorted(
            message.hash for message in messages
        )
        assert (await client.query(TOPIC, limit=1)).messages == messages[-1:]
        assert len(await client.get([message.hash for message in messages])) == len(messages)
