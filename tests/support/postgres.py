"""The Postgres server that tests share: many databases, no password, quick rather than durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from chaos.soak.postgres import ROLE, SUPERUSER, ClusterServer, Pair, copy_cluster, start_server
from tests.support.places import quick_directory

__all__ = [
    "CANARY",
    "COMMITTING",
    "MONITORING",
    "ROLE",
    "SUPERUSER",
    "WRITING",
    "PostgresServer",
    "copy_cluster",
    "running_pair",
    "running_server",
]

_T = TypeVar("_T")

QUICK: Final[Mapping[str, str]] = {
    # It would come to a database once a minute, lock what a test drops or rebuilds within some
    # milliseconds, and change the statistics and the sizes that others compare.
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "max_wal_size": "256MB",
    "shared_buffers": "64MB",
}
"""Settings of the server that tests share; what is about durability starts one of its own."""

MONITORING: Final = "position('select pg_is_in_recovery(), ' in query) = 1"
"""A condition on pg_stat_activity: a connection that asks whether the database answers."""

CANARY: Final = "position('with granted as' in query) > 0"
"""A condition on pg_stat_activity: a connection that asks whether the database takes writes."""

WRITING: Final = (
    f"(query = 'COMMIT' or position('into storenode.messages' in query) > 0 and not {CANARY})"
)
"""A condition on pg_stat_activity, which shows the first kilobyte of a statement: a writer that
commits, after its rows or together with them."""

COMMITTING: Final = (
    "select pid, query_start from pg_stat_activity"
    f" where wait_event = 'SyncRep' and {WRITING} order by query_start"
)
"""The writers whose commits wait for the standby, the longest first."""


class PostgresServer:
    """A server on 127.0.0.1 that lets everybody in; it ends with the process that runs the tests.

    Databases belong to the role `storenode`, which is no superuser, as that of a node.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str] = QUICK) -> None:
        self._server = ClusterServer(directory, settings)
        self._names = count(1)

    def start(self) -> None:
        """Start it; the first time after its cluster was made."""
        if not self._server.data.cluster.exists():
            self._server.create()
        self._server.start()

    def stop(self) -> None:
        """Shut it down."""
        self._server.stop()

    @property
    def port(self) -> int:
        """The port."""
        return self._server.port

    def url(self, database: str, role: str = ROLE) -> str:
        """Return the libpq URL of a database."""
        return self._server.url_of(role, database)

    @property
    def admin_url(self) -> str:
        """libpq URL for the superuser."""
        return self.url("postgres", SUPERUSER)

    def create_database(self, template: str = "template0", encoding: str = "UTF8") -> str:
        """Make a database of the role `storenode` and return its name.

        As a copy of ``template`` when that is another one of its databases. Copied by file, which
        costs half of what going through the log does while nothing waits for the disk.
        """
        name = f"test_{next(self._names)}"
        statement = sql.SQL(
            "CREATE DATABASE {} OWNER {} TEMPLATE {} ENCODING {} STRATEGY FILE_COPY"
        ).format(
            sql.Identifier(name),
            sql.Identifier(ROLE),
            sql.Identifier(template),
            sql.Literal(encoding),
        )
        self._execute(statement)
        return name

    def copy_store(self, template: str) -> str:
        """Make a copy of a database with the newest schema that is a store of its own; its name."""
        name = self.create_database(template)
        with psycopg.connect(self.url(name)) as connection:
            connection.execute("update storenode.store set store_id = gen_random_uuid()")
        return name

    @contextmanager
    def filled(
        self, template: str, fill: Callable[[str], Coroutine[None, None, _T]]
    ) -> Iterator[tuple[str, _T]]:
        """Copy a database for the block, and fill it by its URL; yield its name and the result."""
        name = self.create_database(template)
        try:
            yield name, asyncio.run(fill(self.url(name)))
        finally:
            self.drop_database(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, and end the connections to it."""
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running_server(kept: Path) -> Iterator[ClusterServer]:
    """Run a durable server with the schema; its logs are copied to ``kept``."""
    with quick_directory(kept) as directory:
        running = start_server(directory / "server")
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def running_pair(kept: Path) -> Iterator[Pair]:
    """Run a primary and an asynchronous standby with the schema; their logs go to ``kept``."""
    with quick_directory(kept) as directory, Pair(directory) as pair:
        yield pair
