"""The write canary: a small commit every few seconds, by the way that a publish takes.

It fails where publishing would: the writer's queue is full, no connection is free, a lock is held,
the disk is full, a synchronous standby is away, the server is read-only. While messages are
committed it has nothing to do, since each commit shows the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg
from prometheus_client import Gauge
from psycopg_pool import PoolTimeout

from store.db.errors import NO_CONNECTION, Failure, find_failure, sentence
from store.db.locks import read_stall
from store.db.pool import Database
from store.domain.ports import StoreBusy, StoreUnavailable
from store.observe.logging import get_logger

_LOG = get_logger("store.runtime.canary")

CANARY_INTERVAL_S: Final = 10.0
"""A commit so long after the last one."""

CANARY_RETRY_S: Final = 0.5
"""The pause after one that failed."""

CAUSE_INTERVAL_S: Final = 2.5
"""How often the cause is looked for while one is under way."""

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
        except (psycopg.Error, PoolTimeout) as error:
            failure = find_failure(error)
            if failure is None:
                failure = Failure((), "", f"the database refuses a small write: {sentence(error)}")
            cause = str(self._database.unavailable(failure))
        except (StoreUnavailable, StoreBusy) as error:
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
        except StoreUnavailable as error:
            return str(error)
        if found is None and database.connect_failure is not None:
            found = database.connect_failure.sentence
        if found is None and database.write_pool.get_stats().get("requests_waiting"):
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
