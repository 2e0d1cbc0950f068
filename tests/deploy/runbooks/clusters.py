"""Runbooks of a database with a standby, from its loss to the failover."""

from __future__ import annotations

import asyncio
import time

from chaos.soak.postgres import ClusterServer, Pair
from tests.deploy.runbooks.scene import Incident, World, metric
from tests.support.fleet import made, publish
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.postgres import SUPERUSER, running_pair

LAG_BYTES = 65 * 1024 * 1024
PATRONI = {"curl http://db-a-1:8008": "the servers here are without Patroni"}


def clusters(world: World) -> None:
    """Run a pair: its standby is away, lags, is promoted, and the old primary comes back."""
    with (
        running_pair(world.directory) as pair,
        running_node(
            world.directory / "data", "--max-clock-drift", "off", database_url=pair.url
        ) as node,
    ):
        pair.first.ask("grant pg_read_all_stats to storenode")
        _standby_away(world, pair, node)
        _standby_behind(world, pair, node)
        _promoted(world, pair, node)
        _old_primary(world, pair, node)


def _incident(
    world: World, name: str, server: ClusterServer, node: NodeProcess, **left: str
) -> Incident:
    url = server.url.replace("//storenode@", f"//{SUPERUSER}@")
    return world.incident(name, node, admin_url=url, left=left)


def _standby_away(world: World, pair: Pair, node: NodeProcess) -> None:
    eventually(lambda: metric(node, "storenode_database_standbys"))
    left = {**PATRONI, "select pg_drop_replication_slot": "the standby comes back"}
    with _incident(world, "standby-missing", pair.first, node, **left) as missing:
        pair.second.stop()
        eventually(lambda: not metric(node, "storenode_database_standbys"))
        missing.fires()
        assert "second" not in missing.do("select application_name").out
        pair.second.start()
        # It counts as connected while it still fetches what it has missed.
        eventually(pair.replicating)
        eventually(lambda: metric(node, "storenode_database_standbys"))
        assert "second|streaming" in missing.do("select application_name").out


def _standby_behind(world: World, pair: Pair, node: NodeProcess) -> None:
    with _incident(world, "replication-lag", pair.first, node) as behind:
        pair.second.ask("select pg_wal_replay_pause()")
        pair.first.ask("select pg_logical_emit_message(false, 'test', repeat('x', %s))", LAG_BYTES)
        eventually(lambda: metric(node, "storenode_database_standby_lag_bytes") > LAG_BYTES)
        behind.fires()
        behind.do("select application_name")
        behind.do("select pid")
        pair.second.ask("select pg_wal_replay_resume()")
        eventually(lambda: metric(node, "storenode_database_standby_lag_bytes") < LAG_BYTES)


def _promoted(world: World, pair: Pair, node: NodeProcess) -> None:
    """Make a standby the primary that lacks what was stored since it was cut off."""
    left = {"storenode sync": "the store has no peer", "storenode pipeline": "nor an archive"}
    with _incident(world, "commits-lost", pair.second, node, **left) as lost:
        pair.cut()
        asyncio.run(publish(node, made(10, time.time_ns())))
        pair.first.kill()
        pair.promote()
        eventually(lambda: metric(node, "storenode_database_events_total", event="commits_lost"))
        lost.fires()
        assert "commits_lost" in node.log()
        lost.do("storenode db check")
        lost.do("storenode status")
        asyncio.run(publish(node, made(10, time.time_ns(), seed=2)))


def _old_primary(world: World, pair: Pair, node: NodeProcess) -> None:
    """Start the old primary beside the newer one, and make it its standby."""
    left = {"storenode db accept": "the newer server is not lost"}
    with _incident(world, "database-host-refused", pair.second, node, **left) as refused:
        pair.first.start()
        eventually(lambda: metric(node, "storenode_database_hosts_refused"))
        refused.fires()
        assert refused.do("select pg_is_in_recovery").out.startswith("False|00000002")
        refused.do("select max(position)")
        pair.first.stop()
        eventually(lambda: not metric(node, "storenode_database_hosts_refused"))
        pair.rebuild()
        eventually(lambda: metric(node, "storenode_database_standbys"))
