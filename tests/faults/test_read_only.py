"""Nodes that only read, on a standby, and a node whose database has become read-only."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from chaos.checker.clients import PUBSUB, TOPICS
from chaos.soak.postgres import Pair
from storenode.client.messages import new_message
from storenode.client.node import NodeClient, connect, content_filter
from storenode.client.retry import Retry
from storenode.client.types import PublishResult
from storenode.connection.errors import NodeError
from tests.faults.processes import until
from tests.support.command import Command
from tests.support.node import COMMAND, NodeProcess
from tests.support.postgres import running_pair

ONCE = Retry(attempts=1)
FILTER = content_filter(PUBSUB, TOPICS[0])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture(scope="module")
def writing(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("writing") / "data", database_url=pair.first.url)
    yield node.start()
    node.close()


@pytest.fixture(scope="module")
def reading(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Start a node on the standby, with a low limit of open files."""
    program = ("sh", "-c", 'ulimit -n 2000; exec "$0" "$@"', COMMAND)
    data_dir = tmp_path_factory.mktemp("reading") / "data"
    node = NodeProcess(data_dir, ("--read-only",), pair.second.url, program=program)
    yield node.start()
    node.close()


async def publish(client: NodeClient, text: bytes) -> int:
    (result,) = await client.publish([new_message(text, TOPICS[0], PUBSUB, time.time_ns())])
    return result.outcome


async def scanned(client: NodeClient) -> list[bytes]:
    async with aclosing(client.scan(filter=FILTER)) as pages:
        return [each.message.payload async for page in pages for each in page.messages]


async def after(client: NodeClient, cursor: bytes) -> bytes:
    """Return the first message after a cursor."""
    async with aclosing(client.follow(filter=FILTER, cursor=cursor)) as pages:
        async for page in pages:
            if page.messages:
                return page.messages[0].message.payload
    raise AssertionError


async def test_reads_come_from_the_standby_and_writes_go_elsewhere(
    pair: Pair, writing: NodeProcess, reading: NodeProcess
) -> None:
    here, there, both = (
        connect(nodes, retry=ONCE)
        for nodes in (writing.listen, reading.listen, [reading.listen, writing.listen])
    )
    async with here, there, both:
        with pytest.raises(NodeError, match="this node only reads: publish at a node that takes"):
            await publish(there, b"refused")
        # A client of both finds the one that stores it.
        assert await publish(both, b"one") == PublishResult.STORED
        pair.catch_up()
        assert await scanned(there) == [b"one"] == await scanned(here)
        (answer,) = [page async for page in there.get_sds("room", [("unknown", None)])]
        assert [each.message_id for each in answer.missing] == ["unknown"]
        pair.second.ask("select pg_wal_replay_pause()")
        await until(
            lambda: pair.second.ask("select pg_get_wal_replay_pause_state()") == [("paused",)]
        )
        async with aclosing(here.follow(filter=FILTER)) as live:
            await anext(live)
            assert await publish(here, b"two") == PublishResult.STORED
            page = await anext(live)
            assert [each.message.payload for each in page.messages] == [b"two"]
        # Its cursor is ahead of the standby: the error says so, and not that commits are lost.
        assert await scanned(there) == [b"one"]
        with pytest.raises(NodeError, match="has not come to the commit") as refusal:
            await after(there, page.cursor)
        assert refusal.value.retryable
        # A client of both continues at the other one, and misses nothing.
        assert await publish(here, b"three") == PublishResult.STORED
        assert await after(both, page.cursor) == b"three"
        pair.second.ask("select pg_wal_replay_resume()")
        pair.catch_up()
        assert await after(there, page.cursor) == b"three"
        assert await scanned(there) == [b"one", b"two", b"three"]
        async with aclosing(there.follow(filter=FILTER)) as live:
            await anext(live)
            assert await publish(here, b"four") == PublishResult.STORED
            page = await anext(live)
            assert [each.message.payload for each in page.messages] == [b"four"]
    assert reading.terminate() == 0
    # As many as there are files for, on two listeners, with a warning.
    (warning,) = [each for each in reading.log().splitlines() if "connections_reduced" in each]
    assert json.loads(warning)["to"] == (2000 - 256) // 2


def test_a_node_that_only_reads_has_one_host(tmp_path: Path) -> None:
    hosts = "postgresql://u@127.0.0.1:1,127.0.0.1:2/d"
    options = ("--data-dir", str(tmp_path / "data"), "--read-only", "--database-url", hosts)
    ended = Command()("run", *options)
    assert ended.code == 2
    assert "--database-url names several hosts and --read-only is given" in ended.err
