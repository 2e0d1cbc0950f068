"""Checks every few seconds whether the database answers, and whether it takes writes.

The monitor has a connection of its own, because the pools lend what may be broken, and because a
busy database should still find a place for this question. Where it can have none, as when Postgres
has no more to give, it asks on a connection of the pools: while they work, the node can serve.

The write canary is a small commit that takes the locks of a publish. It fails where publishing
would: no connection is free, a lock is held, the disk is full, a synchronous standby is away, the
server is read-only. While messages are committed it has nothing to do, since each commit shows the
same.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import psycopg
from prometheus_client import Gauge

from store.db.connection import Connection, fetch_rows
from store.db.errors import NO_CONNECTION, UNREACHABLE, Failure, find_failure, sentence
from store.db.locks import read_stall
from store.db.pool import Database, RetryPatience
from store.domain.ports import NotServingError, StoreUnavailableError
from store.observe.logging import get_logger

_LOG = get_logger("store.runtime.monitor")

HEALTHY_CHECK_INTERVAL_S: Final = 10.0
"""The interval of checks of a connected database that answers."""

UNHEALTHY_CHECK_INTERVAL_S: Final = 0.25
"""The interval of checks of a database that does not answer."""

CHECK_TIMEOUT_S: Final = 5.0
"""A database that answers no sooner counts as away."""

POOL_PATIENCE_S: Final = 2.5
"""The time to wait for a pool's connection for the check, where no other is available."""
_ASK = "select pg_is_in_recovery(), (extract(epoch from clock_timestamp()) * 1000000000)::bigint"


class Outage(NamedTuple):
    """An outage of the database: its cause, for the log, and a sentence for operators and callers.

    ``sentence``: None where it says no more than that the database does not answer.
    """

    cause: str
    sentence: str | None = None


class DatabaseMonitor:
    """A periodic check of the database; ``on_change`` gets the outage, or None at its end.

    It keeps `Database.connect_failure` up to date. ``read_only``: a standby will do. ``on_time``
    gets a name, the database's clock, and how long ago it showed it, in nanoseconds.
    """

    def __init__(
        self,
        database: Database,
        on_change: Callable[[Outage | None], None],
        *,
        read_only: bool = False,
        on_time: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._database = database
        self._read_only = read_only
        self._on_change = on_change
        self._on_time = on_time
        self._connection: Connection | None = None
        self._hurry = asyncio.Event()
        self._outage: Outage | None = None
        self._away_since_s = 0.0
        self._failed_seen = self._losses = 0

    def check_now(self) -> None:
        """Check without waiting for the interval: something has happened to the database."""
        self._hurry.set()

    def lost(self, reason: str) -> None:
        """Note that the database has gone, and check whether it is back.

        By checks alone a server that is back soon would seem never to have been away.
        """
        self._losses += 1
        self._change(Outage(reason))
        self.check_now()

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        try:
            while True:
                losses = self._losses
                outage = await self.check()
                if outage is None and losses != self._losses:
                    continue  # perhaps the last answer of the server that has gone
                self._change(outage)
                interval_s = UNHEALTHY_CHECK_INTERVAL_S if outage else HEALTHY_CHECK_INTERVAL_S
                # At multiples of it, as other work, so that an idle node wakes seldom.
                pause_s = interval_s - asyncio.get_running_loop().time() % interval_s
                # Not by `wait_for`: before Python 3.12 it may lose the cancellation that ends this.
                with contextlib.suppress(TimeoutError), self._watched():
                    async with asyncio.timeout(pause_s):
                        await self._hurry.wait()
                self._hurry.clear()
        finally:
            await self._disconnect()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Check as soon as anything comes over the idle connection, such as its end."""
        if self._connection is None:
            yield
            return
        loop, descriptor = asyncio.get_running_loop(), self._connection.fileno()
        loop.add_reader(descriptor, self._hurry.set)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    async def check(self) -> Outage | None:
        """Return the outage of the database; None if it answers.

        A connection that broke since the last check says nothing about now: a server that
        restarted quickly answers a new one.
        """
        is_old = self._connection is not None
        outage = await self._check_once()
        return await self._check_once() if is_old and outage else outage

    async def _check_once(self) -> Outage | None:
        connect_error: Exception | None = None
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                connect_error = await self._connect()
            if self._connection is not None:
                outage = await self._ask(self._connection)
                if outage is None and connect_error is None:
                    connect_error = await self._try_connection()
            else:
                outage = await self._ask_on_a_pool()
        except TimeoutError:
            outage = Outage(f"no answer within {CHECK_TIMEOUT_S:g} s")
        except (psycopg.Error, OSError) as error:
            # What a lent connection broke of is less than why no other can be made.
            failure = find_failure(cause := connect_error or error)
            is_named = failure is not None and failure is not UNREACHABLE
            outage = Outage(sentence(cause), failure.sentence if failure and is_named else None)
        if outage is not None:
            await self._disconnect()
        self._set_connect_failure(None if outage else connect_error)
        return outage

    async def _ask_on_a_pool(self) -> Outage | None:
        """Check on a connection that is lent; wait for one while there are any."""
        patience = RetryPatience(POOL_PATIENCE_S)
        while True:
            try:
                async with (
                    asyncio.timeout(2 * CHECK_TIMEOUT_S),
                    self._database.connection(self._database.read_pool) as connection,
                ):
                    return await self._ask(connection)
            except psycopg.Error as error:
                may_come = find_failure(error) is NO_CONNECTION and any(
                    each.size for each in self._database.pools
                )
                if not may_come or not await patience.wait():
                    raise

    async def _ask(self, connection: Connection) -> Outage | None:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            asked_ns = time.monotonic_ns()
            ((is_standby, time_ns),) = await fetch_rows(connection, _ASK)
        if self._on_time is not None:
            self._on_time("database", time_ns, (time.monotonic_ns() - asked_ns) // 2)
        return Outage("it is a standby") if is_standby and not self._read_only else None

    async def _connect(self) -> Exception | None:
        """Open a connection of its own; return why none can be made, else None."""
        if self._connection is None:
            try:
                self._connection = await self._database.connect()
            except (psycopg.Error, OSError) as error:
                return error
        return None

    async def _try_connection(self) -> Exception | None:
        """Return why the pools can make no connection now; None if they can, or need none."""
        failed = self._database.failed_connections
        if failed == self._failed_seen and self._database.connect_failure is None:
            return None
        self._failed_seen = failed
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await (await self._database.connect()).close()
        except (psycopg.Error, OSError, TimeoutError) as error:
            return error
        return None

    def _set_connect_failure(self, error: Exception | None) -> None:
        """Note why the node lives on the connections that it has, and log it once."""
        if error is not None and self._database.connect_failure is None:
            _LOG.warning("database_connection_failed", reason=sentence(error))
        self._database.connect_failure = None if error is None else find_failure(error)

    def _change(self, outage: Outage | None) -> None:
        before, self._outage = self._outage, outage
        if outage and not before:
            self._away_since_s = time.monotonic()
        if outage and outage.cause != (before and before.cause):
            _LOG.warning("database_away", reason=outage.cause)
        elif before and not outage:
            away_s = round(time.monotonic() - self._away_since_s, 1)
            _LOG.info("database_back", away_s=away_s)
        if (outage and outage.sentence, not outage) != (before and before.sentence, not before):
            self._on_change(outage)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


CANARY_INTERVAL_S: Final = 10.0
"""A commit so long after the last one."""

CANARY_RETRY_S: Final = 0.5
"""The pause after one that failed."""

CAUSE_INTERVAL_S: Final = 2.5
"""The interval at which the cause of a failure is looked for."""

STALL_S: Final = 10.0
"""A node that has committed nothing for longer is not ready."""

UNKNOWN_CAUSE: Final = "no session was found that waits; see pg_stat_activity"


class WriteCanary:
    """A periodic `commit`; ``on_change`` gets the reason why nothing is committed, or None.

    It keeps `Database.write_failure` up to date, and looks in ``database`` for the cause of a
    failure. ``committed_s`` returns when anything was last committed, by the loop's clock.
    """

    def __init__(
        self,
        database: Database,
        commit: Callable[[], Awaitable[None]],
        committed_s: Callable[[], float],
        on_change: Callable[[str | None], None],
    ) -> None:
        self._database = database
        self._commit = commit
        self._committed_s = committed_s
        self._on_change = on_change
        self._clock = asyncio.get_running_loop().time
        self._cause = ""
        self._reason: str | None = None

    @property
    def age_s(self) -> float:
        """The time since the last commit, in seconds."""
        return max(0.0, self._clock() - self._committed_s())

    def measure(self, gauge: Gauge) -> None:
        """Set the gauge of the age, whose label is the cause of a stall."""
        gauge.clear()
        gauge.labels(self._cause).set(self.age_s)

    async def run(self) -> None:
        """Commit again and again, until cancelled."""
        while True:
            pause_s = CANARY_INTERVAL_S - self.age_s
            if pause_s <= 0 or self._cause:
                await self._attempt()
                pause_s = CANARY_RETRY_S if self._cause else CANARY_INTERVAL_S
            await asyncio.sleep(pause_s)

    async def _attempt(self) -> None:
        committing = asyncio.create_task(self._commit_once(), name="canary")
        try:
            while not (await asyncio.wait({committing}, timeout=CAUSE_INTERVAL_S))[0]:
                if self.age_s >= CAUSE_INTERVAL_S:
                    self._note(await self._find_cause())
        finally:
            committing.cancel()
            await asyncio.wait({committing})
        committing.result()

    async def _commit_once(self) -> None:
        failure: Failure | None = None
        try:
            await self._commit()
        except psycopg.Error as error:
            failure = find_failure(error)
            if failure is None:
                failure = Failure((), "", f"the database refuses a small write: {sentence(error)}")
            cause = str(self._database.unavailable(failure))
        except NotServingError as error:
            cause = self._cause or str(error)
        else:
            cause = ""
        is_refused = failure is not None and not failure.is_transient
        self._database.write_failure = failure if is_refused else None
        self._note(cause, is_refused=is_refused)

    async def _find_cause(self) -> str:
        database = self._database
        try:
            found = await database.read(read_stall)
        except StoreUnavailableError as error:
            return str(error)
        if found is None and database.connect_failure is not None:
            found = database.connect_failure.sentence
        if found is None and database.write_pool.waiting:
            found = NO_CONNECTION.sentence
        return found or UNKNOWN_CAUSE

    def _note(self, cause: str, *, is_refused: bool = False) -> None:
        self._cause = cause
        reason: str | None = None
        if is_refused:
            reason = cause
        elif cause and self.age_s >= STALL_S:
            reason = f"nothing has been committed for more than {STALL_S:g} s: {cause}"
        if reason == self._reason:
            return
        if reason is None:
            _LOG.info("database_takes_writes")
        else:
            _LOG.error("database_takes_no_writes", reason=reason)
        self._reason = reason
        self._on_change(reason)
