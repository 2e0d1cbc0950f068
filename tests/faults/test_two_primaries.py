"""The old primary comes back after a failover, beside the new one and alone."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import grpc
import pytest

from chaos.checker.history import History
from chaos.soak.postgres import ClusterServer, Pair
from store.runtime.health import Obstacle
from tests.faults.processes import logged, metrics, until
from tests.integration.run.helpers import get
from tests.support.clients import acknowledged, publisher, publishing, scanned
from tests.support.command import Command
from tests.support.node import NodeProcess
from tests.support.postgres import COMMITTING

COMMITS = "select count(*), coalesce(max(position), 0) from storenode.commits"
NOT_THE_NEWEST = f"not ready: {Obstacle.REFUSED.value}\n"
END_ALL = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'storenode'"


async def published(node: NodeProcess, rng: Random, count: int = 100) -> History:
    """Publish messages until the node has acknowledged enough, and return them."""
    history = History()
    async with publishing([publisher(node.listen, history, rng)]):
        await acknowledged(history, count)
    return history


def writes(server: ClusterServer) -> tuple[int, int]:
    """Return the number of commits of a server, and the newest position."""
    return server.ask(COMMITS)[0]


async def test_of_two_hosts_that_take_writes_nodes_serve_the_newer_alone(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    """Check a node without a state of its own, as in a container without a volume."""
    node, fresh = nodes
    node.database_url = fresh.database_url = pair.url
    node.start()
    await published(node, rng)
    pair.catch_up()
    pair.first.kill()
    pair.promote()
    since = await published(node, rng)
    pair.first.start()
    before = writes(pair.first)
    await until(lambda: hosts_refused(node) == 1)
    # Connections come and go: none of them leads to the host that comes first in the URL.
    pair.second.ask(END_ALL)
    fresh.start()
    for each in nodes:
        history = await published(each, rng)
        assert history.acks.keys() | since.acks.keys() <= await scanned(each.listen)
    assert writes(pair.first) == before
    expected = (f"127.0.0.1:{pair.second.port}", False, 2, 1)
    for each in nodes:
        await until(lambda each=each: shown(each) == expected)  # type: ignore[misc]
    await logged(fresh, "database_host_refused")
    (report,) = Command().ok("db", "check", "--json", "--database-url", pair.url).objects
    assert report["checked"]["commits"] == writes(pair.second)[0] != before[0]
    # Nor is it used while the newer one is away.
    pair.second.kill()
    for each in nodes:
        await until(lambda each=each: get(each.metrics, "/readyz") == (503, NOT_THE_NEWEST))  # type: ignore[misc]
        error = await publisher(each.listen, History(), rng).attempt()
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    node.terminate()
    assert f"127.0.0.1:{pair.first.port} is on timeline 1" in ended(node)
    # The refused host is not recorded as the newest: the newer one is served when it is back.
    pair.second.start()
    node.start()
    await until(lambda: hosts_refused(node) == 1)
    await published(node, rng)
    assert writes(pair.first) == before


async def test_a_commit_that_a_replaced_primary_waits_for_is_stored_at_the_new_one(
    pair: Pair, nodes: list[NodeProcess], rng: Random
) -> None:
    """Check an old primary that still runs, with a commit that waits for its standby."""
    node, _ = nodes
    history = History()
    pair.synchronous()
    node.database_url = pair.url
    node.start()
    await published(node, rng)
    pair.cut()
    publishing_one = asyncio.create_task(publisher(node.listen, history, rng).attempt())
    await until(lambda: bool(pair.first.ask(COMMITTING)))
    await asyncio.to_thread(pair.promote)
    assert await publishing_one is None
    assert history.acks.keys() == history.published.keys()
    found = pair.second.ask(
        "select count(*) from storenode.messages where hash = any(%s)", [*history.published]
    )
    assert found == [(len(history.published),)]
    before = writes(pair.first)
    await published(node, rng)
    assert writes(pair.first) == before


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_restored_older_copy_is_served_when_it_was_accepted(
    server: ClusterServer, nodes: list[NodeProcess], rng: Random, *, hidden: bool
) -> None:
    """Check this also with a hidden timeline, as on a managed service."""
    node, _ = nodes
    if hidden:
        server.ask("revoke execute on function pg_control_system() from public")
    node.database_url = server.url
    node.start()
    await published(node, rng)
    node.terminate()
    copy = copied(server)
    server.start()
    node.start()
    await published(node, rng)
    node.terminate()
    server.stop()
    put_back(server, copy)
    server.start()
    assert "lacks commit" in ended(node)
    where = ("--data-dir", str(node.data_dir), "--database-url", server.url)
    assert f"timeline {0 if hidden else 1}, commit" in Command().ok("db", "accept", *where).out
    node.start()
    assert "is in use by process" in Command()("db", "accept", *where).err
    await published(node, rng)


async def test_of_two_copies_that_went_apart_neither_is_served(
    server: ClusterServer, nodes: list[NodeProcess], rng: Random
) -> None:
    """Check copies of a server's directory: neither is a standby of the other."""
    node, fresh = nodes
    node.database_url = server.url
    node.start()
    await published(node, rng)
    node.terminate()
    other = ClusterServer(server.data.path.with_name("other"))
    put_back(other, copied(server))
    other.start()
    server.start()
    try:
        for each, url in ((node, server.url), (fresh, other.url)):
            each.database_url = url
            each.start()
            await published(each, rng)
            each.terminate()
        fresh.data_dir = fresh.data_dir.with_name("three")
        one = f"127.0.0.1:{server.port}"
        both = server.url.replace(one, f"{one},127.0.0.1:{other.port}")
        fresh.database_url = node.database_url = both
        assert "neither is the newer one" in ended(fresh)
        current = Command()("db", "current", "--database-url", both)
        assert (current.code, "neither is the newer one" in current.err) == (1, True)
        # A node that has worked on one of them knows which.
        node.start()
        await until(lambda: hosts_refused(node) == 1)
    finally:
        other.stop()


def ended(node: NodeProcess) -> str:
    """Start a node that cannot serve, and return its log."""
    args, node.args = node.args, (*node.args, "--start-timeout", "300ms")
    node.launch()
    assert node.wait() == 3
    node.args = args
    return node.log_tail()


def shown(node: NodeProcess) -> tuple[object, ...]:
    """Return the server of a node's status page, and the number of refused hosts."""
    found = json.loads(get(node.metrics, "/status.json")[1])
    database = (found["status"]["database"] or {}) | (found["tables"] or {})
    return tuple(map(database.get, ("host", "standby", "timeline", "hosts_refused")))


def hosts_refused(node: NodeProcess) -> float:
    return metrics(node)[("storenode_database_hosts_refused",)]


def copied(server: ClusterServer) -> Path:
    """Stop a server and copy its files."""
    server.stop()
    copy = server.data.path.with_name("copy")
    subprocess.run(["cp", "-a", server.data.cluster, copy], check=True)
    return copy


def put_back(server: ClusterServer, copy: Path) -> None:
    """Replace a server's files by a copy."""
    shutil.rmtree(server.data.cluster, ignore_errors=True)
    subprocess.run(["cp", "-a", copy, server.data.cluster], check=True)
