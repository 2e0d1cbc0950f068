"""A disk that fills up under a node and its Postgres, and is given space again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc
import psycopg
import pytest

from chaos.checker.clients import Publisher
from chaos.checker.history import History
from chaos.soak.small_disk import SmallDisk
from store.embedded.supervisor import running_url
from store.runtime.health import Obstacle
from tests.faults.processes import logged
from tests.integration.run.helpers import get
from tests.support.clients import check_nodes, publisher
from tests.support.command import Command
from tests.support.node import COMMAND, NodeProcess, clean_environment
from tests.support.polling import PAUSE_S, eventually
from tests.support.postgres import copy_cluster

DISK_MIB = 192
SPARE_MIB = 2
MIB = 1024 * 1024
SEGMENT_BYTES = 16 * MIB
EMIT = "select pg_logical_emit_message(false, 'test', repeat('x', %s))"
SMALL_LOG = ("--postgres-setting", "max_wal_size=64MB", "--postgres-setting", "min_wal_size=32MB")
WITHOUT_FLOOR = ("--min-free-disk", "1B")
PRUNE = ("--retention", "20d", "--retention-confirm")
CHECK = ("status", "--check")
FLOOR_MIB = 48
"""Room for two files of the log, and for messages between two looks at the disk."""


@dataclass
class NodeOnSmallDisk(NodeProcess):
    """A node whose data directory lies on a file system of its own."""

    disk: SmallDisk | None = None

    @property
    def mounted(self) -> SmallDisk:
        """The file system."""
        assert self.disk is not None
        return self.disk

    @property
    def database(self) -> str:
        """URL of its database."""
        url = running_url(self.mounted.path / "data")
        assert url is not None
        return url


@contextmanager
def on_small_disk(
    directory: Path, *options: str, size_mib: int = DISK_MIB
) -> Iterator[NodeOnSmallDisk]:
    """Run a node on a small disk."""
    (directory / "disk").mkdir()
    disk = SmallDisk(directory / "disk", size_mib)
    options = (*SMALL_LOG, *options)
    node = NodeOnSmallDisk(directory / "disk" / "data", options, disk=disk, enter=disk.enter)
    try:
        copy_cluster(disk.path / "data")
        node.start()
        yield node
    finally:
        node.close()
        disk.close()


def to_next_segment(node: NodeOnSmallDisk) -> None:
    """Write log until its newest file has just begun."""
    with psycopg.connect(node.database, autocommit=True) as connection:
        row = connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None
        connection.execute(EMIT, (SEGMENT_BYTES - int(row[0]) % SEGMENT_BYTES,))
        # A commit, which is written out: that makes the file.
        connection.execute("select pg_logical_emit_message(true, 'test', 'x')")


def exhaust_log(node: NodeOnSmallDisk) -> None:
    """Write log until Postgres gives up."""
    with psycopg.connect(node.database, autocommit=True) as connection:
        while True:
            connection.execute(EMIT, (MIB,))


async def refused(client: Publisher) -> grpc.aio.AioRpcError:
    """Publish until an error comes."""
    while (error := await client.attempt()) is None:
        pass
    return error


async def accepted(client: Publisher) -> None:
    """Publish until no error comes."""
    while await client.attempt() is not None:  # noqa: ASYNC110 - tells nobody
        await asyncio.sleep(PAUSE_S)


async def check_after(node: NodeOnSmallDisk, client: Publisher) -> None:
    """Check that all messages are there, and that more are stored once the node sees the space."""
    await accepted(client)
    await check_nodes(client.history, node.listen)
    Command().ok("db", "check", "--data-dir", str(node.mounted.path / "data"))


async def test_publishing_stops_before_the_log_has_no_space_and_goes_on_by_itself(
    tmp_path: Path, rng: Random
) -> None:
    with on_small_disk(tmp_path, "--min-free-disk", f"{FLOOR_MIB}MiB") as node:
        client = publisher(node.listen, History(), rng)
        assert await client.attempt() is None
        node.mounted.fill((FLOOR_MIB - 1) * MIB)
        error = await refused(client)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "disk is full; free space" in str(error.details())
        assert await check_nodes(client.history, node.listen)
        assert get(node.metrics, "/readyz") == (503, f"not ready: {Obstacle.SPACE.value}\n")
        assert "storenode_disk_full 1.0" in get(node.metrics, "/metrics")[1]
        problems = await asyncio.to_thread(eventually, lambda: Command.of(node)(*CHECK).lines)
        assert problems[0].startswith("CRITICAL disk-full: ")
        assert "publishing is refused" in problems[0]
        node.mounted.free()
        await accepted(client)
        assert "storenode_disk_full 0.0" in get(node.metrics, "/metrics")[1]
        await check_after(node, client)
        assert "No space left" not in node.log()


def prune_stopped(node: NodeOnSmallDisk) -> None:
    """Prune where the disk is mounted, without a node."""
    command = [COMMAND, "db", "prune", *PRUNE, "--data-dir", str(node.data_dir)]
    subprocess.run(node.mounted.enter(command), env=clean_environment(), timeout=120, check=True)


async def test_a_full_disk_is_reported_and_a_log_without_space_ends_postgres_alone(
    tmp_path: Path, rng: Random
) -> None:
    with on_small_disk(tmp_path, *WITHOUT_FLOOR) as small:
        client = publisher(small.listen, History(), rng, max_payload_bytes=40_000)
        assert await client.attempt() is None
        to_next_segment(small)
        small.mounted.fill(SPARE_MIB * MIB)
        for error in [await refused(client), await client.attempt()]:
            assert error is not None
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "disk is full; free space" in str(error.details())
        await check_nodes(client.history, small.listen)
        small.mounted.free()
        await accepted(client)
        await end_postgres_and_prune(small, publisher(small.listen, client.history, rng))


async def end_postgres_and_prune(small: NodeOnSmallDisk, client: Publisher) -> None:
    """Prune with the node stopped; tests/deploy/runbooks does it with a running node."""
    reserve = small.mounted.path / "data" / "reserve"
    while not reserve.exists():
        assert await client.attempt() is None
    small.mounted.fill(0)
    with pytest.raises(psycopg.OperationalError):
        exhaust_log(small)
    await logged(small, "No space left on device")
    # At first no more may be known than that no connection can be made.
    while "disk is full; free space" not in str((error := await refused(client)).details()):
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert get(small.metrics, "/healthz")[0] == 200
    await logged(small, "disk-full")
    small.kill()
    # The killed Postgres has freed some space.
    small.mounted.fill(0)
    await asyncio.to_thread(prune_stopped, small)
    small.start()
    assert not reserve.exists()
    small.mounted.free()
    await check_after(small, client)
