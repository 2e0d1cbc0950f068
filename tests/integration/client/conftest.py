"""A node that the tests of this folder share; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.credentials import secured_node
from tests.support.node import NodeProcess, shared_node

_numbers = itertools.count()

TOKENS = {"reader": ["read", "follow"]}


@dataclass(frozen=True, slots=True)
class Secured:
    """A node with TLS and a token file, and the files that its clients need."""

    node: NodeProcess
    files: Path


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = tmp_path_factory.mktemp("secured")
    with secured_node(files, TOKENS) as node:
        yield Secured(node, files)


node = shared_node("client")


@pytest.fixture(scope="session")
def command(node: NodeProcess) -> Command:
    """Return the command, set to call the shared node."""
    return Command.of(node)


@pytest.fixture
def topic() -> str:
    """Return a content topic that no other test uses."""
    return f"/test/1/topic-{next(_numbers)}/proto"
