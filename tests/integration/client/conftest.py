"""One node that the tests of this folder share; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.command import Command
from tests.support.node import NodeProcess, running_node

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """A node with a store of its own."""
    directory = tmp_path_factory.mktemp("client")
    with running_node(directory / "node", database_url=new_store()) as process:
        yield process


@pytest.fixture(scope="session")
def command(node: NodeProcess) -> Command:
    """The command, set to call the shared node."""
    return Command.of(node)


@pytest.fixture
def topic() -> str:
    """A content topic that no other test uses."""
    return f"/test/1/topic-{next(_numbers)}/proto"
