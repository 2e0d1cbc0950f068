"""Runbooks of databases that are away, locked, damaged, or full of dead rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import grpc
import psycopg
import pytest

from storenode.client.messages import new_message, new_request
from storenode.client.types import PublishRequest
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.deploy.runbooks.scene import Incident, World, database_url, execute, metric, superuser
from tests.support.fleet import CONTENT, PUBSUB
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

WRITERS = ("--database-connections", "5")
CALLS = 12
SLOWER_THAN_S = 2.6
"""Longer than both limits of what counts as slow."""


def calls(world: World) -> None:
    """Run one node: its calls wait for a lock, run into a damaged table, and have no database."""
    with (
        running_node(world.directory / "data", *WRITERS, database_url=world.new_store()) as node,
        grpc.insecure_channel(node.listen) as channel,
    ):
        stub = StoreStub(channel)
        _locked(world, node, stub)
        _damaged(world, node, stub)
        _rejecting(world, node, stub)


def _request(age_s: int = 0) -> PublishRequest:
    return new_request([new_message(b"x", CONTENT, PUBSUB, time.time_ns() - age_s * 10**9)])


def _publish(node: NodeProcess, age_s: int) -> None:
    with grpc.insecure_channel(node.listen) as channel:
        StoreStub(channel).Publish(_request(age_s))


def _query() -> StoreQueryRequest:
    return StoreQueryRequest(message_hashes=[bytes(32)], include_data=True)


def _locked(world: World, node: NodeProcess, stub: StoreStub) -> None:
    stub.Publish(_request())
    stub.Query(_query())
    with (
        world.incident("publish-slow", node) as slow_to_store,
        world.incident("reads-slow", node) as slow_to_read,
    ):
        with (
            world.incident("connections-exhausted", node) as waiting,
            closing(psycopg.connect(database_url(node))) as holder,
        ):
            holder.execute("lock table storenode.messages, storenode.hashes")
            stored = [stub.Publish.future(_request()) for _ in range(CALLS)]
            found = [stub.Query.future(_query()) for _ in range(CALLS)]
            eventually(lambda: metric(node, "storenode_publishes_in_flight"))
            eventually(lambda: metric(node, "storenode_pool_connections", state="waiting") > 1)
            # The node counts from when it has got a call.
            begun = time.monotonic()
            waiting.fires()
            waiting.do("select state")
            assert "storenode|" in waiting.do("select usename").out
            slow_to_store.do("select")
            for begin in ("select relname", "select now()"):
                slow_to_read.do(begin)
            eventually(lambda: time.monotonic() - begun > SLOWER_THAN_S)
            waiting.do("select pg_terminate_backend", PID=str(holder.info.backend_pid))
            for publishing, reading in zip(stored, found, strict=True):
                publishing.result()
                reading.result()
        for incident in (slow_to_store, slow_to_read):
            incident.fires()
        slow_to_read.do("ANALYZE")


def _damaged(world: World, node: NodeProcess, stub: StoreStub) -> None:
    admin = superuser(node)
    with world.incident("calls-failing", node) as failing:
        execute(admin, "alter table storenode.hashes rename to moved")
        with pytest.raises(grpc.RpcError) as failed:
            stub.Query(_query())
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        failing.fires()
        assert failing.do("storenode db check", codes=(1,)).code == 1
        execute(admin, "alter table storenode.moved rename to hashes")
        failing.do("storenode db current")
        stub.Query(_query())
        eventually(lambda: metric(node, "storenode_ready"))


def _rejecting(world: World, node: NodeProcess, stub: StoreStub) -> None:
    with (
        world.incident(
            "database-unreachable",
            node,
            admin_url=world.postgres.admin_url,
            left={"curl http://db-a-1:8008": "the server here is without Patroni"},
        ) as unreachable,
        world.incident("publish-errors", node) as failing,
    ):
        with _no_connections(world, node):
            eventually(lambda: not metric(node, "storenode_database_up"))
            with pytest.raises(grpc.RpcError) as failed:
                stub.Publish(_request())
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            for incident in (failing, unreachable):
                incident.fires(1)
            said = unreachable.do("psql", codes=(2,)).err
            assert "not currently accepting connections" in said
            assert "database_away" in node.log()
            unreachable.do("select count")
            unreachable.do("select * from pg_stat_replication")
        eventually(lambda: metric(node, "storenode_database_up"))
        assert "\n f\n" in unreachable.do("psql").out
        eventually(lambda: metric(node, "storenode_ready"))
        stub.Publish(_request())


@contextmanager
def _no_connections(world: World, node: NodeProcess) -> Iterator[None]:
    name = database_url(node).rpartition("/")[2]
    allow = f"alter database {name} allow_connections"
    end = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    execute(world.postgres.admin_url, f"{allow} false", end)
    yield
    execute(world.postgres.admin_url, f"{allow} true")


def maintenance(world: World) -> None:
    """Run what keeps the maintenance of a node from its work."""
    url = world.new_store()
    data, drift = world.directory / "data", ("--max-clock-drift", "off")
    with running_node(data, *drift, database_url=url) as node:
        _publish(node, 10 * 86_400)
    with closing(psycopg.connect(url)) as forgotten:
        forgotten.execute("select count(*) from storenode.messages")
        with running_node(
            data,
            *("--maintenance-interval", "50ms", "--retention", "2d", "--retention-confirm"),
            database_url=url,
        ) as node:
            with world.incident("retention-failing", node, values={"30d": "2d"}) as failing:
                _forgotten_session(failing, node, forgotten)
            _table_in_the_way(world, node)
            _dead_rows(world, node)
            _wrong_clock(world, node)


def _forgotten_session(failing: Incident, node: NodeProcess, forgotten: psycopg.Connection) -> None:
    eventually(lambda: metric(node, "storenode_maintenance_failing", task="retention"))
    failing.fires()
    assert "held a lock" in node.log()
    report = failing.do("storenode db prune").out
    assert "1 partitions would go" in report, report
    failing.do("select pid, now()")
    failing.do("select pg_terminate_backend", PID=str(forgotten.info.backend_pid))
    dropped = {"event": "partition_dropped"}
    eventually(lambda: metric(node, "storenode_maintenance_events_total", **dropped))


def _table_in_the_way(world: World, node: NodeProcess) -> None:
    """Drop partitions ahead, and give a table the name of one."""
    admin = superuser(node)
    names = [
        f"storenode.messages_{time.strftime('%Y%m%d', time.gmtime(time.time() + days * 86_400))}"
        for days in (1, 2)
    ]
    drop = f"drop table {', '.join(names)}"
    reaches = "storenode_partitions_until_timestamp_seconds"

    def failures() -> float:
        event = {"event": "maintenance_failed"}
        return metric(node, "storenode_maintenance_events_total", **event)

    with (
        world.incident("maintenance-failing", node) as failing,
        world.incident("partitions-missing", node) as missing,
    ):
        execute(admin, "begin", drop, f"create table {names[0]} ()", "commit")
        seen = failures()
        eventually(lambda: failures() > seen + 6)
        eventually(lambda: metric(node, reaches) < time.time() + 36 * 3_600)
        for incident in (failing, missing):
            incident.fires()
        failing.do("storenode db check --sample 100000", codes=(0, 1))
        missing.do("storenode db partitions")
        missing.do("select * from pg_locks")
        assert "ensure_ahead" in node.log()
        execute(admin, f"drop table {names[0]}")
        eventually(lambda: metric(node, reaches) > time.time() + 36 * 3_600)
        failing.do("storenode db check")
        failing.do("storenode db resummarize")
        failing.do("ALTER ROLE")


def _dead_rows(world: World, node: NodeProcess) -> None:
    admin = superuser(node)
    rows = {"table": "unread", "state": "dead"}
    with world.incident("dead-tuples", node) as dead:
        execute(admin, "alter table storenode.unread set (autovacuum_enabled = false)")
        with psycopg.connect(admin) as updating:
            updating.execute(
                "insert into storenode.unread (hash, ts, content_digest, needed)"
                " select int8send(n), n, '', 1 from generate_series(1, 110000) as n"
            )
            updating.rollback()
            updating.execute("select pg_stat_force_next_flush()")
        eventually(lambda: metric(node, "storenode_table_rows", **rows) > 100_000)
        dead.fires()
        dead.do("select relname")
        dead.do("select pid")
        dead.do("VACUUM")
        eventually(lambda: metric(node, "storenode_table_rows", **rows) < 100_000)


def _wrong_clock(world: World, node: NodeProcess) -> None:
    """Set the database's clock two hours back."""
    admin, name = superuser(node), database_url(node).rpartition("/")[2]
    left = {
        "storenode db prune --trust-clock": "the page warns of it",
        "storenode pipeline restore": "nothing was dropped",
    }
    clock = "create function slow.clock_timestamp() returns timestamptz language sql as"
    path = f"alter role storenode in database {name} "
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'storenode'"
    end = f"{ended} and datname = '{name}'"

    def offset_s() -> float:
        return metric(node, "storenode_clock_offset_seconds", other="database")

    _publish(node, 7_200)  # an increase is seen of a counter that was there before
    with (
        world.incident("clock-wrong", node, left=left) as wrong,
        world.incident("clock-differs", node) as differs,
    ):
        execute(
            admin,
            "create schema slow",
            f"{clock} $$ select pg_catalog.clock_timestamp() - interval '2 hours' $$",
            "grant usage on schema slow to storenode",
            f"{path} set search_path = slow, pg_catalog, public",
            end,
        )
        eventually(lambda: offset_s() < -7_000)
        differs.fires()
        _publish(node, 7_200)
        wrong.fires(1)
        shown = differs.do("storenode status").out
        assert "the clock of database differs from this node's by -7,2" in shown
        for incident in (wrong, differs):
            incident.do("SELECT now()")
            incident.do("date -u")
        execute(admin, f"{path} reset search_path", "drop schema slow cascade", end)
        eventually(lambda: metric(node, "storenode_maintenance_in_charge"))
        eventually(lambda: abs(offset_s()) < 10)
