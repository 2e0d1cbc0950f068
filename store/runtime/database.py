"""The database of a node: an embedded server or an external one, and the choice among its hosts.

A database is started before anything that needs it, and stopped after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import psycopg

from store.config.node import NodeConfig
from store.db.errors import HostRefusedError, SchemaError, is_login_refused, sentence
from store.db.pool import Database, complete_url
from store.db.primary import GuardEvent, HostChoice, PrimaryGuard, hosts_of
from store.db.schema import migrate
from store.domain.ports import StoreUnavailable
from store.embedded.datadir import DataDir
from store.embedded.process import EmbeddedPostgresError
from store.embedded.supervisor import EmbeddedPostgres, EmbeddedSettings
from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.runtime.node_files import (
    NodeFailedError,
    SeenFiles,
    UnreachableError,
    WrongConfigurationError,
    ended,
)
from storenode.common.backoff import Backoff
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.database")

HOSTS_TIMEOUT_S: Final = 15.0
"""How long all of that may take."""

HOSTS_KEEP_INTERVAL_S: Final = 10.0
"""How often the newest commit that was seen is written to the data directory."""

HOSTS_END_TIMEOUT_S: Final = 5.0
HOSTS_AWAY_END_TIMEOUT_S: Final = 1.0
"""How long a node that shuts down waits for the newest commit; the latter where no host served when
they were last asked."""

CONNECT_RETRY_FIRST_S: Final = 0.1
CONNECT_RETRY_MOST_S: Final = 2.0
"""Pauses between attempts to reach the database at the start."""

HostEvent = Callable[[str, Mapping[str, object]], None]
"""Called from any thread with an event of an embedded server: `exited`, `restarted`, ..."""


def database_host(
    config: NodeConfig, on_event: HostEvent, on_hosts: GuardEvent
) -> EmbeddedHost | ExternalHost:
    """Return the host that the configuration asks for."""
    if config.database_url is None:
        return EmbeddedHost(config, on_event)
    if config.read_only:
        return ExternalHost(config, config.database_url, None)
    guard = PrimaryGuard(SeenFiles(config.data_dir), on_hosts)
    return ExternalHost(config, config.database_url, guard)


class EmbeddedHost:
    """A Postgres in the data directory; its schema is brought up to date at the start."""

    kind = "embedded"
    guard = None

    def __init__(self, config: NodeConfig, on_event: HostEvent) -> None:
        settings = EmbeddedSettings(config.data_dir, dict(config.postgres_setting))
        self._on_event = on_event
        self._server = EmbeddedPostgres(settings, self._note)

    async def start(self) -> str:
        """Start the server and upgrade the schema.

        Raises:
            NodeFailedError: One of them is impossible.
        """
        try:
            url = await asyncio.to_thread(self._server.start)
            await asyncio.to_thread(migrate.upgrade, url)
        except EmbeddedPostgresError as error:
            raise NodeFailedError(str(error)) from error
        except (SchemaError, psycopg.Error) as error:
            raise NodeFailedError(_upgrade_failed(error)) from error
        return url

    def url(self) -> str:
        """Return the server's URL, with its present port."""
        return self._server.url

    async def stop(self) -> None:
        """Shut the server down."""
        await asyncio.to_thread(self._server.stop)

    def _note(self, name: str, fields: Mapping[str, object]) -> None:
        write = _LOG.warning if name == "exited" else _LOG.info
        write(f"postgres_{name}", **fields)
        self._on_event(name, fields)


class ExternalHost:
    """A Postgres that others run; its schema is theirs to upgrade.

    The data directory is locked all the same: the node ID in it is this node's alone.
    ``guard`` chooses among its hosts; None: it has one.
    """

    kind = "external"

    def __init__(self, config: NodeConfig, url: str, guard: PrimaryGuard | None) -> None:
        self._data = DataDir(config.data_dir.absolute())
        self.guard = guard
        self._url = url
        self._read_only = config.read_only
        self._patience_s = config.start_timeout / NS_PER_S

    async def start(self) -> str:
        """Take the data directory, wait for the database, and check its schema.

        Raises:
            WrongConfigurationError: The URL cannot be read.
            UnreachableError: No connection in time.
            NodeFailedError: The schema is missing, too old or too new, or the directory is in use.
        """
        self._check_url()
        try:
            self._data.prepare()
            self._data.lock()
        except EmbeddedPostgresError as error:
            raise NodeFailedError(str(error)) from error
        return await self.reach(wait=True)

    def _check_url(self) -> None:
        try:
            self.url()
        except ValueError:
            # What libpq says about it may repeat the password.
            raise WrongConfigurationError(
                "--database-url cannot be read as a connection string of libpq: write it as"
                " postgresql://USER@HOST:PORT/DATABASE."
            ) from None
        if self._read_only and _host_count(self._url) > 1:
            # Each stands at another place of the history: readers would go back and forth in it.
            raise WrongConfigurationError(
                "--database-url names several hosts and --read-only is given: name one"
                " Postgres, and run a node for each."
            )

    def url(self) -> str:
        """Return the URL with all its hosts."""
        return complete_url(self._url, read_only=self._read_only)

    async def stop(self) -> None:
        """Release the data directory."""
        self._data.unlock()

    async def reach(self, *, wait: bool) -> str:
        """Return the URL of a database whose schema is served; ``wait``: within the start timeout.

        Raises:
            WrongConfigurationError, UnreachableError, NodeFailedError: As `start`.
        """
        self._check_url()
        url = self.url()
        deadline_s = time.monotonic() + (self._patience_s if wait else 0)
        backoff = Backoff(CONNECT_RETRY_FIRST_S, CONNECT_RETRY_MOST_S)
        while True:
            try:
                chosen = await self._choose(url)
                await asyncio.to_thread(migrate.require_served, chosen)
            except SchemaError as error:
                raise NodeFailedError(_sentence(error)) from error
            except psycopg.OperationalError as error:
                reason = sentence(error)
                hopeless = is_login_refused(error)
                refused = isinstance(error, HostRefusedError)
                if hopeless or time.monotonic() + backoff.pause_s > deadline_s:
                    text = ended(f"The database may not be used: {reason}") if refused else None
                    raise UnreachableError(text or _unreachable(url, reason)) from error
                _LOG.warning("database_not_reached", reason=reason, retry_in_s=backoff.pause_s)
            else:
                return chosen
            await asyncio.sleep(backoff.take())

    async def _choose(self, url: str) -> str:
        if self.guard is None:
            return url
        choice = await self.guard.choose(url)
        if choice.refused and not choice.served:
            raise HostRefusedError("; ".join(choice.refused.values()))
        return choice.url


def _host_count(url: str) -> int:
    try:
        return len(hosts_of(url))
    except psycopg.ProgrammingError:
        return 0


def _unreachable(url: str, reason: str) -> str:
    return (
        f"The database at {_shown_host(url)} could not be reached ({reason}): check"
        " --database-url, and that Postgres runs and lets this node in."
    )


def _shown_host(url: str) -> str:
    # Never the user or the password.
    given: Mapping[str, object] = {}
    with contextlib.suppress(psycopg.ProgrammingError):
        given = psycopg.conninfo.conninfo_to_dict(url)
    hosts = str(given.get("host") or given.get("hostaddr") or "the default host")
    port = f" port {given['port']}" if given.get("port") else ""
    return f"{hosts}{port}"


def _upgrade_failed(error: Exception) -> str:
    if isinstance(error, SchemaError):
        return _sentence(error)
    return (
        "The schema of the embedded database could not be brought up to date"
        f" ({sentence(error)}): look into postgres.log in the data directory."
    )


def _sentence(error: Exception) -> str:
    text = str(error)
    return ended(text[:1].upper() + text[1:])


_ALARMING = frozenset({"commits_lost", "host_refused", "timeline_not_kept"})


def note_hosts(metrics: Metrics) -> Callable[[str, Mapping[str, object]], None]:
    """Log and count what happens to hosts."""

    def note(name: str, fields: Mapping[str, object]) -> None:
        write = _LOG.error if name in _ALARMING else _LOG.info
        write(name if name == "commits_lost" else f"database_{name}", **fields)
        metrics.database_events.labels(name).inc()

    return note


class HostWatch:
    """Keeps the pools on the newest server; `url` names all hosts."""

    def __init__(
        self,
        guard: PrimaryGuard,
        url: str,
        metrics: Metrics,
        *,
        database: Database,
        on_look: Callable[[HostChoice], None],
    ) -> None:
        self._guard = guard
        self._url = url
        self._metrics = metrics
        self._database = database
        self._on_look = on_look
        self._kept_s = time.monotonic()
        self._moved_to = url
        self._served = True

    async def look(self) -> None:
        """Look at the hosts once."""
        try:
            async with asyncio.timeout(HOSTS_TIMEOUT_S):
                choice = await self._guard.choose(self._url)
        except (psycopg.Error, OSError, TimeoutError) as error:
            _LOG.debug("database_hosts_not_seen", reason=str(error))
            return
        self._served = choice.served
        if choice.url != self._moved_to:
            self._moved_to = choice.url
            self._database.move(choice.url)
        self._metrics.database_hosts_refused.set(len(choice.refused))
        self._metrics.database_timeline.set(self._guard.timeline)
        self._on_look(choice)
        if time.monotonic() - self._kept_s > HOSTS_KEEP_INTERVAL_S:
            self._kept_s = time.monotonic()
            await asyncio.to_thread(self._guard.keep)

    async def end(self) -> None:
        """Keep what was seen up to the end, as far as the database still answers."""
        patience_s = HOSTS_END_TIMEOUT_S if self._served else HOSTS_AWAY_END_TIMEOUT_S
        with contextlib.suppress(psycopg.Error, StoreUnavailable, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._database.read(self._guard.reach)
        await asyncio.to_thread(self._guard.keep)
