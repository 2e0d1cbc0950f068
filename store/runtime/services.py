"""Composition of a node: what works on its database, what exchanges messages with peers, gossip.

`NodeParts` opens them from top to bottom. Everything is closed by the stack that it was opened on,
in the reverse order.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from store.config.node import NodeConfig
from store.db.coverage import DatabaseOnlineTimes, DatabaseStatements
from store.db.feed import DatabaseFeed, follow_cursors
from store.db.gossip import MAX_NEEDED, ConfirmationTracker, GossipReads, UnreadRows
from store.db.maintainer import Maintainer
from store.db.messages import DatabaseReader, TransferReader
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.primary import PrimaryGuard
from store.db.reconciliation import DatabaseIds
from store.db.sds import DatabaseSdsReader, count_missing_parents
from store.db.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.coverage import Coverage
from store.domain.environment import Environment
from store.domain.hub import CommitRow, Place, WrittenIds
from store.domain.ports import PUBLISHED, NotServingError, PeerAddress, Services, Source
from store.domain.unread import Confirmations, GossipPeerState
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase
from store.gossip.events import GossipCount, GossipCounter
from store.gossip.machine import Gossip
from store.messages.conflicts import Conflict
from store.observe.clocks import ClockComparison
from store.observe.logging import get_logger
from store.observe.metrics import Metrics, total
from store.rpc.gossip import GossipTransport
from store.rpc.peer_calls import PeerConnector, PeerReader
from store.runtime.listeners import tls_files
from store.runtime.peer_states import PeerStates
from store.runtime.policy import PolicySource
from store.runtime.resources import DiskSpace
from store.runtime.tasks import finish
from store.serving.context import NodeIdentity
from store.serving.tasks import BackgroundTasks
from store.sync.coverage import StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.index.views import IndexedReconcilable
from store.sync.limits import TransferLimits
from store.sync.lookup import Fetcher
from store.sync.resume import SHORTEST_GAP_NS, ResumeConfig, Resumer
from store.sync.schedule import ScheduleConfig, Synchronizer
from store.sync.session.exchange import Exchange, ExchangeWork
from store.sync.transfer.transfer import TransferWork
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.services")

MAX_CLOCK_LEAD_NS: Final = 3_600 * NS_PER_S
"""A node whose clock is further ahead of the database's drops nothing: what is new looks old."""

RETENTION_LOCK_TIMEOUT_MS: Final = 250
"""How long a drop may wait for locks, which blocks other queries, before it gives up."""

WIDE_INTERVALS: Final = 12
"""The whole history is reconciled once in so many sync intervals."""

UNREAD_INTERVAL_S: Final = 600.0
"""How often a node without gossip deletes unread events that nobody waits for."""

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


class NodeParts:
    """The parts of a node; each method opens what the next one needs.

    ``sessions`` is for sessions that peers begin, ``synchronizer`` for those that this node begins.
    ``gossip``: None where it is switched off, or the node only reads.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        config: NodeConfig,
        metrics: Metrics,
        policy: PolicySource,
        clocks: ClockComparison,
    ) -> None:
        self._stack = stack
        self.config = config
        self.metrics = metrics
        self.policy = policy
        self.clocks = clocks
        self.gossip: GossipDriver | None = None
        self.transport: GossipTransport | None = None
        self.confirmations: Confirmations | None = None
        self._listeners: list[HotIndex | GossipDriver] = []

    async def open_database(self, url: str, guard: PrimaryGuard | None, disk: DiskSpace) -> None:
        """Open the pools and start what lives on them.

        Raises:
            StoreUnavailableError: The database does not serve.
        """
        config, metrics, stack = self.config, self.metrics, self._stack
        database = self.database = await Database.open(url, PoolSettings(*config.pool_sizes), guard)
        stack.push_async_callback(database.close)
        if not config.read_only:
            await self.policy.settle_retention(database, metrics)
        max_confirms = config.max_confirms if config.gossip else 0
        written, commits = WrittenIds(), asyncio.Event()
        self.unread = UnreadRows(database, max_confirms)
        # Also without gossip: other nodes on the database ask their peers to confirm.
        self.tracking = ConfirmationTracker(self.unread, max_confirms)

        def committed(rows: Sequence[CommitRow]) -> None:
            if rows:
                commits.set()
            for listener in self._listeners:
                listener.commits(rows)

        self.feed = DatabaseFeed(
            database,
            on_lost=self._commits_lost,
            on_failed=_feed_failed,
            on_commits=committed,
            read_only=config.read_only,
        )
        self.writer = DatabaseWriter(
            database,
            PartitionMap(time.time_ns, self.policy.retention_ns),
            written_ids=written,
            tracking=None if config.read_only else self.tracking,
            feed=self.feed,
            is_disk_full=disk.is_full,
            on_stored=lambda _batch, source, new: metrics.count_stored(source, new),
            on_conflict=_note_conflict,
        )
        if not config.read_only:
            await self.writer.start()
            stack.push_async_callback(self.writer.stop)
        ids = DatabaseIds(database)
        index = HotIndex(ids, written, system_environment("store.sync.index", metrics))
        self._listeners.append(index)
        await self.feed.start()
        stack.push_async_callback(self.feed.stop)
        index.start()
        stack.push_async_callback(index.stop)
        self.services = Services(
            self.writer,
            DatabaseReader(database),
            self.feed,
            DatabaseSdsReader(database),
            follow_cursors(database),
        )
        self.reconcilable = IndexedReconcilable(ids, index)
        self.statements = StatementBuffer(DatabaseStatements(database))
        stack.push_async_callback(finish, self.statements.flush)
        self.coverage = Coverage(self.reconcilable, self.statements, ids)
        self.online = DatabaseOnlineTimes(database)
        self.missing_parents = lambda *asked: count_missing_parents(database, *asked)
        self.maintainer = Maintainer(
            database.connect,
            lambda: self.policy.brake.policy,
            now_ns=time.time_ns,
            on_event=maintenance_events(metrics),
            interval_s=config.maintenance_interval / NS_PER_S,
            lock_timeout_ms=RETENTION_LOCK_TIMEOUT_MS,
            max_lead_ns=MAX_CLOCK_LEAD_NS,
            steady_ns=time.monotonic_ns,
            last_online_ns=database.last_online_ns,
            commits=commits,
        )

    def _commits_lost(self, reached: Place, left: Place) -> None:
        _LOG.error("commits_lost", reached=reached[0], newest=left[0])
        self.metrics.database_events.labels("commits_lost").inc()
        for listener in self._listeners:
            listener.lost()

    def open_peers(self, identity: NodeIdentity) -> None:
        """Make what reconciles with peers, and fetches from them."""
        self.identity = identity
        config, metrics, stack = self.config, self.metrics, self._stack
        policy, writer = self.policy.current, self.services.writer
        peers = ((peer.address, peer.node_id or "") for peer in config.peer)
        self.peers = tuple(dict.fromkeys(PeerAddress(at.host, at.port, name) for at, name in peers))
        self.connector = PeerConnector(
            identity,
            tls_files(config, config.tls_ca),
            insecure="peer" in config.insecure,
            clocks=self.clocks,
        )
        states = PeerStates(
            self.peers,
            metrics,
            time.time_ns,
            connections=self.connector,
            is_scheduled=config.sync_interval > 0,
        )
        self.sessions = Exchange(
            ExchangeWork(
                node_id=identity.node_id,
                store_id=identity.store_id,
                cluster=config.cluster,
                shards=tuple(sorted(config.shard)),
                reconcilable=self.reconcilable,
                transfer=TransferWork(
                    reads=TransferReader(self.database),
                    writer=writer,
                    policy=policy,
                    observer=states,
                    environment=system_environment("store.sync.session", metrics),
                ),
                transfer_limits=TransferLimits(silence_ns=config.peer_silence),
                statements=self.statements,
            )
        )
        caller = PeerReader(self.connector, self.sessions)
        stack.push_async_callback(caller.close)
        lookup = system_environment("store.sync.lookup", metrics)
        self.synchronizer = Synchronizer(
            ScheduleConfig(
                peers=self.peers,
                interval_ns=config.sync_interval,
                range_ns=config.sync_range,
                offset_ns=config.sync_offset,
                wide_interval_ns=WIDE_INTERVALS * config.sync_interval,
            ),
            caller,
            states,
            Fetcher(caller, self.services.sds, writer, policy, lookup),
            system_environment("store.sync.schedule", metrics),
        )
        stack.push_async_callback(self.synchronizer.stop)
        # Without a schedule nothing else fetches what a short stop has missed.
        shortest_ns = SHORTEST_GAP_NS if config.sync_interval else 0
        self.resumer = Resumer(
            ResumeConfig(peers=self.peers, slack_ns=config.sync_offset, shortest_ns=shortest_ns),
            caller=caller,
            online=self.online,
            writer=writer,
            policy=policy,
            environment=system_environment("store.sync.resume", metrics),
            proceed=self.synchronizer.start,
            failed=states.failed,
        )
        stack.push_async_callback(self.resumer.stop)
        self.synchronizer.peers, self.synchronizer.resume = states.states, self.resumer.state

    def open_gossip(self) -> None:
        """Begin to exchange messages live."""
        config, stack, tasks = self.config, self._stack, BackgroundTasks()
        if config.read_only:
            return
        if not config.gossip:
            stack.push_async_callback(tasks.stop)
            tasks.start_every(UNREAD_INTERVAL_S, "unread events", self._sweep_unread)
            self.confirmations = SharedConfirmations(self.unread, self.tracking)
            return
        self.transport = GossipTransport(
            self.connector,
            lambda: Admission(self.policy.current(), time.time_ns(), Source.GOSSIP),
        )
        driver = self.gossip = GossipDriver(
            lambda: Gossip(self.identity.store_id, config.max_confirms),
            self.identity.node_id,
            self.peers,
            database=DriverDatabase(
                GossipReads(self.database),
                self.tracking,
                self.unread,
                partial(self.writer.store, source=Source.GOSSIP),
            ),
            connector=self.transport,
            environment=system_environment("store.gossip", self.metrics),
            count=partial(_count_gossip, self.metrics),
            max_needed=MAX_NEEDED,
        )
        self.confirmations = driver.waits
        stack.callback(driver.stop)
        stack.push_async_callback(tasks.stop)
        stack.callback(driver.close)
        self._listeners.append(driver)
        for name, work in driver.work():
            tasks.start(name, work)

    async def _sweep_unread(self) -> None:
        with suppress(NotServingError):
            await self.unread.sweep()

    def gossip_peers(self) -> Sequence[GossipPeerState]:
        """Return the peers with which messages are exchanged live."""
        return () if self.gossip is None else self.gossip.peers()


def _feed_failed(error: Exception) -> None:
    _LOG.error("feed_failed", exc_info=error)


def _note_conflict(source: Source, conflict: Conflict) -> None:
    # A client is answered; what others send has no one else to notice it.
    if source not in PUBLISHED:
        _LOG.warning("message_conflict", source=source.value, **conflict.fields())


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


class SharedConfirmations(ConfirmationWaits):
    """The confirmations of a node without gossip: other nodes on its database may have peers."""

    def __init__(self, unread: UnreadRows, tracking: ConfirmationTracker) -> None:
        self._unread = unread
        super().__init__(
            unread,
            reach=lambda: None,
            is_tracked=tracking.is_tracked,
            # The gossip of the others reads from the table what is asked for.
            want=lambda *_given: None,
            most_tracked=MAX_NEEDED,
        )

    async def _hopeless(
        self, lacking: set[bytes], stored: frozenset[bytes], min_confirms: int
    ) -> str:
        if not lacking or await self._is_shared():
            return await super()._hopeless(lacking, stored, min_confirms)
        with suppress(NotServingError):
            await self._unread.expire(sorted(lacking))
        return "this node exchanges no read confirmations"


def _count_gossip(metrics: Metrics, counted: GossipCount) -> None:
    match counted.what:
        case GossipCounter.REFUSED:
            counter = metrics.messages_rejected.labels(Source.GOSSIP.value, counted.reason)
        case GossipCounter.CONFLICTS:
            counter = metrics.conflicts.labels(Source.GOSSIP.value)
        case GossipCounter.BYTES_SENT:
            counter = metrics.gossip_bytes.labels("sent")
        case GossipCounter.BYTES_RECEIVED:
            counter = metrics.gossip_bytes.labels("received")
        case _:
            counter = metrics.gossip_events.labels(counted.what.value)
    counter.inc(counted.count)


def system_environment(component: str, metrics: Metrics) -> Environment:
    """Return the clocks of the system, its randomness, and a log that names the component."""
    return Environment(
        now_ns=time.time_ns,
        steady_ns=time.monotonic_ns,
        random=random.SystemRandom(),
        log=get_logger(component),
        count_intake=metrics.count_intake,
    )
