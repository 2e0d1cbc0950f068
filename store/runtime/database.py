"""Where the database comes from: an embedded server of the node's own, or a URL.

Either is started before anything that needs the database, stopped after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import psycopg

from store.config.node import NodeConfig
from store.db.errors import SchemaError, is_login_refused, sentence
from store.db.pool import HostRefusedError, complete_url
from store.db.primary import GuardEvent, PrimaryGuard, hosts_of
from store.db.schema import migrate
from store.embedded.datadir import DataDir
from store.embedded.errors import EmbeddedPostgresError
from store.embedded.settings import EmbeddedSettings
from store.embedded.supervisor import EmbeddedPostgres
from store.observe.logging import get_logger
from store.runtime.errors import NodeError, UnreachableError, WrongConfigurationError, ended
from store.runtime.limits import CONNECT_RETRY_FIRST_S, CONNECT_RETRY_MOST_S
from store.runtime.seen import SeenFiles
from storenode.common.backoff import Backoff
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.database")

HostEvent = Callable[[str, Mapping[str, object]], None]
"""Told, from any thread, what happens to an embedded server: `exited`, `restarted`, ..."""


def database_host(
    config: NodeConfig, on_event: HostEvent, on_hosts: GuardEvent
) -> EmbeddedHost | ExternalHost:
    """Return the host that the configuration asks for."""
    if config.database_url is None:
        return EmbeddedHost(config, on_event)
    if config.read_only:
        return ReplicaHost(config, config.database_url, None)
    guard = PrimaryGuard(SeenFiles(config.data_dir), on_hosts)
    return ExternalHost(config, config.database_url, guard)


class EmbeddedHost:
    """A Postgres in the data directory; its schema is brought up to date at the start."""

    kind = "embedded"
    guard = None

    def __init__(self, config: NodeConfig, on_event: HostEvent) -> None:
        settings = EmbeddedSettings(config.data_dir, dict(config.postgres_setting))
        self._on_event = on_event
        self._server = EmbeddedPostgres(settings, self._heard)

    async def start(self) -> str:
        """Start the server and upgrade the schema.

        Raises:
            NodeError: One of them is impossible.
        """
        try:
            url = await asyncio.to_thread(self._server.start)
            await asyncio.to_thread(migrate.upgrade, url)
        except EmbeddedPostgresError as error:
            raise NodeError(str(error)) from error
        except (SchemaError, psycopg.Error) as error:
            raise NodeError(_upgrade_failed(error)) from error
        return url

    def url(self) -> str:
        """The server's URL, with its present port."""
        return self._server.url

    async def stop(self) -> None:
        """Shut the server down."""
        await asyncio.to_thread(self._server.stop)

    def _heard(self, name: str, fields: Mapping[str, object]) -> None:
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
        """Wait for the database, within the start timeout, and check its schema.

        Raises:
            WrongConfigurationError: The URL cannot be read.
            UnreachableError: No connection in time.
            NodeError: The schema is missing, too old or too new, or the directory is in use.
        """
        try:
            url = self.url()
        except ValueError:
            # What libpq says about it may repeat the password.
            raise WrongConfigurationError(
                "--database-url cannot be read as a connection string of libpq: write it as"
                " postgresql://USER@HOST:PORT/DATABASE."
            ) from None
        try:
            self._data.prepare()
            self._data.lock()
        except EmbeddedPostgresError as error:
            raise NodeError(str(error)) from error
        return await self._wait_for_schema(url)

    def url(self) -> str:
        """The URL with all its hosts."""
        return complete_url(self._url, read_only=self._read_only)

    async def stop(self) -> None:
        """Give the data directory back."""
        self._data.unlock()

    async def _wait_for_schema(self, url: str) -> str:
        deadline_s = time.monotonic() + self._patience_s
        backoff = Backoff(CONNECT_RETRY_FIRST_S, CONNECT_RETRY_MOST_S)
        while True:
            try:
                chosen = await self._choose(url)
                await asyncio.to_thread(migrate.require_served, chosen)
            except SchemaError as error:
                raise NodeError(_sentence(error)) from error
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
        """The URL with the host to be used first; whatever keeps all hosts away is found later."""
        if self.guard is None:
            return url
        choice = await self.guard.choose(url)
        if choice.refused and not choice.served:
            raise HostRefusedError("; ".join(choice.refused.values()))
        return choice.url


class ReplicaHost(ExternalHost):
    """One Postgres that is only read; as a standby it may be older than what others have seen."""

    async def start(self) -> str:
        """Wait for the database; raises as `ExternalHost.start`.

        Raises:
            WrongConfigurationError: The URL names several hosts.
        """
        # Each stands at another place of the history: readers would go back and forth in it.
        with contextlib.suppress(psycopg.ProgrammingError):
            if len(hosts_of(self._url)) > 1:
                raise WrongConfigurationError(
                    "--database-url names several hosts and --read-only is given: name one"
                    " Postgres, and run a node for each."
                )
        return await super().start()


def _unreachable(url: str, reason: str) -> str:
    return (
        f"The database at {_shown_host(url)} could not be reached ({reason}): check"
        " --database-url, and that Postgres runs and lets this node in."
    )


def _shown_host(url: str) -> str:
    """Host, port and database of a URL; never its user or password."""
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
