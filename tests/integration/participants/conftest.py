"""A node that the tests of this folder share; each test has a channel of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.support.node import NodeProcess, running_node

_numbers = itertools.count()


@pytest.fixture(scope="session")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Return a node with a store of its own, for clocks of any kind."""
    directory = tmp_path_factory.mktemp("participants")
    with running_node(
        directory / "node", "--max-clock-drift", "off", database_url=new_store()
    ) as process:
        yield process


@pytest.fixture
def room() -> str:
    """Return a channel that no other test uses."""
    return f"room-{next(_numbers)}"
