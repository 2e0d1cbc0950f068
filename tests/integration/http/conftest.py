"""A node with an HTTP listener that the tests share; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.integration.http.api import Api
from tests.support.node import NodeProcess, shared_node

ORIGIN = "https://app.example"
HOST = "Node.example"
HTTP = (
    *("--http-listen", "127.0.0.1:0", "--http-allow-origin", ORIGIN),
    *("--http-allow-host", HOST),
)

_numbers = itertools.count()

node = shared_node("http", *HTTP, "--max-clock-drift", "off", "--retention", "off")
"""A node without tokens that takes messages of any time."""


@pytest.fixture(scope="session")
def api(node: NodeProcess) -> Iterator[Api]:
    """Yield a caller of the shared node."""
    api = Api.of(node)
    yield api
    api.client.close()


@pytest.fixture
def topic() -> str:
    """Return a content topic that no other test uses."""
    return f"/http/1/topic-{next(_numbers)}/proto"
