"""A node, and the examples of those languages whose toolchains are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.integration.clients.languages import LANGUAGES, Language, Program
from tests.support.node import NodeProcess, running_node

AVAILABLE = [each for each in LANGUAGES if each.available]
# Without any toolchain there is no case to run: the page is still compared with the examples.
collect_ignore = [] if AVAILABLE else ["test_programs.py"]


@pytest.fixture(scope="session")
def node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    """Return a node with a store of its own."""
    directory = tmp_path_factory.mktemp("clients")
    http = ("--http-listen", "127.0.0.1:0")
    with running_node(directory / "node", *http, database_url=new_store()) as process:
        yield process


@pytest.fixture(scope="session", params=AVAILABLE, ids=lambda language: language.title)
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, node: NodeProcess
) -> Program:
    """Return an example, built as the page says, that calls the node over gRPC."""
    language: Language = request.param
    folder = language.built(tmp_path_factory)
    return Program(language, folder, {"STORENODE_NODE": node.listen})


@pytest.fixture
def ways(program: Program, node: NodeProcess) -> list[Program]:
    """Return the example over each protocol that it speaks."""
    where = {"STORENODE_NODE": node.listen, "STORENODE_URL": f"http://{node.http}"}
    return [replace(program, env={each: where[each]}) for each in program.language.ways]
