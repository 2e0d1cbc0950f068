"""Runbooks of an embedded database: its disk fills up, and its server ends again and again."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from chaos.soak.postgres import find_postmaster
from tests.deploy.runbooks.scene import Incident, World, environment, metric
from tests.faults.test_disk_full import WITHOUT_FLOOR, NodeOnSmallDisk, exhaust_log, on_small_disk
from tests.support.fleet import made, publish
from tests.support.polling import eventually

MIB = 1024 * 1024
OLD_NS = 25 * 86_400 * 10**9
EXITS = {"name": "storenode_database_events_total", "event": "postgres_exited"}


def disks(world: World) -> None:
    """Run a small disk that fills up, slowly and then in full; then Postgres is killed."""
    # Large enough that a segment of the log more or less does not decide whether the alert ends.
    options = (*WITHOUT_FLOOR, "--max-clock-drift", "off")
    with on_small_disk(world.directory, *options, size_mib=256) as node:
        asyncio.run(publish(node, made(100, time.time_ns() - OLD_NS)))
        eventually((node.mounted.path / "data" / "reserve").exists)
        _running_out(world, node)
        _full(world, node)
        _restarting(world, node)


def _incident(
    world: World,
    name: str,
    node: NodeOnSmallDisk,
    **details: Any,  # noqa: ANN401 - as of `World.incident`
) -> Incident:
    data_dir = str(node.data_dir)
    return world.incident(
        name,
        node,
        inside=node.mounted.enter,
        env=environment(node) | {"STORENODE_DATA_DIR": data_dir},
        values={"DATA_DIR": data_dir, "DIR": data_dir},
        admin_url=node.database,
        **details,
    )


def _fill(node: NodeOnSmallDisk, left_mib: int) -> None:
    node.mounted.fill(left_mib * MIB)
    eventually(lambda: metric(node, "storenode_disk_free_bytes") < (left_mib + 1) * MIB)


def _free(node: NodeOnSmallDisk) -> None:
    full = metric(node, "storenode_disk_free_bytes")
    node.mounted.free()
    eventually(lambda: metric(node, "storenode_disk_free_bytes") > full)


def _running_out(world: World, node: NodeOnSmallDisk) -> None:
    """Fill the disk with files that are not the node's."""
    left = {"select pg_drop_replication_slot": "an embedded database has no standbys"}
    with _incident(world, "disk-running-out", node, left=left, before_min=6 * 60) as filling:
        _fill(node, 30)
        filling.fires(3 * 60)
        filling.do("storenode db partitions")
        filling.do("select slot_name")
        assert "partitions" in filling.do("storenode db prune").out
        _free(node)


def _full(world: World, node: NodeOnSmallDisk) -> None:
    """Fill the disk so that Postgres ends, and cannot start."""
    with _incident(world, "disk-full", node) as full:
        node.mounted.fill(0)
        with pytest.raises(psycopg.OperationalError):
            exhaust_log(node)
        eventually(lambda: not metric(node, "storenode_database_up"))
        eventually(lambda: "No space left on device" in node.log())
        _fill(node, 0)  # what Postgres gave back when it ended, and the node has not looked at yet
        full.fires(10)
        full.do("df -h")
        full.do("du -xsh")
        full.do("storenode db prune")
        full.do("storenode db partitions")
        assert not (node.mounted.path / "data" / "reserve").exists()
        _free(node)
        eventually(lambda: metric(node, "storenode_ready"))


def _restarting(world: World, node: NodeOnSmallDisk) -> None:
    def serves() -> bool:
        return all(metric(node, f"storenode_{name}") for name in ("ready", "database_up"))

    with _incident(world, "postgres-restarting", node) as again:
        for _ in range(3):
            exits = metric(node, **EXITS)
            find_postmaster(node.pid).kill()
            eventually(lambda exits=exits: metric(node, **EXITS) > exits)  # type: ignore[misc]
            eventually(serves)
        again.fires()
        again.do("df -h")
        again.do("storenode db check")
