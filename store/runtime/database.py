"""The database of a node: an embedded server or an external one, and the choice among its hosts.

A database is started before anything that needs it, and stopped after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Final

import psycopg

from store.config.node import NodeConfig
from store.db import migrate
from store.db.errors import HostRefusedError, find_failure, is_login_refused, sentence
from store.db.pool import Database, complete_url
from store.db.primary import GuardEvent, PrimaryGuard, hosts_of, label
from store.domain.ports import StoreUnavailableError
from store.embedded.datadir import DataDir
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.runtime.errors import UnreachableError, WrongConfigurationError, as_sentence, unserved
from store.runtime.health import NodeHealth, Obstacle
from store.runtime.node_files import SeenFiles
from storenode.common.backoff import Backoff
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.database")

HOSTS_TIMEOUT_S: Final = 15.0
"""The time limit of the check of all hosts."""

CONNECT_RETRY_FIRST_S: Final = 0.1
CONNECT_RETRY_MOST_S: Final = 2.0
"""Pauses between attempts to reach the database at the start."""


def completed_url(url: str, *, read_only: bool = False) -> str:
    """Return a URL of libpq with what a node sets in it.

    Raises:
        WrongConfigurationError: It cannot be read.
    """
    try:
        return complete_url(url, read_only=read_only)
    except ValueError:
        # What libpq says about it may repeat the password.
        raise WrongConfigurationError(
            "--database-url cannot be read as a connection string of libpq: write it as"
            " postgresql://USER@HOST:PORT/DATABASE."
        ) from None


class ExternalHost:
    """A Postgres that others run; its schema is theirs to upgrade.

    The data directory is locked nevertheless: the node ID in it is this node's alone. ``guard``
    chooses among the hosts of ``--database-url``; None for a node that only reads, which has one.
    """

    kind = "external"

    def __init__(self, config: NodeConfig, on_event: GuardEvent) -> None:
        assert config.database_url is not None
        seen = SeenFiles(config.data_dir)
        self.guard = None if config.read_only else PrimaryGuard(seen.load, seen.save, on_event)
        self._data = DataDir(config.data_dir.absolute())
        self._url = config.database_url
        self._read_only = config.read_only
        self._patience_s = config.start_timeout / NS_PER_S
        self._used = ""

    async def start(self) -> str:
        """Take the data directory, wait for the database, and check its schema.

        Raises:
            WrongConfigurationError: The URL cannot be read.
            UnreachableError: No connection in time.
            SchemaError: The schema is missing, too old or too new.
            EmbeddedPostgresError: The directory cannot be used, or is in use.
        """
        self.url()
        self._data.prepare()
        self._data.lock()
        return await self.reach(wait=True)

    def url(self) -> str:
        """Return the URL with all its hosts.

        Raises:
            WrongConfigurationError: It cannot be read, or is not for a node that only reads.
        """
        url = completed_url(self._url, read_only=self._read_only)
        if self._read_only and len(hosts_of(self._url)) > 1:
            # Each stands at another place of the history: readers would go back and forth in it.
            raise WrongConfigurationError(
                "--database-url names several hosts and --read-only is given: name one"
                " Postgres, and run a node for each."
            )
        return url

    async def stop(self) -> None:
        """Release the data directory."""
        self._data.unlock()

    async def reach(self, *, wait: bool) -> str:
        """Return the URL of a database whose schema is served; ``wait``: within the start timeout.

        Raises:
            WrongConfigurationError, UnreachableError, SchemaError: As `start`.
        """
        url = self.url()
        deadline_s = time.monotonic() + (self._patience_s if wait else 0)
        backoff = Backoff(CONNECT_RETRY_FIRST_S, CONNECT_RETRY_MOST_S)
        while True:
            try:
                self._used = await self._choose(url)
                await asyncio.to_thread(migrate.require_served, self._used, lock_timeout_s=2)
            except psycopg.OperationalError as error:
                reason = sentence(error)
                if is_login_refused(error) or time.monotonic() + backoff.pause_s > deadline_s:
                    raise UnreachableError(_unreachable(url, error)) from error
                _LOG.warning("database_not_reached", reason=reason, retry_in_s=backoff.pause_s)
            else:
                return self._used
            await asyncio.sleep(backoff.take())

    async def _choose(self, url: str) -> str:
        if self.guard is None:
            return url
        choice = await self.guard.choose(url)
        if choice.refused and not choice.served:
            raise HostRefusedError("; ".join(choice.refused.values()))
        return choice.url

    async def look(self, database: Database, metrics: Metrics, health: NodeHealth) -> None:
        """Look at the hosts once, and keep the pools on the newest server."""
        assert self.guard is not None
        try:
            async with asyncio.timeout(HOSTS_TIMEOUT_S):
                choice = await self.guard.choose(self.url())
        except (psycopg.Error, OSError, TimeoutError) as error:
            _LOG.debug("database_hosts_not_seen", reason=str(error))
            return
        if choice.url != self._used:
            self._used = choice.url
            database.move(choice.url)
        metrics.database_hosts_refused.set(len(choice.refused))
        metrics.database_timeline.set(self.guard.timeline)
        health.set(Obstacle.REFUSED, present=bool(choice.refused))

    async def end(self, database: Database) -> None:
        """See the newest commit once more, as far as the database still answers."""
        assert self.guard is not None
        with contextlib.suppress(psycopg.Error, StoreUnavailableError):
            await database.read(self.guard.reach)

    async def keep(self) -> None:
        """Write the newest commit that was seen to the data directory, if it is news."""
        assert self.guard is not None
        await asyncio.to_thread(self.guard.keep)


def _unreachable(url: str, error: psycopg.OperationalError) -> str:
    """Return why no database can be used, without its user and password."""
    reason = sentence(error)
    if isinstance(error, HostRefusedError):
        return as_sentence(f"The database may not be used: {reason}")
    if isinstance(error, psycopg.errors.LockNotAvailable) and (failure := find_failure(error)):
        return as_sentence(unserved(failure.sentence))
    hosts = ", ".join(map(label, hosts_of(url)))
    return (
        f"The database at {hosts} could not be reached ({reason}): check --database-url, and that"
        " Postgres runs and lets this node in."
    )


_ALARMING = frozenset({"commits_lost", "host_refused", "timeline_not_kept"})


def note_host(metrics: Metrics, name: str, fields: Mapping[str, object]) -> None:
    """Log and count an event of the hosts."""
    write = _LOG.error if name in _ALARMING else _LOG.info
    write(name if name == "commits_lost" else f"database_{name}", **fields)
    metrics.database_events.labels(name).inc()
