"""Asks the database whether it answers, on a connection of its own.

Its own connection, because the pools lend what may be broken, and because a database that is busy
with everything else should still find a place for this question. Where it can have none, as when
Postgres has no more to give, it asks on one of the pools: while they work, the node can serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import psycopg
from psycopg_pool import PoolTimeout

from store.db.errors import sentence
from store.db.pool import Connection, Database
from store.observe.logging import get_logger
from store.runtime.limits import (
    CHECK_TIMEOUT_S,
    HEALTHY_CHECK_INTERVAL_S,
    POOL_ATTEMPTS,
    REASON_REST_S,
    UNHEALTHY_CHECK_INTERVAL_S,
)

_LOG = get_logger("store.runtime.monitor")


class DatabaseMonitor:
    """Tells `on_change` when the database goes away (False) and when it is back (True)."""

    def __init__(
        self, database: Database, on_change: Callable[[bool], None], *, read_only: bool = False
    ) -> None:
        """``read_only``: a standby will do."""
        self._database = database
        self._read_only = read_only
        self._on_change = on_change
        self._connection: Connection | None = None
        self._hurry = asyncio.Event()
        self._up = True
        self._failure: str | None = None
        """Why it asks on a connection of the pools, while it does."""
        self._away_since_s = 0.0
        self._reason: str | None = None
        """Why it is away, as told last; another reason is told once it is away for so long."""
        self._tell_from_s = REASON_REST_S
        self._failed_before = 0
        self._losses = 0

    def check_now(self) -> None:
        """Ask without waiting for the interval: something has happened to the database."""
        self._hurry.set()

    def lost(self, reason: str) -> None:
        """Take note that the database has gone, and ask whether it is back.

        By asking alone a server that is back soon would seem never to have been away.
        """
        self._losses += 1
        self._tell(reason)
        self.check_now()

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        try:
            while True:
                losses = self._losses
                reason = await self._ask()
                if reason is None and losses != self._losses:
                    continue  # perhaps the last answer of the server that has gone
                self._tell(reason)
                interval_s = HEALTHY_CHECK_INTERVAL_S if self._up else UNHEALTHY_CHECK_INTERVAL_S
                # Not by `wait_for`: before Python 3.12 it may lose the cancellation that ends this.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await self._hurry.wait()
                self._hurry.clear()
        finally:
            await self._disconnect()

    async def _ask(self) -> str | None:
        """None when the database answered and takes the writes of the node, else why not.

        A connection that broke since the last time says nothing about now: a server that restarted
        quickly answers a new one.
        """
        kept = self._connection is not None
        reason = await self._ask_once()
        return await self._ask_once() if kept and reason is not None else reason

    async def _ask_once(self) -> str | None:
        failure = None
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                failure = await self._connect()
                if self._connection is not None:
                    answer = await self._serves(self._connection)
                else:
                    answer = await self._ask_on_a_pool()
                if answer:
                    self._tell_failure(failure)
                    return None
                reason = "it is a standby"
        except TimeoutError:
            reason = f"no answer within {CHECK_TIMEOUT_S:g} s"
        except PoolTimeout as error:
            reason = failure or str(error)
        except (psycopg.Error, OSError) as error:
            reason = sentence(error)
        await self._disconnect()
        return reason

    async def _ask_on_a_pool(self) -> bool:
        """Ask on a connection that is lent; waits for one while there are any."""
        attempts = POOL_ATTEMPTS
        while True:
            try:
                async with self._database.connection(self._database.read_pool) as connection:
                    return await self._serves(connection)
            except PoolTimeout:
                attempts -= 1
                if not attempts or not any(each.size for each in self._database.pools):
                    raise

    async def _serves(self, connection: Connection) -> bool:
        cursor = await connection.execute("select pg_is_in_recovery()")
        return await cursor.fetchone() == (False,) or self._read_only

    async def _connect(self) -> str | None:
        """Have a connection of its own; why none can be made, else None."""
        if self._connection is None:
            try:
                self._connection = await self._database.connect()
            except (psycopg.Error, OSError) as error:
                return sentence(error)
        return None

    def _tell_failure(self, reason: str | None) -> None:
        """Say once that the node lives on the connections that it has."""
        if reason is not None and self._failure is None:
            _LOG.warning("database_connection_failed", reason=reason)
        self._failure = reason

    def _tell(self, reason: str | None) -> None:
        up = reason is None
        if up == self._up:
            if reason is not None:
                self._tell_again(reason)
            return
        self._up = up
        if up:
            failed = self._database.failed_connections - self._failed_before
            away_s = round(time.monotonic() - self._away_since_s, 1)
            _LOG.info("database_back", away_s=away_s, failed_connections=failed)
        else:
            self._away_since_s, self._tell_from_s = time.monotonic(), REASON_REST_S
            self._failed_before, self._reason = self._database.failed_connections, reason
            _LOG.warning("database_away", reason=reason)
        self._on_change(up)

    def _tell_again(self, reason: str) -> None:
        """Say that it is away for another reason, as in a failover; ever less often."""
        away_s = time.monotonic() - self._away_since_s
        if reason == self._reason or away_s < self._tell_from_s:
            return
        self._reason, self._tell_from_s = reason, 2 * away_s
        _LOG.warning("database_still_away", reason=reason, away_s=round(away_s, 1))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()
