"""The storage of a node on a fresh database, and its reader by SDS message ID."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from store.db.sds import DatabaseSdsReader
from tests.integration.storage.node import Node, running


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Node]:
    """Return the storage of a node."""
    async with running(database_url) as opened:
        yield opened


@pytest.fixture
def reader(node: Node) -> DatabaseSdsReader:
    """Return what is tested here."""
    return DatabaseSdsReader(node.database)
