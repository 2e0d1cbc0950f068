"""Joins the database's side of the node to what its gRPC side consumes.

The one place that knows the constructors of both. Everything is closed by the stack that it was
opened on, in the reverse order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.config.node import NodeConfig
from store.db.commits.feed import DatabaseFeed, follow_cursors
from store.db.maintenance.maintainer import Maintainer
from store.db.maintenance.online import DatabaseOnlineTimes
from store.db.pool import Database, Guard, PoolSettings
from store.db.reading.reader import DatabaseReader
from store.db.reconciliation.stored_ids import DatabaseIds
from store.db.schema.partitions import PartitionMap
from store.db.sds.missing import DatabaseMissingParents
from store.db.sds.reader import DatabaseSdsReader
from store.db.summaries.statements import DatabaseStatements
from store.db.writing.tracking import Tracking
from store.db.writing.unread import UnreadEvents
from store.db.writing.writer import DatabaseWriter
from store.domain.commits import CommitRow, WrittenIds
from store.domain.hub import Place
from store.domain.ports import Services, Source
from store.domain.retention import RetentionPolicy
from store.gossip.driver.driver import GossipDriver
from store.messages.conflicts import Conflict
from store.messages.record import RecordBatch
from store.observe.logging import get_logger
from store.observe.metrics import Metrics, total
from store.runtime.disk import DiskSpace
from store.runtime.environment import system_environment
from store.runtime.heard import HeardTopics
from store.runtime.limits import MAX_CLOCK_LEAD_NS
from store.sync.coverage import Coverage, StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.index.views import IndexedReconcilable
from storenode.message.limits import NS_PER_S

if TYPE_CHECKING:
    from store.observe.tracing import Tracing

_LOG = get_logger("store.runtime.services")
_NS_PER_MS = 1_000_000
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
class Wiring:
    """The parts that work on the database, running.

    ``listeners`` hear of every commit; more may be appended while the feed runs.
    """

    database: Database
    services: Services
    maintainer: Maintainer
    feed: DatabaseFeed
    reconcilable: IndexedReconcilable
    unread: UnreadEvents
    tracking: Tracking | None
    listeners: list[HotIndex | GossipDriver]
    statements: StatementBuffer
    online: DatabaseOnlineTimes
    coverage: Coverage
    missing_parents: DatabaseMissingParents
    heard: HeardTopics


async def open_wiring(
    stack: AsyncExitStack,
    config: NodeConfig,
    url: str,
    metrics: Metrics,
    tracing: Tracing | None,
    *,
    guard: Guard | None,
    disk: DiskSpace,
) -> Wiring:
    """Open the pools and start what lives on them.

    Raises:
        StoreUnavailable: The database does not serve.
    """
    sizes = config.write_connections, config.read_connections, config.bulk_connections
    database = await Database.open(url, PoolSettings(*sizes), guard)
    stack.push_async_callback(database.close)
    max_confirms = config.max_confirms if config.gossip else 0
    written_ids, unread = WrittenIds(), UnreadEvents(database, max_confirms)
    # Also without gossip: other nodes on the database ask their peers to confirm.
    tracking = None if config.read_only else Tracking(unread, max_confirms)
    partitions, heard = PartitionMap(time.time_ns, config.retention), HeardTopics()

    def stored(batch: RecordBatch, source: Source, new: int) -> None:
        heard.take(batch)
        metrics.count_stored(source, new)

    def conflicting(source: Source, conflict: Conflict) -> None:
        # A client is answered; what others send has no one else to notice it.
        if source is not Source.CLIENT:
            _LOG.warning("message_conflict", source=source.value, **conflict.fields())

    writer = DatabaseWriter(
        database,
        partitions,
        written_ids=written_ids,
        tracking=tracking,
        tracing=tracing,
        space=disk,
        on_stored=stored,
        on_conflict=conflicting,
    )
    if not config.read_only:
        await writer.start()
        stack.push_async_callback(writer.stop)
    ids = DatabaseIds(database)
    hot = HotIndex(
        ids,
        written_ids,
        system_environment("store.sync.index", metrics),
    )
    listeners: list[HotIndex | GossipDriver] = [hot]

    def committed(commits: Sequence[CommitRow]) -> None:
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
    await feed.start()
    stack.push_async_callback(feed.stop)
    hot.start()
    stack.push_async_callback(hot.stop)
    reader = DatabaseReader(database, lambda: feed.counted)
    services = Services(writer, reader, feed, DatabaseSdsReader(database), follow_cursors(database))
    maintainer = _maintainer(config, database, metrics)
    reconcilable = IndexedReconcilable(ids, hot)
    statements = StatementBuffer(DatabaseStatements(database))
    stack.push_async_callback(statements.flush)
    return Wiring(
        database,
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
        heard,
    )


def _feed_failed(error: Exception) -> None:
    _LOG.error("feed_failed", exc_info=error)


def maintenance_events(metrics: Metrics) -> Callable[..., None]:
    """Log and count what maintenance tells; of an outage of the database at most one event."""
    told_of = 0.0

    def note(name: str, /, **fields: object) -> None:
        nonlocal told_of
        if name == "maintenance_disconnected" and not total(metrics.database_up, ""):
            outage = total(metrics.database_events, event={"away"})
            if told_of == outage:
                return
            told_of = outage
        metrics.maintenance_events.labels(name).inc()
        write = _LOG.info if name in _ROUTINE_EVENTS else _LOG.warning
        write(name, **fields)

    return note


def _maintainer(config: NodeConfig, database: Database, metrics: Metrics) -> Maintainer:
    return Maintainer(
        database.connect,
        RetentionPolicy(config.retention, config.retention_size, config.retention_requires_archive),
        now_ns=time.time_ns,
        on_event=maintenance_events(metrics),
        interval_s=config.retention_interval / NS_PER_S,
        lock_timeout_ms=max(1, config.retention_lock_timeout // _NS_PER_MS),
        max_lead_ns=MAX_CLOCK_LEAD_NS,
        steady_ns=time.monotonic_ns,
        last_online_ns=database.last_online_ns,
    )
