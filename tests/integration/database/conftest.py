"""A copy of the database of a test, or of the one that its module has filled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from unittest.mock import AsyncMock

import pytest

from tests.integration.database.rows import MONTH_NS, NOW, Connection, opened
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def template_database(
    request: pytest.FixtureRequest, postgres: PostgresServer, template_database: str
) -> Iterator[str]:
    """Name of the database that tests copy, which a module may fill by its `fill_database`."""
    fill = getattr(request.module, "fill_database", None)
    if fill is None:
        yield template_database
    else:
        with postgres.filled(template_database, fill) as (name, _):
            yield name


@pytest.fixture(autouse=True)
def _is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the newest commit confirm the times of all tests, whatever the date is."""
    newest = AsyncMock(return_value=NOW + 12 * MONTH_NS)
    monkeypatch.setattr("store.db.maintainer.newest_commit_ns", newest)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """Open a connection to it in autocommit mode."""
    async with await opened(database_url) as connection:
        yield connection
