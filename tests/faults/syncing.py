"""Two nodes with a network between them, whose sessions meet faults; and how they are compared."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from store.db.schema.migrate import upgrade
from storenode.client.messages import new_message
from storenode.client.node import connect
from storenode.client.types import SyncReport, WakuMessageAndTopic
from tests.support.acknowledged import PATIENCE_S
from tests.support.fleet import CONTENT, NS_PER_S, PUBSUB, Fleet, hashes, held, publish
from tests.support.node import NodeProcess
from tests.support.peer_proxy import PeerProxy, proxied
from tests.support.postgres import PostgresServer

SPAN_NS = 3_000 * NS_PER_S
PAYLOAD_BYTES = 1_000
"""So that a transfer of some thousand takes several frames."""


@dataclass
class Maker:
    """Makes messages that nobody has seen yet, with random payloads and times."""

    newest_ns: int
    payload_bytes: int = PAYLOAD_BYTES
    made: set[bytes] = field(default_factory=set)

    def some(self, count: int) -> list[WakuMessageAndTopic]:
        """Some more; their hashes are remembered."""
        first = len(self.made)
        step_ns = SPAN_NS // 100_003
        messages = [
            new_message(
                number.to_bytes(8, "big") + bytes(self.payload_bytes - 8),
                CONTENT,
                PUBSUB,
                # A full period through the span: neighbours in number are far from each other.
                self.newest_ns - (number * 61_813 % 100_003) * step_ns - number,
            )
            for number in range(first, first + count)
        ]
        self.made |= hashes(messages)
        assert len(self.made) == first + count
        return messages


@contextmanager
def fresh_database(postgres: PostgresServer) -> Iterator[str]:
    """URL of a database with a schema and a store ID of its own, unlike those of a template."""
    name = postgres.create_database()
    upgrade(postgres.url(name))
    yield postgres.url(name)
    postgres.drop_database(name)


@dataclass
class Two:
    """``caller`` calls ``callee`` through ``network``; the other way there is ``back``."""

    caller: NodeProcess
    callee: NodeProcess
    network: PeerProxy
    back: PeerProxy
    maker: Maker

    async def differ(self, count: int) -> None:
        """Publish so many messages to each that the other lacks."""
        for node in (self.caller, self.callee):
            await publish(node, self.maker.some(count))

    def counts(self) -> tuple[int, int]:
        """How many messages the databases of the caller and the callee hold."""
        return len(held(self.caller)), len(held(self.callee))

    async def check_equal(self) -> None:
        """Both databases hold all that was made, once."""
        for node in (self.caller, self.callee):
            assert await asyncio.to_thread(held, node) == self.maker.made

    async def sync(self) -> SyncReport:
        """One session over everything, asked for at the caller."""
        return await asked(self.caller)


async def asked(node: NodeProcess, peer: str = "") -> SyncReport:
    """Have a node reconcile everything with a peer, as ``storenode sync --from 0`` does."""
    async with connect(node.admin) as client:
        return await client.synchronize(peer, time_start=0, timeout_s=PATIENCE_S)


async def event(node: NodeProcess, name: str, after: int = 0, **fields: object) -> dict[str, Any]:
    """The first line of a JSON log beyond some bytes that tells of an event with these fields."""
    command = ["tail", "--follow", f"--bytes=+{after + 1}", str(node.log_path)]
    tail = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert tail.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while line := await tail.stdout.readline():
                told = json.loads(line) if line.startswith(b"{") else {}
                if told.get("event") == name and fields.items() <= told.items():
                    return dict(told)
    finally:
        tail.kill()
        await tail.wait()
    raise AssertionError("the log has ended")


def log_size(node: NodeProcess) -> int:
    """The bytes of a node's log, for `event`."""
    return node.log_path.stat().st_size


def memory_bytes(node: NodeProcess) -> int:
    """What a node holds in memory, without its Postgres."""
    return int(psutil.Process(node.process.pid).memory_info().rss)


@contextmanager
def two_nodes(directory: Path, postgres: PostgresServer, *, mutual: bool = False) -> Iterator[Two]:
    """Start them on databases of their own; the callee calls back only when it is ``mutual``."""
    fleet = Fleet(directory)
    with ExitStack() as stack:
        urls = [stack.enter_context(fresh_database(postgres)) for _ in range(2)]
        back = stack.enter_context(proxied())
        stack.callback(fleet.close)
        callee = fleet.start(database_url=urls[0], peers=[back.address] if mutual else [])
        network = stack.enter_context(proxied(callee.peer))
        caller = fleet.start(database_url=urls[1], peers=[network.address])
        back.target = caller.peer
        yield Two(caller, callee, network, back, Maker(time.time_ns() - 90 * NS_PER_S))


@asynccontextmanager
async def under_way(node: NodeProcess) -> AsyncIterator[asyncio.Task[Any]]:
    """A session that goes on during the block, which must see to it that it ends."""
    task = asyncio.create_task(asked(node))
    try:
        yield task
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.done(), "the session does not end"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
