"""A node, and the examples of those languages whose toolchains are installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.clients.languages import LANGUAGES, Language, Program
from tests.support.node import NodeProcess, shared_node

AVAILABLE = [each for each in LANGUAGES if each.available]
# Without any toolchain there is no case to run: the page is still compared with the examples.
collect_ignore = [] if AVAILABLE else ["test_programs.py"]

node = shared_node("clients", "--http-listen", "127.0.0.1:0")


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
