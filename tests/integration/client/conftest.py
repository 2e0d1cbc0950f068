"""One node that the tests of this folder share; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.command import Command
from tests.support.node import NodeProcess, running_node

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with a Postgres of its own."""
    with running_node(tmp_path_factory.mktemp("client") / "node") as process:
        yield process


@pytest.fixture(scope="session")
def command(node: NodeProcess) -> Command:
    """The command, set to call the shared node."""
    return Command.of(node)


@pytest.fixture
def topic() -> str:
    """A content topic that no other test uses."""
    return f"/test/1/topic-{next(_numbers)}/proto"
