"""Processes of ``storenode run`` that are peers, and what each of them stores."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psycopg

from store.embedded import EmbeddedPostgres, running_url
from storenode.client.messages import hash_of, new_message
from storenode.client.node import connect
from storenode.client.plain import to_plain
from storenode.client.retry import Retry
from storenode.client.types import NodeStatus, PublishResult, WakuMessageAndTopic
from storenode.connection.channel import TlsIdentity
from storenode.wire.storenode.v1.admin_pb2 import GetStatusRequest, WatchStatusRequest
from storenode.wire.storenode.v1.admin_pb2_grpc import AdminStub
from tests.support.command import Command, Ended
from tests.support.node import NodeProcess, with_defaults
from tests.support.polling import PATIENCE_S, PAUSE_S

PUBSUB = "/waku/2/rs/1/0"
CONTENT = "/fleet/1/chat/proto"
NS_PER_S = 1_000_000_000
OWN_SCHEDULE = ("--sync-interval", "0", "--gossip", "off")
"""The options of a node that reconciles only on request."""


def made(count: int, newest_ns: int, span_s: float = 3_000.0, seed: int = 1) -> list[Any]:
    """Return messages at random times in the ``span_s`` before ``newest_ns``, each different."""
    rng = Random(seed)
    span_ns = int(span_s * NS_PER_S)
    return [
        new_message(
            hashlib.sha256(f"{seed}/{number}".encode()).digest(),
            CONTENT,
            PUBSUB,
            newest_ns - rng.randrange(1, span_ns),
        )
        for number in range(count)
    ]


async def publish(
    node: NodeProcess, messages: Iterable[WakuMessageAndTopic], tls: TlsIdentity | None = None
) -> None:
    """Publish, and make sure that all are stored, also where the database has just changed."""
    async with connect(node.listen, tls=tls, retry=Retry(at_start=True)) as client:
        async for _, result in client.publish_all(messages):
            assert result.outcome in (PublishResult.STORED, PublishResult.DUPLICATE), result


def holdings(node: NodeProcess) -> set[bytes]:
    """Return the hashes in a node's own database, read past the node."""
    url = node.database_url or running_url(node.data_dir)
    assert url is not None, "the node's Postgres does not run"
    with psycopg.connect(url) as connection:
        rows = connection.execute("select hash from storenode.messages").fetchall()
        found = {bytes(row[0]) for row in rows}
        assert len(found) == len(rows), "a message is held twice"
        return found


@contextmanager
def database_of(node: NodeProcess) -> Iterator[psycopg.Connection]:
    """Yield the database of a node that has ended, while it has."""
    assert not node.running, "the node runs"
    if node.database_url is not None:
        with psycopg.connect(node.database_url) as connection:
            yield connection
        return
    with EmbeddedPostgres(node.data_dir) as server, psycopg.connect(server.url) as connection:
        yield connection


def hashes(messages: Iterable[WakuMessageAndTopic]) -> set[bytes]:
    """Return what `held` gives where just these are held."""
    return {hash_of(message) for message in messages}


def synchronize(node: NodeProcess, *arguments: str) -> tuple[Ended, dict[str, Any]]:
    """Run ``storenode sync --json``; return how it ended, and its report."""
    ended = Command.of(node)("sync", "--json", *arguments)
    reports = ended.objects if ended.out else [{}]
    assert len(reports) == 1, ended
    return ended, reports[0]


def status(node: NodeProcess) -> dict[str, Any]:
    """Return the object that ``storenode status --json`` prints, without its process."""
    with grpc.insecure_channel(node.admin) as channel:
        return to_plain(AdminStub(channel).GetStatus(GetStatusRequest(), timeout=PATIENCE_S))


def await_status(node: NodeProcess, is_right: Callable[[NodeStatus], object]) -> NodeStatus:
    """Wait for a revision of a node's health whose status is right, and return the status."""
    with grpc.insecure_channel(node.admin) as channel:
        admin, revision = AdminStub(channel), 0
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            request = WatchStatusRequest(since_revision=revision)
            found = admin.WatchStatus(request, timeout=deadline_s - time.monotonic())
            if is_right(found):
                return found
            revision = found.revision


def exchanging(node: NodeProcess, peers: int) -> dict[str, Any]:
    """Wait until a node gossips with ``peers`` others; return its gossip status."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gossip: dict[str, Any] = status(node)["gossip"]
        if sum(peer["connected"] for peer in gossip["peers"]) == peers:
            return gossip
        assert time.monotonic() < deadline, gossip
        time.sleep(PAUSE_S)


@dataclass
class Fleet:
    """Starts nodes in a directory, and stops them all."""

    directory: Path
    nodes: list[NodeProcess] = field(default_factory=list)
    new_database: Callable[[], str] | None = None
    """Makes the databases of nodes that are not given one, and gives their URLs."""

    def start(
        self, *args: str, peers: Sequence[NodeProcess | str] = (), database_url: str | None = None
    ) -> NodeProcess:
        """Return one more node that serves; it calls ``peers`` only on request.

        A peer may be given by its HOST:PORT. Where there is no database for it, the node has its
        own server.
        """
        if database_url is None and self.new_database is not None:
            database_url = self.new_database()
        addresses = [peer if isinstance(peer, str) else peer.peer for peer in peers]
        named = [part for address in addresses for part in ("--peer", address)]
        usual = ("--max-clock-drift", "off", "--log-level", "info", "--log-format", "json")
        options = with_defaults((*named, *args), *usual, *OWN_SCHEDULE)
        data_dir = self.directory / f"node-{len(self.nodes)}"
        node = NodeProcess(data_dir, options, database_url)
        self.nodes.append(node)
        return node.start()

    def close(self) -> None:
        """Stop them all."""
        for node in self.nodes:
            node.close()


def finished_resume(node: NodeProcess) -> dict[str, Any] | None:
    """Return what a node's status says of its resume, once that has ended."""
    resume = status(node).get("resume")
    return resume if resume and not resume["running"] else None


def pretend_last_online(node: NodeProcess, online_ns: int) -> None:
    """Set the time in the database of a node that is off."""
    with database_of(node) as connection:
        connection.execute("update storenode.store set last_online_ns = %s", (online_ns,))
