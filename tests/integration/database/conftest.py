"""A copy of the database of a test, or of the one that its module has filled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from unittest.mock import AsyncMock

import pytest

from tests.integration.database.rows import MONTH_NS, NOW, Connection, opened
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def filled(template_database: str) -> str:
    """Return the name of the database that tests copy; modules fill one."""
    return template_database


@pytest.fixture(autouse=True)
def _is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the newest commit confirm the times of all tests, whatever the date is."""
    newest = AsyncMock(return_value=NOW + 12 * MONTH_NS)
    monkeypatch.setattr("store.db.maintainer.newest_commit_ns", newest)


@pytest.fixture
def database_url(postgres: PostgresServer, filled: str) -> Iterator[str]:
    """Return the URL of a copy of it."""
    name = postgres.create_database(filled)
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """Open a connection to it in autocommit mode."""
    async with await opened(database_url) as connection:
        yield connection
