"""A Postgres in the data directory of a node, started while the rest of the node is imported.

The module imports little: what a start takes most of its time for comes after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from importlib import import_module

from store.config.node import NodeConfig
from store.embedded.datadir import DataDir
from store.embedded.supervisor import EmbeddedPostgres
from store.observe.logging import get_logger
from store.runtime.errors import NodeFailedError

_LOG = get_logger("store.runtime.database")


class EmbeddedHost:
    """A Postgres in the data directory, begun at once; `start` brings its schema up to date.

    ``on_event`` is called in the loop of the node with an event of the server and its reason:
    `exited`, `restarted`, ...
    """

    kind = "embedded"
    guard = None

    def __init__(self, config: NodeConfig) -> None:
        self.on_event: Callable[[str, str], None] = lambda _name, _reason: None
        self._loop = asyncio.get_running_loop()
        self._server = EmbeddedPostgres(config.data_dir, dict(config.postgres_setting), self._note)
        self._is_first = not os.access(DataDir(config.data_dir).cluster, os.F_OK)
        self._starting = self._loop.run_in_executor(None, self._server.start)

    async def start(self) -> str:
        """Start the server and upgrade the schema.

        Raises:
            EmbeddedPostgresError: The server cannot be started.
            SchemaError, NodeFailedError: The schema cannot be upgraded.
        """
        import psycopg  # noqa: PLC0415 - see above

        from store.db import migrate  # noqa: PLC0415
        from store.db.errors import sentence  # noqa: PLC0415

        if self._is_first:
            # What makes the schema takes long to import, and so does Postgres to make a cluster.
            await asyncio.to_thread(import_module, "alembic.command")
        url = await self._starting
        try:
            await asyncio.to_thread(migrate.upgrade, url)
        except psycopg.Error as error:
            raise NodeFailedError(
                "The schema of the embedded database could not be brought up to date"
                f" ({sentence(error)}): look into postgres.log in the data directory."
            ) from error
        return url

    def url(self) -> str:
        """Return the server's URL, with its present port."""
        return self._server.url

    async def stop(self) -> None:
        """Shut the server down, and break a start off."""
        await asyncio.to_thread(self._server.stop)
        await asyncio.gather(self._starting, return_exceptions=True)
        # Its thread may have begun only after the first one.
        await asyncio.to_thread(self._server.stop)

    def _note(self, name: str, fields: Mapping[str, object]) -> None:
        write = _LOG.warning if name == "exited" else _LOG.info
        write(f"postgres_{name}", **fields)
        # In any thread, also while the loop is closing.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.on_event, name, str(fields.get("reason")))
