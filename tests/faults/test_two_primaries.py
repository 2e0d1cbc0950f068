"""The old primary comes back after a failover, alone or beside the new one."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from store.runtime.health import Obstacle
from storenode.client.node import connect
from tests.faults.processes import logged, metrics, until
from tests.integration.run.helpers import get
from tests.support.acknowledged import Ledger, Publisher, attempted, publishing, scanned
from tests.support.cluster import ClusterServer, Pair
from tests.support.command import Command
from tests.support.node import NodeProcess
from tests.support.polling import eventually
from tests.support.postgres import COMMITTING

COMMITS = "select count(*), coalesce(max(position), 0) from storenode.commits"
NOT_THE_NEWEST = f"not ready: {Obstacle.REFUSED.value}\n"
END_ALL = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'storenode'"
REFUSED = ("storenode_database_hosts_refused",)


async def published(node: NodeProcess, dice: Random, count: int = 100) -> Ledger:
    """Messages that the node has acknowledged."""
    ledger = Ledger()
    async with publishing([Publisher(node.listen, ledger, dice)]):
        await ledger.more(count)
    return ledger


async def failed_over(pair: Pair, node: NodeProcess, dice: Random) -> Ledger:
    """Let a node see the primary die and its standby promoted; what it acknowledged since."""
    node.database_url = pair.url
    node.start()
    await published(node, dice)
    caught_up(pair)
    pair.first.kill()
    pair.promote()
    return await published(node, dice)


def caught_up(pair: Pair) -> None:
    """Wait until the standby has all that the primary has."""
    ((reached,),) = pair.first.ask("select pg_current_wal_flush_lsn()")
    query = "select pg_last_wal_replay_lsn() >= %s::pg_lsn"
    eventually(lambda: pair.second.ask(query, reached) == [(True,)])


def writes(server: ClusterServer) -> tuple[int, int]:
    """How many commits a server holds, and the newest position."""
    return server.ask(COMMITS)[0]


async def test_an_old_primary_that_comes_back_alone_is_refused(
    pair: Pair, nodes: list[NodeProcess], dice: Random
) -> None:
    node, _ = nodes
    await failed_over(pair, node, dice)
    node.terminate()
    pair.second.stop()
    pair.first.start()
    before = writes(pair.first)
    assert f"127.0.0.1:{pair.first.port} is on timeline 1" in ended(node)
    assert writes(pair.first) == before
    # What it refused it does not take for news: the newer one is served as soon as it is there.
    pair.second.start()
    node.start()
    await until(lambda: hosts_refused(node) == 1)
    await published(node, dice)
    assert writes(pair.first) == before


async def test_of_two_hosts_that_take_writes_a_new_node_serves_the_newer(
    pair: Pair, nodes: list[NodeProcess], dice: Random
) -> None:
    """It remembers nothing, as in a container without a volume."""
    node, fresh = nodes
    since = await failed_over(pair, node, dice)
    pair.first.start()
    before = writes(pair.first)
    await until(lambda: hosts_refused(node) == 1)
    # Connections come and go: none of them leads to the host that comes first in the URL.
    pair.second.ask(END_ALL)
    fresh.database_url = pair.url
    fresh.start()
    for each in nodes:
        ledger = await published(each, dice)
        async with connect(each.listen) as client:
            held = set(await scanned(client))
        assert ledger.acknowledged | since.acknowledged <= held
    assert writes(pair.first) == before
    told = (f"127.0.0.1:{pair.second.port}", False, 2, 1)
    for each in nodes:
        await until(lambda each=each: shown(each) == told)  # type: ignore[misc]
    await logged(fresh, "database_host_refused")
    (report,) = Command().ok("db", "check", "--json", "--database-url", pair.url).objects
    assert report["checked"]["commits"] == writes(pair.second)[0] != before[0]
    # Nor do they come to it when the newer one is away.
    pair.second.kill()
    for each in nodes:
        await until(lambda each=each: get(each.metrics, "/readyz") == (503, NOT_THE_NEWEST))  # type: ignore[misc]
        error = await attempted(Publisher(each.listen, Ledger(), dice))
        assert error is not None
        assert error.code == "UNAVAILABLE"
    assert writes(pair.first) == before


async def test_what_a_replaced_primary_has_not_committed_is_stored_at_the_new_one(
    pair: Pair, nodes: list[NodeProcess], dice: Random
) -> None:
    """The old primary lives on, and holds a commit that waits for its standby."""
    node, _ = nodes
    ledger = Ledger()
    pair.synchronous()
    await until(lambda: pair.replicating() == "sync")
    node.database_url = pair.url
    node.start()
    await published(node, dice)
    pair.cut()
    await until(lambda: pair.replicating() is None)
    publishing_one = asyncio.create_task(attempted(Publisher(node.listen, ledger, dice)))
    await until(lambda: bool(pair.first.ask(COMMITTING)))
    await asyncio.to_thread(pair.promote)
    assert await publishing_one is None
    assert ledger.acknowledged == ledger.sent
    found = pair.second.ask(
        "select count(*) from storenode.messages where hash = any(%s)", [*ledger.sent]
    )
    assert found == [(len(ledger.sent),)]
    before = writes(pair.first)
    await published(node, dice)
    assert writes(pair.first) == before


async def test_a_node_that_starts_says_which_commits_were_lost_meanwhile(
    pair: Pair, nodes: list[NodeProcess], dice: Random
) -> None:
    """The promoted standby is on a newer timeline, and is served."""
    node, _ = nodes
    node.database_url = pair.url
    node.start()
    pair.cut()
    await until(lambda: pair.replicating() is None)
    await published(node, dice)
    node.terminate()
    reached = writes(pair.first)[1]
    pair.first.kill()
    pair.promote()
    node.start()
    await logged(node, f'"reached": {reached}, "newest": {writes(pair.second)[1]}')
    assert metrics(node)["storenode_database_events_total", "commits_lost"] == 1


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_restored_older_copy_is_served_when_it_was_accepted(
    server: ClusterServer, nodes: list[NodeProcess], dice: Random, *, hidden: bool
) -> None:
    """``hidden``: as on a managed service that does not tell the timeline."""
    node, _ = nodes
    if hidden:
        server.ask("revoke execute on function pg_control_system() from public")
    node.database_url = server.url
    node.start()
    await published(node, dice)
    node.terminate()
    copy = copied(server)
    server.start()
    node.start()
    await published(node, dice)
    node.terminate()
    server.stop()
    put_back(server, copy)
    server.start()
    assert "lacks commit" in ended(node)
    where = ("--data-dir", str(node.data_dir), "--database-url", server.url)
    assert f"timeline {0 if hidden else 1}, commit" in Command().ok("db", "accept", *where).out
    node.start()
    assert "is in use by process" in Command()("db", "accept", *where).err
    await published(node, dice)


async def test_of_two_copies_that_went_apart_neither_is_served(
    server: ClusterServer, nodes: list[NodeProcess], dice: Random
) -> None:
    """A copy of a server's directory is not a standby: nothing tells which one is right."""
    node, fresh = nodes
    node.database_url = server.url
    node.start()
    await published(node, dice)
    node.terminate()
    other = ClusterServer(server.data.path.with_name("other"))
    put_back(other, copied(server))
    other.start()
    server.start()
    try:
        for each, url in ((node, server.url), (fresh, other.url)):
            each.database_url = url
            each.start()
            await published(each, dice)
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
    """What a node said that could not start."""
    args, node.args = node.args, (*node.args, "--start-timeout", "300ms")
    node.launch()
    assert node.wait() == 3
    node.args = args
    return node.log_tail()


def shown(node: NodeProcess) -> tuple[object, ...]:
    """What a node's status page says of its server, and of hosts that are refused."""
    database = json.loads(get(node.metrics, "/status.json")[1])["database"] or {}
    return tuple(map(database.get, ("host", "standby", "timeline", "hosts_refused")))


def hosts_refused(node: NodeProcess) -> float:
    """How many hosts the node refuses."""
    return metrics(node)[REFUSED]


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
