"""Fixtures of the fault tests: a random source with a printed seed, nodes and servers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chaos.soak.postgres import ClusterServer, Pair
from tests.support.node import NodeProcess
from tests.support.places import quick_directory
from tests.support.postgres import copy_cluster, running_pair, running_server

PATIENT = ("--max-clock-drift", "1h")
"""Options of a node that accepts messages which were retried while it was down."""


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """Return a random source; its seed is printed when the test fails."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"seed {seed}")  # noqa: T201 - shown by pytest with a failure
    return Random(seed)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with quick_directory(tmp_path) as directory:
        process = NodeProcess(copy_cluster(directory / "data"), PATIENT)
        yield process
        process.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ClusterServer]:
    with running_server(tmp_path) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Start a primary and an asynchronous standby, with the schema."""
    with running_pair(tmp_path) as running:
        yield running


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[NodeProcess]]:
    args = (*PATIENT, "--maintenance-interval", "200ms")
    both = [NodeProcess(tmp_path / name, args) for name in ("one", "two")]
    yield both
    for each in both:
        each.close()
