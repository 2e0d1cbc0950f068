"""Nodes' storage on fresh databases."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.db.connection import Connection
from tests.integration.storage.node import Node, running


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Node]:
    """Open the storage of a node on a fresh database."""
    async with running(database_url) as opened:
        yield opened


@pytest.fixture
async def other_node(database_url: str) -> AsyncIterator[Node]:
    """Open the storage of a second node on the same database."""
    async with running(database_url) as opened:
        yield opened


@pytest.fixture
async def connection(node: Node) -> AsyncIterator[Connection]:
    """Open a connection of the test's own."""
    async with await node.database.connect() as opened:
        yield opened
