"""Composition of the services on the database, and the policy for messages of clients.

Everything is closed by the stack that it was
opened on, in the reverse order.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from store.config.node import NodeConfig
from store.db.commits.feed import DatabaseFeed, follow_cursors
from store.db.maintenance.brake import RetentionBrake
from store.db.maintenance.maintainer import Maintainer
from store.db.maintenance.online import DatabaseOnlineTimes
from store.db.pool import Database, Guard, PoolSettings
from store.db.reading.reader import DatabaseReader
from store.db.reconciliation import DatabaseIds
from store.db.schema.partitions import PartitionMap
from store.db.sds.missing_parents import DatabaseMissingParents
from store.db.sds.reader import DatabaseSdsReader
from store.db.summaries.statements import DatabaseStatements
from store.db.writing.unread import ConfirmationTracker, UnreadRows
from store.db.writing.writer import DatabaseWriter
from store.domain.environment import Environment
from store.domain.hub import CommitRow, Place, WrittenIds
from store.domain.ports import PUBLISHED, Services, Source
from store.domain.quota import ClientLimits
from store.domain.retention import RetentionPolicy
from store.gossip.driver.driver import GossipDriver
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from store.observe.clocks import ClockComparison
from store.observe.logging import get_logger
from store.observe.metrics import Metrics, total
from store.runtime.resources import DiskSpace
from store.runtime.tasks import finish
from store.sync.coverage import Coverage, StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.index.views import IndexedReconcilable
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy

_LOG = get_logger("store.runtime.services")

MAX_CLOCK_LEAD_NS: Final = 3_600 * NS_PER_S
"""A node whose clock is further ahead of the database's drops nothing: what is new looks old."""


def client_limits(config: NodeConfig) -> ClientLimits:
    """Return the limits of a client for which the token file sets none."""
    return ClientLimits(
        requests_per_s=config.max_requests_per_second,
        messages_per_s=config.max_messages_per_second,
        calls=config.max_calls,
        streams=config.max_streams,
    )


class PolicySource:
    """The policy for messages of clients, whose retention horizon moves with the clock.

    `set_horizon` notes up to when the database has dropped messages, which a node with a longer
    retention, or none, must respect too.
    """

    def __init__(self, config: NodeConfig, now_ns: Callable[[], int]) -> None:
        limits = config.retention, config.retention_size, config.retention_requires_archive
        self.brake = RetentionBrake(RetentionPolicy(*limits), confirmed=config.retention_confirm)
        self._config = config
        self._now_ns = now_ns
        self._dropped_ns = 0

    def set_horizon(self, horizon_ns: int) -> None:
        """Admit nothing below the horizon of the store, which an operator may have lowered."""
        self._dropped_ns = horizon_ns

    @property
    def retention_ns(self) -> int | None:
        """The age at which messages are dropped; None: none are, by age."""
        return self.brake.policy.age_ns

    def shortfall_ns(self) -> int:
        """Return for how long before the horizon messages are missing that retention keeps.

        0 with a limit on size, which drops what the limit on age would keep.
        """
        if self.brake.policy.size_bytes is not None:
            return 0
        age_ns = self.retention_ns
        return max(0, self._dropped_ns - (0 if age_ns is None else self._now_ns() - age_ns))

    async def settle_retention(self, database: Database, metrics: Metrics) -> None:
        """Settle the brake, show what it holds, and log where that has changed.

        Raises:
            StoreUnavailable: The database does not serve.
        """
        before = self.brake.excess
        await database.read(self.brake.settle, self._now_ns())
        excess = self.brake.excess
        metrics.retention_overdue_days.set(0 if excess is None else excess.days)
        metrics.retention_overdue_ratio.set(0 if excess is None else excess.share)
        if excess is not None and before is None:
            _LOG.error(
                "retention_held",
                days=round(excess.days, 1),
                partitions=len(excess.partitions),
                bytes=excess.size_bytes,
                share=round(excess.share, 3),
                reason="--retention or --retention-size would drop more than the store has agreed"
                " to: correct the option, or confirm it by `storenode db retention --apply`",
            )
        elif excess is None and before is not None:
            _LOG.info("retention_released")

    def current(self) -> Policy:
        """Return the policy as it is now."""
        config = self._config
        horizon_ns, age_ns = self._dropped_ns, self.brake.policy.age_ns
        if age_ns is not None:
            horizon_ns = max(horizon_ns, self._now_ns() - age_ns)
        return Policy(
            max_drift_ns=config.max_clock_drift,
            horizon_ns=horizon_ns or None,
            cluster=config.cluster,
            shards=config.shard,
            max_message_bytes=config.max_message_size,
        )


RETENTION_LOCK_TIMEOUT_MS: Final = 250
"""How long a drop may wait for locks, which blocks other queries, before it gives up."""
_ROUTINE_EVENTS = frozenset(
    {
        "maintenance_taken",
        "partition_dropped",
        "partitions_analyzed",
        "index_rebuilt",
        "retention_waits",
        "clock_believed",
    }
)


@dataclass(frozen=True, slots=True)
class NodeBase:
    """The options and tools that the parts of a node share; ``stack`` takes the parts apart."""

    stack: AsyncExitStack
    config: NodeConfig
    metrics: Metrics
    policy: PolicySource
    clocks: ClockComparison


@dataclass(frozen=True, slots=True)
class Wiring:
    """The parts that work on the database, running.

    ``listeners`` get every commit; more may be appended while the feed runs.
    """

    database: Database
    writer: DatabaseWriter
    services: Services
    maintainer: Maintainer
    feed: DatabaseFeed
    reconcilable: IndexedReconcilable
    unread: UnreadRows
    tracking: ConfirmationTracker | None
    listeners: list[HotIndex | GossipDriver]
    statements: StatementBuffer
    online: DatabaseOnlineTimes
    coverage: Coverage
    missing_parents: DatabaseMissingParents


async def open_wiring(base: NodeBase, url: str, guard: Guard | None, disk: DiskSpace) -> Wiring:
    """Open the pools and start what lives on them.

    Raises:
        StoreUnavailable: The database does not serve.
    """
    stack, config, metrics, policy = base.stack, base.config, base.metrics, base.policy
    database = await Database.open(url, PoolSettings(*config.pool_sizes), guard)
    stack.push_async_callback(database.close)
    if not config.read_only:
        await policy.settle_retention(database, metrics)
    max_confirms = config.max_confirms if config.gossip else 0
    written_ids, unread = WrittenIds(), UnreadRows(database, max_confirms)
    # Also without gossip: other nodes on the database ask their peers to confirm.
    tracking = None if config.read_only else ConfirmationTracker(unread, max_confirms)
    ids = DatabaseIds(database)
    partitions = PartitionMap(time.time_ns, policy.retention_ns)

    def stored(_batch: RecordBatch, source: Source, new: int) -> None:
        metrics.count_stored(source, new)

    def conflicting(source: Source, conflict: Conflict) -> None:
        # A client is answered; what others send has no one else to notice it.
        if source not in PUBLISHED:
            _LOG.warning("message_conflict", source=source.value, **conflict.fields())

    hot = HotIndex(
        ids,
        written_ids,
        system_environment("store.sync.index", metrics),
    )
    listeners: list[HotIndex | GossipDriver] = [hot]

    news = asyncio.Event()

    def committed(commits: Sequence[CommitRow]) -> None:
        if commits:
            news.set()
        for listener in listeners:
            listener.commits(commits)

    def lost(reached: Place, left: Place) -> None:
        _LOG.error("commits_lost", reached=reached[0], newest=left[0])
        metrics.database_events.labels("commits_lost").inc()
        for listener in listeners:
            listener.lost()

    feed = DatabaseFeed(
        database,
        on_lost=lost,
        on_failed=_feed_failed,
        on_commits=committed,
        read_only=config.read_only,
    )
    writer = DatabaseWriter(
        database,
        partitions,
        written_ids=written_ids,
        tracking=tracking,
        feed=feed,
        is_disk_full=disk.is_full,
        on_stored=stored,
        on_conflict=conflicting,
    )
    if not config.read_only:
        await writer.start()
        stack.push_async_callback(writer.stop)
    await feed.start()
    stack.push_async_callback(feed.stop)
    hot.start()
    stack.push_async_callback(hot.stop)
    reader = DatabaseReader(database)
    services = Services(writer, reader, feed, DatabaseSdsReader(database), follow_cursors(database))
    maintainer = _maintainer(base, database, news)
    reconcilable = IndexedReconcilable(ids, hot)
    statements = StatementBuffer(DatabaseStatements(database))
    stack.push_async_callback(finish, statements.flush)
    return Wiring(
        database,
        writer,
        services,
        maintainer,
        feed,
        reconcilable,
        unread,
        tracking,
        listeners,
        statements,
        DatabaseOnlineTimes(database),
        Coverage(reconcilable, statements, ids),
        DatabaseMissingParents(database),
    )


def _feed_failed(error: Exception) -> None:
    _LOG.error("feed_failed", exc_info=error)


def maintenance_events(metrics: Metrics) -> Callable[..., None]:
    """Return a function that logs and counts events; of one outage at most one."""
    counted_outage = 0.0

    def note(name: str, /, **fields: object) -> None:
        nonlocal counted_outage
        if name == "maintenance_disconnected" and not total(metrics.database_up):
            outage = total(metrics.database_events, event={"away"})
            if counted_outage == outage:
                return
            counted_outage = outage
        metrics.maintenance_events.labels(name).inc()
        write = _LOG.info if name in _ROUTINE_EVENTS else _LOG.warning
        write(name, **fields)

    return note


def _maintainer(base: NodeBase, database: Database, commits: asyncio.Event) -> Maintainer:
    return Maintainer(
        database.connect,
        lambda: base.policy.brake.policy,
        now_ns=time.time_ns,
        on_event=maintenance_events(base.metrics),
        interval_s=base.config.maintenance_interval / NS_PER_S,
        lock_timeout_ms=RETENTION_LOCK_TIMEOUT_MS,
        max_lead_ns=MAX_CLOCK_LEAD_NS,
        steady_ns=time.monotonic_ns,
        last_online_ns=database.last_online_ns,
        commits=commits,
    )


def system_environment(component: str, metrics: Metrics) -> Environment:
    """Return the clocks of the system, its randomness, and a log that names the component."""
    return Environment(
        now_ns=time.time_ns,
        steady_ns=time.monotonic_ns,
        random=random.SystemRandom(),
        log=get_logger(component),
        counts=metrics,
    )
