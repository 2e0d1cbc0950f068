"""What tests of faults share: dice with a printed seed, and the check of a database."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.db.schema.migrate import upgrade
from tests.support.cluster import ClusterServer, Pair
from tests.support.node import NodeProcess
from tests.support.places import quick_directory
from tests.support.postgres import copy_cluster

PATIENT = ("--max-clock-drift", "1h")
"""What is published again and again may get old before a node that was killed is back."""


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> Random:
    """Dice of this test; the seed is printed when the test fails."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed}")  # noqa: T201 - shown by pytest with a failure
    return Random(seed)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with an embedded Postgres, not started."""
    with quick_directory(tmp_path) as directory:
        process = NodeProcess(copy_cluster(directory / "data"), PATIENT)
        yield process
        process.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClusterServer]:
    """A Postgres of its own, with the schema."""
    with quick_directory(tmp_path) as directory:
        running = ClusterServer(directory / "server")
        running.create()
        running.start()
        try:
            upgrade(running.url)
            yield running
        finally:
            running.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A primary and a standby, with the schema; asynchronous at first."""
    with Pair(tmp_path) as running:
        yield running


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    """Two nodes that are given their database and started by the test."""
    args = (*PATIENT, "--maintenance-interval", "200ms")
    both = [NodeProcess(tmp_path / name, args) for name in ("one", "two")]
    yield both
    for each in both:
        each.close()
