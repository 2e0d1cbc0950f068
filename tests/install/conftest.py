"""The distributions, built once, installed once for each way in which they are used."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.install.environment import Dist, Environment, library_of, run
from tests.support.node import NodeProcess, running_node


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Return wheels, source distributions and schemas."""
    built = Dist(tmp_path_factory.mktemp("dist") / "dist")
    said = run(sys.executable, "tools/build_dist.py", "--out", str(built.path))
    assert said.count("PASSED") == 4, "what an index would say of each"
    return built


@pytest.fixture(scope="session")
def library(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return the library alone."""
    environment = Environment.made(tmp_path_factory.mktemp("library"))
    environment.install(dist, library_of(dist))
    return environment


@pytest.fixture(scope="session")
def installed_node(dist: Dist, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return the library and the node with the extra that brings its Postgres."""
    environment = Environment.made(tmp_path_factory.mktemp("node"))
    environment.install(dist, library_of(dist, "[embedded]"))
    return environment


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Yield a node of the repository for clients to call."""
    with running_node(tmp_path_factory.mktemp("served") / "node") as process:
        yield process
