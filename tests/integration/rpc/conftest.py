from collections.abc import AsyncIterator

import pytest

from tests.integration.rpc.harness import Node, serve


@pytest.fixture
async def node(database_url: str) -> AsyncIterator[Node]:
    """Yield a node without a token file and without limits on time, on a fresh database."""
    async with serve(database_url) as serving:
        yield serving
