from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.peers.harness import PeerNode, peer_node
from tests.support.fleet import Fleet
from tests.support.postgres import PostgresServer


@pytest.fixture
async def first(new_database: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """Return a node on a fresh database; its ID is below that of the second."""
    async with peer_node("a.example", new_database()) as node:
        yield node


@pytest.fixture
async def second(new_database: Callable[[], str]) -> AsyncIterator[PeerNode]:
    """Serve another one, on another database."""
    async with peer_node("b.example", new_database()) as node:
        yield node


@pytest.fixture
def fleet(tmp_path: Path, postgres: PostgresServer, template_database: str) -> Iterator[Fleet]:
    """Make nodes as processes, each with a store of its own on the shared server."""
    names: list[str] = []

    def new_database() -> str:
        names.append(postgres.copy_store(template_database))
        return postgres.url(names[-1])

    nodes = Fleet(tmp_path, new_database=new_database)
    try:
        yield nodes
    finally:
        nodes.close()
        for name in names:
            postgres.drop_database(name)
