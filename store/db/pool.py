"""Connections to the database: pools by kind of work, and errors translated once.

Three pools, so that no kind of work starves another: ``write`` for publishing, ``read`` for
look-ups and pages, ``bulk`` for scans and backlogs. One that has no connection and can make none
borrows an idle one of another. A connection that breaks is replaced with backoff; what was asked
of it is tried again by `Database.read`, or by the writer, which can tell whether that is safe.

Where few calls may work at one time, callers take turns, and within a caller its connections do
(`Turns`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import psycopg
from psycopg import AsyncConnection, conninfo
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from store.db.connection import Connection, fetch_row, fetch_rows, prepare
from store.db.errors import NO_CONNECTION, Failure, HostRefusedError, find_failure, sentence
from store.db.migrate import APPLICATION_NAME
from store.db.statements import SQL
from store.domain.ports import Outlet, StoreBusyError, StoreUnavailableError
from storenode.common.backoff import Backoff

if TYPE_CHECKING:
    from store.db.primary import PrimaryGuard

MAX_WAITING_PAGES: Final = 40_000
"""Pages of streams that wait to be read: as many as there may be streams, and half of one caller.
"""

_Result = TypeVar("_Result")
_Given = TypeVarTuple("_Given")

_MAX_PORT: Final = 65535
_RETRY_FIRST_S: Final = 0.05
_RETRY_MOST_S: Final = 1.0
_RETURN_PATIENCE_S: Final = 0.5
"""How long to wait for a connection to be given back where no other can be made."""


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


class _NotMadeError(PoolTimeout):
    """An attempt to connect has failed."""


class Pool(AsyncConnectionPool[Connection]):
    """A pool whose callers do not wait long for a connection that could not be made.

    By itself it would keep its callers waiting to the end of their time, although the next attempt
    to connect, a moment later, may succeed.
    """

    def __init__(
        self,
        url: str,
        name: str,
        size: int,
        patience_s: float,
        configure: Callable[[Connection], Awaitable[None]],
    ) -> None:
        self._limits: set[asyncio.Timeout] = set()
        super().__init__(
            url,
            connection_class=AsyncConnection[Any],
            min_size=1,
            max_size=size,
            timeout=patience_s,
            reconnect_timeout=0,
            reconnect_failed=self._give_up,
            max_lifetime=3600,
            configure=configure,
            name=name,
            open=False,
        )

    @property
    def size(self) -> int:
        """The number of connections: idle, lent, or being made."""
        return self.get_stats()["pool_size"]

    def _give_up(self, _pool: object) -> None:
        """End the waits for a connection after a failed attempt to connect.

        Where there are other connections, one of them may come back in a moment.
        """
        end = asyncio.get_running_loop().time()
        if self.size:
            end += _RETURN_PATIENCE_S
        for limit in self._limits:
            limit.reschedule(min(end, limit.when() or end))

    async def lend(self) -> Connection:
        """Lend a connection, to be given back by `putconn`.

        Raises:
            PoolTimeout: none became free in time; `_NotMadeError`: none could be made.
        """
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                try:
                    connection = await self.getconn()
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            raise _NotMadeError("no connection could be made") from None
        if task.cancelling() > cancelled_before:
            # The pool waits by `asyncio.wait_for`, which before Python 3.12 loses a cancellation
            # that meets the end of the wait; a wait for the task's end would never return.
            await self.putconn(connection)
            raise asyncio.CancelledError
        return connection


class Turns:
    """``places`` calls work at one time, ``of_caller`` of one caller at most; others wait.

    A call passes a gate of its connection, one of its caller, and the common one, each in the order
    of arrival. The first two let ``of_caller`` calls on: so a caller with many calls, or one of its
    connections, has few in the next queue, and delays only itself. ``what`` names calls in errors.
    At most ``most_waiting`` wait, half as many of one caller.
    """

    def __init__(self, what: str, *, places: int, of_caller: int, most_waiting: int) -> None:
        self._what = what
        self._of_caller = of_caller
        self._most_waiting = most_waiting
        self._common = asyncio.Semaphore(places)
        # By caller, or caller and connection; its calls hold a gate while they wait or work.
        self._gates = WeakValueDictionary[tuple[str, ...], asyncio.Semaphore]()
        self._waiting: Counter[str] = Counter()  # by caller

    @asynccontextmanager
    async def turn(self, caller: str, connection: str) -> AsyncIterator[None]:
        """Wait for the call's turn, and hold it in the block.

        Raises:
            StoreBusyError: too many calls wait already.
        """
        for waiting, most in (
            (self._waiting[caller], self._most_waiting // 2),
            (self._waiting.total(), self._most_waiting),
        ):
            if waiting >= most:
                raise StoreBusyError(f"{most} {self._what} are waiting already; retry with backoff")
        gates = self._gate(caller, connection), self._gate(caller), self._common
        async with AsyncExitStack() as passed:
            self._waiting[caller] += 1
            try:
                for gate in gates:
                    await passed.enter_async_context(gate)
            finally:
                self._waiting[caller] -= 1
                self._waiting += Counter()  # without those at 0
            yield

    def _gate(self, *owner: str) -> asyncio.Semaphore:
        return self._gates.setdefault(owner, asyncio.Semaphore(self._of_caller))


class Database:
    """The pools of one database."""

    def __init__(self, url: str, settings: PoolSettings, guard: PrimaryGuard | None = None) -> None:
        self.url = complete_url(url)
        self.settings = settings
        self._guard = guard
        self._servers = WeakKeyDictionary[Connection, str]()
        self.connections_made = 0
        """Changes when a pool may have come to another server than before."""
        self.write_pool = self._pool("write", settings.write_connections)
        self.read_pool = self._pool("read", settings.read_connections)
        self.bulk_pool = self._pool("bulk", settings.bulk_connections)
        # Who opens a thousand scans waits for its own, and not everybody for them.
        self._pages = Turns(
            "pages",
            places=settings.bulk_connections,
            of_caller=settings.bulk_connections,
            most_waiting=MAX_WAITING_PAGES,
        )
        self.store_id = b""
        self.cursor_key = b""
        """What cursors of ``Follow`` are encrypted with."""
        self.connect_failure: Failure | None = None
        """Why no connection can be made, as `store.runtime.monitor` found last."""
        self.write_failure: Failure | None = None
        """Why the database takes no writes, likewise."""
        self.last_online_ns = 0
        """When the store was last online, as its database said when it was opened; 0: never."""

    def _pool(self, name: str, size: int) -> Pool:
        return Pool(self.url, name, size, self.settings.read_patience_s, self._prepare)

    @property
    def failed_connections(self) -> int:
        """The number of failed attempts of the pools to connect since the start."""
        return sum(pool.get_stats().get("connections_errors", 0) for pool in self.pools)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The three pools."""
        return (self.write_pool, self.read_pool, self.bulk_pool)

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
        for pool in database.pools:
            await pool.open(wait=False)
        try:
            row = await database.read(fetch_row, SQL.stores.read_store)
            if row is None:
                raise StoreUnavailableError(
                    "the table storenode.store is empty; restore the database from a backup,"
                    " or create a new one with `storenode db upgrade`"
                )
            database.store_id, database.cursor_key, database.last_online_ns = row
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Close every connection."""
        for pool in self.pools:
            await pool.close()

    def move(self, url: str) -> None:
        """Make new connections at another address."""
        self.url = complete_url(url)
        for pool in self.pools:
            pool.conninfo = self.url

    async def _prepare(self, connection: Connection) -> None:
        self.connections_made += 1
        await self._set_up(connection)

    async def _set_up(self, connection: Connection) -> None:
        try:
            self._servers[connection] = await prepare(connection)
            if self._guard is not None:
                await self._guard.admit(connection)
        except BaseException:
            await connection.close()
            raise

    def have_one_server(self, connection: Connection, other: Connection) -> bool:
        """Return True if two connections lead to one run of a server, which loses no commit."""
        return self._servers[connection] == self._servers[other]

    async def connect(self) -> Connection:
        """Open a connection outside the pools, for a task that keeps its own.

        Raises:
            psycopg.Error: the database cannot be reached, or must not be used.
        """
        connection = await AsyncConnection.connect(self.url)
        await self._set_up(connection)
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
            except (psycopg.Error, PoolTimeout) as error:
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
        except (psycopg.Error, PoolTimeout) as error:
            raise StoreUnavailableError(sentence(error)) from error

    async def read_page(
        self, work: Callable[[Connection], Awaitable[_Result]], outlet: Outlet
    ) -> _Result:
        """Read a page of a stream, callers by turns.

        Raises:
            StoreUnavailableError: as `read`.
            StoreBusyError: too many pages wait to be read.
        """
        async with self._pages.turn(outlet.caller, outlet.connection):
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
            PoolTimeout: none became free in time, or none could be made.
            HostRefusedError: its server was replaced meanwhile.
        """
        try:
            connection, owner = await self._lend(pool)
        except PoolClosed as error:
            raise StoreUnavailableError("the node is stopping; ask another one") from error
        try:
            async with connection:
                yield connection
            if self._guard is not None and not self._guard.admits(connection):
                # What was committed there is not part of the store as it goes on.
                raise HostRefusedError("the server was replaced by a newer one meanwhile")
        finally:
            await owner.putconn(connection)

    async def _lend(self, pool: Pool) -> tuple[Connection, Pool]:
        # A server that has no more connections to give still serves those that it has given: then
        # an idle connection of another pool is lent.
        while True:
            owner = pool
            try:
                connection = await pool.lend()
            except _NotMadeError:
                idle = [each for each in self.pools if each.get_stats()["pool_available"]]
                if pool.size or not idle:
                    raise
                owner = idle[0]
                connection = await owner.lend()
            if self._guard is None or self._guard.admits(connection):
                return connection, owner
            try:
                await connection.close()
            finally:
                await owner.putconn(connection)
