"""The maintenance of a database: partitions, retention, sums, indexes; by one node at a time.

    waiting  --lock obtained-->      in charge: a round at once and every interval,
                                     and between rounds summaries are folded, and beside them
                                     an index is rebuilt
    any      --connection lost-->    reconnecting, with backoff --> waiting

The lock belongs to the session, so it passes to another node when this one, or its connection,
goes away. A node whose clock runs ahead of the database's goes by that: it would take what is new
for old, and drop it. Both clocks may be wrong, above all when they are one, so retention does not
follow a leap of the clock before it has lasted (`store.domain.retention`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from store.db.buckets import fold, is_pending, seal
from store.db.condition import find_bloated, rebuild
from store.db.connection import Connection, fetch_row, fetch_rows
from store.db.errors import sentence
from store.db.feed import newest
from store.db.locks import MAINTENANCE
from store.db.partitions import ensure_ahead, read_catalog
from store.db.retention import prune
from store.db.statements import FINE_TABLE, SQL
from store.domain.hub import START
from store.domain.retention import (
    MAX_DOUBT_NS,
    Reading,
    RetentionClock,
    RetentionPolicy,
    effective_age_ns,
)
from storenode.common.backoff import Backoff
from storenode.message.limits import NS_PER_S

FOLD_INTERVAL_S: Final = 2.0
"""The interval at which new deltas of the summaries are folded."""

FIRST_BACKOFF_S: Final = 0.5
LONGEST_BACKOFF_S: Final = 30.0


RETENTION: Final = "retention"
"""The task that fails while expired partitions cannot be dropped."""


class Maintainer:
    """Runs the maintenance while it is this node's turn.

    ``connect`` opens a connection in autocommit mode that is used for nothing else, and a second
    one while an index is rebuilt, which takes long and must not delay the rest; ``policy`` returns
    the limits of retention as they are now; ``now_ns`` is a clock in nanoseconds since the epoch,
    of which ``max_lead_ns`` says how far ahead of the database's it may be. ``steady_ns`` is a
    clock that is never set, by which leaps of the other are noticed. ``last_online_ns``: when the
    store was last online before this start (0: never). ``commits`` is set when there may be new
    ones. Events: ``maintenance_taken``, ``partition_dropped``, ``retention_problem``,
    ``index_rebuilt``, ``clock_doubted``, ``retention_waits``, ``clock_believed``,
    ``maintenance_failed``, ``maintenance_disconnected``.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        policy: Callable[[], RetentionPolicy],
        *,
        now_ns: Callable[[], int],
        steady_ns: Callable[[], int],
        on_event: Callable[..., None],
        interval_s: float,
        max_lead_ns: int,
        last_online_ns: int,
        commits: asyncio.Event,
    ) -> None:
        self._connect = connect
        self._policy = policy
        self._now_ns = now_ns
        self._on_event = on_event
        self._interval_s = interval_s
        self._max_lead_ns = max_lead_ns
        self._steady_ns = steady_ns
        self._last_online_ns = last_online_ns
        self._commits = commits
        self._made_at_ns = steady_ns()
        self._rebuilt: set[str] = set()
        self._rebuilding: asyncio.Task[None] | None = None
        self._clock: RetentionClock | None = None
        self._doubted = False
        self._is_waiting = False
        self._in_charge = False
        self._failing: set[str] = set()
        self._tasks = (self._prune, self._ensure_ahead, self._seal, self._rebuild)
        self.rounds = 0

    @property
    def in_charge(self) -> bool:
        """True while this node holds the lock."""
        return self._in_charge

    @property
    def failing(self) -> frozenset[str]:
        """The tasks whose last attempt failed; empty while another node has the lock."""
        return frozenset(self._failing if self._in_charge else ())

    @property
    def is_clock_wrong(self) -> bool:
        """True while retention does not follow the clock, which may be wrong."""
        return self._in_charge and self._doubted and not self._is_waiting

    async def run(self) -> None:
        """Run until cancelled; errors of the database are events, and end nothing."""
        backoff = Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        while True:
            try:
                async with await self._connect() as connection:
                    backoff.reset()
                    await self._serve(connection)
            except psycopg.Error as error:
                self._on_event(
                    "maintenance_disconnected", error=sentence(error), retry_in_s=backoff.pause_s
                )
            finally:
                await self._yield_charge()
            await asyncio.sleep(backoff.take())

    async def _serve(self, connection: Connection) -> None:
        while not self._in_charge:
            lock = await fetch_row(connection, SQL.partitions.try_lock, (MAINTENANCE,))
            self._in_charge = lock == (True,)
            if not self._in_charge:
                await asyncio.sleep(self._interval_s)
        self._on_event("maintenance_taken")
        while True:
            await self.round(connection)
            await self._fold_meanwhile(connection)

    async def _fold_meanwhile(self, connection: Connection) -> None:
        """Fold what comes, until the next round is due."""
        clock = asyncio.get_running_loop().time
        next_round = clock() + self._interval_s

        async def fold_all() -> None:
            if await is_pending(connection):
                while await fold(connection) is not None and clock() < next_round:
                    pass

        while clock() < next_round:
            self._commits.clear()
            await self._attempt(connection, "fold", fold_all())
            if not self._failing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_round - FOLD_INTERVAL_S):
                        await self._commits.wait()
            await asyncio.sleep(min(next_round - clock(), FOLD_INTERVAL_S))

    async def round(self, connection: Connection) -> None:
        """Run all maintenance once; what fails keeps nothing else from being done.

        Raises:
            psycopg.Error: the connection is lost.
        """
        now_ns = await self._time(connection)
        for task in self._tasks:
            await self._attempt(connection, task.__name__.strip("_"), task(connection, now_ns))
        self.rounds += 1

    async def _attempt(self, connection: Connection, task: str, work: Awaitable[None]) -> None:
        try:
            await work
            self._failing.discard(task)
        except psycopg.Error as error:
            if connection.broken or connection.closed:
                raise
            self._fail(task, sentence(error))
        except ValueError as error:
            self._fail(task, str(error))

    def _fail(self, task: str, error: str) -> None:
        self._failing.add(task)
        self._on_event("maintenance_failed", task=task, error=error)

    async def _time(self, connection: Connection) -> int:
        clock_ns, steady_ns = self._now_ns(), self._steady_ns()
        database_clock_ns = await database_ns(connection)
        if clock_ns > database_clock_ns + self._max_lead_ns:
            clock_ns = database_clock_ns
        starts = self._clock is None
        if self._clock is None:
            self._clock = RetentionClock(await newest_commit_ns(connection), steady_ns)
        reading = self._clock.read(clock_ns, steady_ns)
        if reading.doubted and not self._doubted:
            absent_ns = clock_ns - self._last_online_ns - (steady_ns - self._made_at_ns)
            if starts and await newest(connection) == START:
                absent_ns = 0  # no node has ever served this store
            name, problem = _doubt(reading, absent_ns if starts else None)
            self._is_waiting = name == "retention_waits"
            self._on_event(name, problem=problem)
        if self._doubted and not reading.doubted:
            self._on_event("clock_believed")
        self._doubted = reading.doubted
        return reading.time_ns

    async def _prune(self, connection: Connection, now_ns: int) -> None:
        report = await prune(connection, self._policy(), now_ns)
        for drop in report.dropped:
            self._on_event(
                "partition_dropped",
                partition=drop.partition.name,
                reason=drop.reason.value,
                bytes=drop.partition.size_bytes,
                horizon_ns=report.horizon_ns,
            )
        for problem in report.problems:
            self._on_event("retention_problem", problem=problem)
        self._failing.discard(RETENTION)
        if report.problems:
            self._failing.add(RETENTION)

    async def _ensure_ahead(self, connection: Connection, now_ns: int) -> None:
        fine = (await read_catalog(connection, with_sizes=True)).of(FINE_TABLE)
        await ensure_ahead(connection, now_ns, effective_age_ns(fine, self._policy(), now_ns))

    async def _seal(self, connection: Connection, now_ns: int) -> None:
        await seal(connection, now_ns)

    async def _rebuild(self, connection: Connection, now_ns: int) -> None:
        """Begin to rebuild an index, unless one is being rebuilt; each once by this process."""
        if self._rebuilding is not None and not self._rebuilding.done():
            return
        found = await find_bloated(connection, now_ns, self._rebuilt)
        if found is not None:
            self._rebuilt.add(found)
            self._rebuilding = asyncio.create_task(self._rebuild_beside(found))

    async def _rebuild_beside(self, index: str) -> None:
        try:
            async with await self._connect() as connection:
                if await rebuild(connection, index):
                    self._on_event("index_rebuilt", index=index)
        except psycopg.Error as error:
            self._on_event("maintenance_failed", task="rebuild", error=sentence(error))

    async def _yield_charge(self) -> None:
        """End what only the node in charge may do."""
        self._in_charge = False
        if self._rebuilding is not None:
            self._rebuilding.cancel()
            await asyncio.gather(self._rebuilding, return_exceptions=True)
            self._rebuilding = None


def _doubt(reading: Reading, absent_ns: int | None) -> tuple[str, str]:
    """Name and text of the event that a doubt is.

    ``absent_ns``: for how long a node that starts was off, by its clock; None: the clock has leapt
    while the node ran. From the newest commit alone a stop and a leap look the same, so a short
    absence raises no alarm.
    """
    seconds = reading.ahead_ns // NS_PER_S
    if absent_ns is not None and absent_ns <= MAX_DOUBT_NS:
        problem = (
            f"the newest commit, or an empty store, is {seconds} s old: retention goes by the"
            " clock when it has been steady for as long, or for a day"
        )
        return "retention_waits", problem
    problem = (
        f"the clock is {seconds} s further than the time that has passed since it was last seen"
        " right: retention follows it when it has been steady for as long, or for a day"
    )
    return "clock_doubted", problem


async def newest_commit_ns(connection: Connection) -> int:
    """Return the time of the newest commit, or of the first upgrade, which is certainly over.

    In nanoseconds since the epoch, by the clock of the server as it was then.
    """
    ((time_ns,),) = await fetch_rows(connection, SQL.commits.read_newest_time)
    return int(time_ns)


async def database_ns(connection: Connection) -> int:
    """Return the clock of the database's server, in nanoseconds since the epoch."""
    ((time_ns,),) = await fetch_rows(connection, SQL.partitions.read_clock)
    return int(time_ns)
