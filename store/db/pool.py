"""Connections to the database: pools by kind of work, and errors translated once.

Three pools, so that no kind of work starves another: ``write`` for publishing, ``read`` for
lookups and pages, ``bulk`` for scans and backlogs. One that has no connection and can make none
borrows an idle one of another. A connection that breaks is replaced with backoff; what was asked
of it is tried again by `Database.read`, or by the writer, which can tell whether that is safe.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, conninfo, pq

from store.db.connection import Connection, fetch_row, fetch_rows, prepare
from store.db.errors import (
    NO_CONNECTION,
    Failure,
    HostRefusedError,
    NoConnectionError,
    find_failure,
    sentence,
)
from store.db.migrate import APPLICATION_NAME, EMPTY
from store.db.statements import SQL
from store.domain.ports import StoreUnavailableError
from storenode.common.backoff import Backoff

if TYPE_CHECKING:
    from store.db.primary import PrimaryGuard

_Result = TypeVar("_Result")
_Given = TypeVarTuple("_Given")

_MAX_PORT: Final = 65535
_RETRY_FIRST_S: Final = 0.05
_RETRY_MOST_S: Final = 1.0
_MAX_AGE_S: Final = 3_600.0
"""A connection is replaced after this time, since Postgres keeps plans and catalogs for each."""

_MAX_IDLE_S: Final = 600.0
"""The idle time after which a connection is closed."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Sizes of the pools (connections) and how long a caller waits for the database (seconds).

    ``write_patience_s`` is for a database that is away; ``commit_patience_s`` also for one that
    takes a batch and does not commit it, as when its synchronous standby is away.
    """

    write_connections: int = 4
    read_connections: int = 6
    bulk_connections: int = 6
    read_patience_s: float = 5.0
    write_patience_s: float = 30.0
    commit_patience_s: float = 60.0


def complete_url(url: str, *, read_only: bool = False) -> str:
    """Add what a node needs to a connection string: a primary, and quick detection.

    A primary that takes no writes (`default_transaction_read_only`) still serves queries.

    Args:
        url: A connection string of libpq.
        read_only: A standby will do.

    Source: PostgreSQL manual, "Connection Strings", "Specifying Multiple Hosts".

    Raises:
        ValueError: the text is not a connection string of libpq.
    """
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ValueError(f"the database URL cannot be read: {error}".strip()) from error
    _require_ports(str(given.get("port", "")))
    defaults = {
        "target_session_attrs": "any" if read_only else "primary",
        "connect_timeout": "5",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
        "tcp_user_timeout": "20000",
        "application_name": APPLICATION_NAME,
    }
    return conninfo.make_conninfo(url, **{k: v for k, v in defaults.items() if k not in given})


def _require_ports(ports: str) -> None:
    for port in filter(None, ports.split(",")):
        if not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= _MAX_PORT:
            raise ValueError(f"the database URL cannot be read: no port has the number {port!r}")


def reconnecting() -> Backoff:
    """Return the pauses between attempts to reach the database."""
    return Backoff(_RETRY_FIRST_S, _RETRY_MOST_S)


class RetryPatience:
    """Pauses between attempts, as long as the patience lasts."""

    def __init__(self, patience_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + patience_s
        self._backoff: Backoff | None = None

    async def wait(self) -> bool:
        """Wait for the next attempt; False when patience has run out."""
        left = self._deadline - self._loop.time()
        if left <= 0:
            return False
        self._backoff = self._backoff or reconnecting()
        await asyncio.sleep(min(self._backoff.take(), left))
        return True


class Pool:
    """The connections of one kind of work: at most ``size`` are lent, and further callers wait.

    The connection that was given back last is lent first, so that those beyond what is needed grow
    old and are closed.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.lent = self.waiting = 0
        self.idle: list[tuple[Connection, float]] = []
        """Connections, and when each was given back, by the loop's clock; ascending."""
        self.places = asyncio.Semaphore(size)

    @property
    def size(self) -> int:
        """The number of connections: idle, lent, or being made."""
        return len(self.idle) + self.lent


class Database:
    """The pools of one database."""

    def __init__(self, url: str, settings: PoolSettings, guard: PrimaryGuard | None = None) -> None:
        self.url = complete_url(url)
        self.settings = settings
        self._guard = guard
        self._admits: Callable[[Connection], bool] = guard.admits if guard else lambda _: True
        self._made = WeakKeyDictionary[Connection, tuple[str, float]]()
        """The start of the server of each connection, and when it was made."""
        self._is_closed = False
        self.connections_made = self.failed_connections = 0
        """The number of connections that the pools have made, perhaps to several servers, and of
        failed attempts."""
        self.write_pool = Pool("write", settings.write_connections)
        self.read_pool = Pool("read", settings.read_connections)
        self.bulk_pool = Pool("bulk", settings.bulk_connections)
        self.pools = (self.write_pool, self.read_pool, self.bulk_pool)
        self._pages = asyncio.Semaphore(settings.bulk_connections)
        self.store_id = b""
        self.cursor_key = b""
        """The key that encrypts cursors of ``Follow``."""
        self.connect_failure: Failure | None = None
        """The reason why no connection can be made, as `store.runtime.monitor` found last."""
        self.write_failure: Failure | None = None
        """The reason why the database takes no writes, likewise."""
        self.last_online_ns = 0
        """The time at which the store was last online, as of the start; 0: never."""

    @classmethod
    async def open(
        cls, url: str, settings: PoolSettings | None = None, guard: PrimaryGuard | None = None
    ) -> Database:
        """Connect and read the database's identity; without a guard any server is used.

        Raises:
            StoreUnavailableError: no connection within the settings' patience.
            ValueError: the URL cannot be read.
        """
        database = cls(url, settings or PoolSettings(), guard)
        try:
            row = await database.read(fetch_row, SQL.stores.read_store)
            if row is None:
                raise StoreUnavailableError(EMPTY)
            database.store_id, database.cursor_key, database.last_online_ns = row
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Close every connection; those that are lent are closed when they are given back."""
        self._is_closed = True
        for pool in self.pools:
            while pool.idle:
                await pool.idle.pop()[0].close()

    def move(self, url: str) -> None:
        """Make new connections at another address."""
        self.url = complete_url(url)

    def have_one_server(self, connection: Connection, other: Connection) -> bool:
        """Return True if two connections lead to one run of a server, which loses no commit."""
        return self._made[connection][0] == self._made[other][0]

    async def connect(self) -> Connection:
        """Open a connection outside the pools, for a task that keeps its own.

        Raises:
            psycopg.Error: the database cannot be reached, or must not be used.
        """
        connection = await AsyncConnection[Any].connect(self.url)
        try:
            self._made[connection] = await prepare(connection), asyncio.get_running_loop().time()
            if self._guard is not None:
                await self._guard.admit(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def read(
        self,
        work: Callable[[Connection, *_Given], Awaitable[_Result]],
        *given: *_Given,
        pool: Pool | None = None,
    ) -> _Result:
        """Run a read on a connection of a pool, again where the connection breaks.

        Raises:
            StoreUnavailableError: the database did not serve within the settings' patience.
        """
        patience = RetryPatience(self.settings.read_patience_s)
        while True:
            try:
                async with self.connection(pool or self.read_pool) as connection:
                    return await work(connection, *given)
            except psycopg.Error as error:
                failure = find_failure(error)
                if failure is None:
                    raise
                if not failure.is_transient or not await patience.wait():
                    raise self.unavailable(failure) from error

    async def rows(
        self,
        statement: str,
        parameters: Mapping[str, object] | Sequence[object] = (),
        pool: Pool | None = None,
    ) -> list[Any]:
        """Read what one statement selects.

        Raises:
            StoreUnavailableError: as `read`.
        """
        return await self.read(fetch_rows, statement, parameters, pool=pool)

    async def write(
        self, work: Callable[[Connection, *_Given], Awaitable[_Result]], *given: *_Given
    ) -> _Result:
        """Run a write that may be lost with the server, once: it waits for no disk and no standby.

        What it is for makes claims, such as until when the node was online; fewer do no harm.

        Raises:
            StoreUnavailableError: the database did not serve; whether it was done is not known.
        """
        try:
            async with self.connection(self.write_pool) as connection, connection.transaction():
                await connection.execute("set local synchronous_commit = off")
                return await work(connection, *given)
        except psycopg.Error as error:
            raise StoreUnavailableError(sentence(error)) from error

    async def read_page(self, work: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        """Read a page of a stream, which waits for its turn as long as it takes.

        Raises:
            StoreUnavailableError: as `read`.
        """
        async with self._pages:
            return await self.read(work, pool=self.bulk_pool)

    def unavailable(self, failure: Failure) -> StoreUnavailableError:
        """Return the error that callers are given."""
        if failure is NO_CONNECTION and self.connect_failure is not None:
            failure = self.connect_failure
        return StoreUnavailableError(failure.sentence)

    @asynccontextmanager
    async def connection(self, pool: Pool) -> AsyncIterator[Connection]:
        """Lend a connection of a pool.

        Raises:
            StoreUnavailableError: the node is stopping.
            NoConnectionError: none became free in time, or none could be made.
            HostRefusedError: its server was replaced meanwhile.
        """
        if pool.places.locked():
            await self._wait_for_place(pool)
        else:  # at once, and so without a timer
            await pool.places.acquire()
        pool.lent += 1
        try:
            connection = await self._lend(pool)
            try:
                yield connection
                if not self._admits(connection):
                    # What was committed there is not part of the store as it continues.
                    raise HostRefusedError("the server was replaced by a newer one meanwhile")
            finally:
                await self._give_back(pool, connection)
        finally:
            pool.lent -= 1
            pool.places.release()

    async def _wait_for_place(self, pool: Pool) -> None:
        patience_s = self.settings.read_patience_s
        pool.waiting += 1
        try:
            async with asyncio.timeout(patience_s):
                await pool.places.acquire()
        except TimeoutError:
            raise NoConnectionError(f"no connection became free within {patience_s:g} s") from None
        finally:
            pool.waiting -= 1

    async def _lend(self, pool: Pool) -> Connection:
        while not self._is_closed:
            if not pool.idle:
                await self._fill(pool)
            connection, _ = pool.idle.pop()
            if self._admits(connection):
                return connection
            await connection.close()
        raise StoreUnavailableError("the node is stopping; ask another one")

    async def _fill(self, pool: Pool) -> None:
        """Make a connection, or take one that another pool does not need.

        A server that has no more connections to give still serves those that it has given.
        """
        try:
            connection = await self.connect()
        except (psycopg.Error, OSError) as error:
            self.failed_connections += 1
            lenders = [each for each in self.pools if each.idle]
            if not lenders:
                raise NoConnectionError(f"no connection could be made: {error}") from error
            pool.idle.append(lenders[0].idle.pop())
        else:
            self.connections_made += 1
            pool.idle.append((connection, asyncio.get_running_loop().time()))

    async def _give_back(self, pool: Pool, connection: Connection) -> None:
        """Keep a connection for the next caller, if it is still fit for use."""
        now_s = asyncio.get_running_loop().time()
        is_old = now_s > self._made[connection][1] + _MAX_AGE_S
        # A caller that was cancelled may have left a statement under way, or a transaction.
        is_idle = connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if connection.broken:
            await self._close_ended()
        if self._is_closed or is_old or not is_idle or not self._admits(connection):
            await connection.close()
        else:
            pool.idle.append((connection, now_s))
        for each in self.pools:
            if each.idle and now_s > each.idle[0][1] + _MAX_IDLE_S:
                await each.idle.pop(0)[0].close()

    async def _close_ended(self) -> None:
        """Close idle connections that the server has ended: a caller would try one by one."""
        for pool in self.pools:
            poll = select.poll()
            for connection, _ in pool.idle:
                poll.register(connection.fileno(), select.POLLIN)
            ended = dict(poll.poll(0))
            gone = [each for each, _ in pool.idle if each.fileno() in ended]
            pool.idle = [each for each in pool.idle if each[0] not in gone]
            await asyncio.gather(*(each.close() for each in gone))
