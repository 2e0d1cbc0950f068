"""A node: what it is made of, from top to bottom, and its life.

    starting --everything is up--> serving --stop()--> draining --calls have ended--> ended
    starting --stop()--> ended

Parts are closed in the reverse order of their opening: metrics listener, database, exchange with
peers, gossip, the other listeners, periodic work. The database may go away and come back meanwhile;
the node reports that it is not ready, and stays.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from store.config.node import NodeConfig
from store.db.coverage import DatabaseOnlineTimes, DatabaseStatements
from store.db.feed import DatabaseFeed, follow_cursors
from store.db.gossip import GossipReads, UnreadRows
from store.db.maintainer import Maintainer
from store.db.messages import DatabaseReader
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.reconciliation import DatabaseIds
from store.db.sds import DatabaseSdsReader, count_missing_parents
from store.db.writer import DatabaseWriter
from store.domain.admission import Admission
from store.domain.coverage import Coverage
from store.domain.environment import Environment
from store.domain.hub import CommitRow, OwnCommits, Place
from store.domain.ports import PUBLISHED, NotServingError, PeerAddress, Source
from store.domain.unread import Confirmations
from store.embedded.process import is_full_disk
from store.gossip.driver.confirmations import ConfirmationWaits
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase
from store.gossip.events import GossipCounter
from store.gossip.machine import Gossip
from store.messages.conflicts import Conflict
from store.observe.clocks import ClockComparison
from store.observe.http import METRICS_PATH, STATUS_DATA_PATH, MetricsListener
from store.observe.logging import get_logger, write_suppressed
from store.observe.metrics import ROUTINE_EVENTS, Metrics, total
from store.rpc.call import MAX_CALLERS, RpcContext
from store.rpc.gossip import GossipTransport
from store.rpc.peer_calls import PeerConnector
from store.runtime.database import ExternalHost, note_host
from store.runtime.embedded_host import EmbeddedHost
from store.runtime.health import NodeHealth, Obstacle
from store.runtime.listeners import Listeners, bind_listeners, listener_addresses, tls_files
from store.runtime.monitor import DatabaseMonitor, Outage, WriteCanary
from store.runtime.node_files import kept_node_id
from store.runtime.peer_states import PeerStates
from store.runtime.policy import (
    MAX_CLOCK_LEAD_NS,
    PolicySource,
    TokenFile,
    agree_on_retention,
    client_limits,
)
from store.runtime.preflight import file_checks, translate_errors
from store.runtime.resources import DiskSpace, map_large_blocks, trim_memory
from store.runtime.status import READ_TIMEOUT_S, NodeStatus
from store.serving.addresses import ListenerAddress, bind_error, require_free
from store.serving.answers import UnsentBudget
from store.serving.context import NodeIdentity
from store.serving.sockets import ConnectionLimiter
from store.serving.tasks import BackgroundTasks, Drain, Work, cancel
from store.serving.tls import first_dns_name
from store.sync import fetch
from store.sync.coverage import StatementBuffer
from store.sync.index.hot import HotIndex
from store.sync.limits import TransferLimits
from store.sync.schedule import ScheduleConfig, Synchronizer
from store.sync.session.exchange import Exchange, ExchangeWork
from storenode.cli.options.types import Address
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.node")

DRAIN_NOTICE_S: Final = 0.2
"""Time between reporting the end to those that watch the node's health, and ending their calls."""

LAST_WRITE_TIMEOUT_S: Final = 2.0
"""The time limit of each last write of a node that shuts down, after the calls have ended."""

WIDE_INTERVALS: Final = 12
"""The whole history is reconciled once in this many sync intervals."""


class NodeRuntime:
    """A node, made inside the event loop that runs it; `announce` is given the ready line.

    ``embedded`` is its database where the options name no other. `_start` opens its parts, each
    with what the next one needs. ``sessions`` is for sessions that peers begin, ``synchronizer``
    for those that this node begins. ``gossip``: None where it is off, or the node only reads.
    """

    def __init__(
        self,
        config: NodeConfig,
        version: str,
        announce: Callable[[str], None],
        embedded: EmbeddedHost | None,
    ) -> None:
        self.config = config
        self.version = version
        self._announce = announce
        self._ending = asyncio.Event()
        self._starting: asyncio.Task[Listeners] | None = None
        self.metrics = metrics = Metrics(version)
        self._status = NodeStatus(self)
        self.health = NodeHealth(metrics, self._status.read_process)
        self.clocks = ClockComparison(config.max_clock_drift)
        self.policy = PolicySource(config, time.time_ns)
        self.callers = BoundedDict[str, float](MAX_CALLERS)
        self._tokens = TokenFile(
            config.client_token_file,
            client_limits(config),
            lambda usable: metrics.token_file_broken.set(int(not usable)),
        )
        self._disk = DiskSpace(
            config.data_dir if config.database_url is None else None,
            config.min_free_disk,
            metrics,
            lambda full: self.health.set(Obstacle.SPACE, present=full),
        )
        self._host = embedded or ExternalHost(config, partial(note_host, metrics))
        if embedded is not None:
            embedded.on_event = self._host_event
        self._drain = Drain()
        self._monitor: DatabaseMonitor | None = None
        self.canary: WriteCanary | None = None
        self.gossip: GossipDriver | None = None
        self._gossip_calls: tuple[GossipDriver, GossipTransport] | None = None
        self._confirmations: Confirmations | None = None
        self._commit_listeners: list[HotIndex | GossipDriver] = []
        self.is_open = False
        """True once all parts are open."""

    async def run(self) -> None:
        """Start, serve until `stop` is called, drain, and close everything.

        Raises:
            NodeFailedError: The node could not start.
        """
        with translate_errors():
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._host.stop)
                starting = self._starting = asyncio.create_task(self._start(stack))
                try:
                    listeners = await starting
                except asyncio.CancelledError:
                    if not self._ending.is_set():
                        raise
                    _LOG.info("start_broken_off")
                else:
                    await self._ending.wait()
                    await self._end_calls(listeners)
        _LOG.info("ended")

    def stop(self) -> None:
        """Begin the end; `run` returns when all is closed."""
        self._ending.set()
        if self._starting is not None:
            self._starting.cancel()

    def reload(self) -> None:
        """Read again what may change while the node runs: the token file."""
        self._tokens.reload()

    # Starting

    async def _start(self, stack: AsyncExitStack) -> Listeners:
        config = self.config
        for check in file_checks(config, self._tokens):
            check()
        certified = None
        if config.tls_cert is not None and config.tls_key is not None:
            certified = first_dns_name(config.tls_cert, config.tls_key)
        metrics_address = await self._open_metrics(stack)
        for option, address in listener_addresses(config).items():
            if option != "--metrics-listen":  # which is open already
                require_free(address)
        url = await self._host.start()
        node_id = certified or kept_node_id(config.data_dir)
        await self._open_database(stack, url)
        store_id = str(UUID(bytes=self.database.store_id))
        self.identity = NodeIdentity(node_id, store_id, self.version, config.cluster)
        self._open_peers(stack)
        self._open_gossip(stack)
        self.is_open = True
        stack.push_async_callback(self._status.stop)
        await self._status.read_summary()
        context = self._context()
        listeners = bind_listeners(config, context)
        stack.push_async_callback(_stop_listeners, listeners, 0)
        for listener in set(listeners.values()):
            await listener.start()
        self._begin_work(stack, listeners, context)
        self.health.set(Obstacle.STARTING, present=False)
        self._tell_ready(listeners, metrics_address)
        return listeners

    async def _open_metrics(self, stack: AsyncExitStack) -> str:
        where, status = self.config.metrics_listen, self._status
        listener = MetricsListener(
            {METRICS_PATH: status.render_metrics, STATUS_DATA_PATH: status.render_page},
            lambda: self.health.unready,
            self.config.metrics_hosts,
        )
        try:
            port = await listener.open(where.host, where.port)
        except OSError as error:
            raise bind_error(ListenerAddress("--metrics-listen", where.host, where.port)) from error
        stack.push_async_callback(listener.close)
        return str(Address(where.host, port))

    async def _open_database(self, stack: AsyncExitStack, url: str) -> None:
        """Open the pools and what lives on them.

        Raises:
            StoreUnavailableError: The database does not serve.
        """
        config, metrics, guard = self.config, self.metrics, self._host.guard
        database = self.database = await Database.open(url, PoolSettings(*config.pool_sizes), guard)
        stack.push_async_callback(database.close)
        metrics.database_up.set(1)
        self._monitor = DatabaseMonitor(
            database,
            self._database_changed,
            read_only=config.read_only,
            on_time=None if config.database_url is None else self.clocks.note,
        )
        if not config.read_only:
            pool = database.write_pool
            await database.read(agree_on_retention, config, time.time_ns(), pool=pool)
        max_confirms = config.max_confirms if config.gossip else 0
        self._own, commits = OwnCommits(), asyncio.Event()
        # Also without gossip: other nodes on the database ask their peers to confirm.
        self.unread = UnreadRows(database, max_confirms)

        def committed(rows: Sequence[CommitRow]) -> None:
            if rows:
                commits.set()
            for listener in self._commit_listeners:
                listener.commits(rows)

        self.feed = DatabaseFeed(
            database,
            on_lost=self._commits_lost,
            on_failed=lambda error: _LOG.error("feed_failed", exc_info=error),
            on_commits=committed,
            read_only=config.read_only,
        )
        self.writer = DatabaseWriter(
            database,
            PartitionMap(time.time_ns, self.policy.retention_ns),
            own=self._own,
            unread=None if config.read_only else self.unread,
            feed=self.feed,
            is_disk_full=self._disk.is_full,
            on_stored=lambda _batch, source, new: metrics.messages_stored.labels(source).inc(new),
            on_conflict=_note_conflict,
        )
        if not config.read_only:
            await self.writer.start()
            stack.push_async_callback(self.writer.stop)
        ids = DatabaseIds(database)
        index_environment = system_environment("store.sync.index", metrics)
        index = self.index = HotIndex(ids, self._own, index_environment)
        self._commit_listeners.append(index)
        await self.feed.start()
        stack.push_async_callback(self.feed.stop)
        index.start()
        stack.push_async_callback(index.stop)
        self.reader, self.sds = DatabaseReader(database), DatabaseSdsReader(database)
        self._statements = StatementBuffer(DatabaseStatements(database))
        stack.push_async_callback(_finish, self._statements.flush)
        self.coverage = Coverage(index.open_view, self._statements, ids)
        self._online = DatabaseOnlineTimes(database)
        self.maintainer = Maintainer(
            database.connect,
            lambda: self.policy.retention,
            now_ns=time.time_ns,
            on_event=partial(_note_maintenance, metrics),
            interval_s=config.maintenance_interval / NS_PER_S,
            max_lead_ns=MAX_CLOCK_LEAD_NS,
            steady_ns=time.monotonic_ns,
            last_online_ns=database.last_online_ns,
            commits=commits,
        )
        if isinstance(self._host, ExternalHost) and guard is not None:
            stack.push_async_callback(self._host.keep)
            stack.push_async_callback(_finish, partial(self._host.end, database))

    def _open_peers(self, stack: AsyncExitStack) -> None:
        """Make what reconciles with peers, and fetches from them."""
        config, metrics, identity = self.config, self.metrics, self.identity
        policy, writer = self.policy.current, self.writer
        given = ((peer.address, peer.node_id or "") for peer in config.peer)
        peers = dict.fromkeys(PeerAddress(at.host, at.port, name) for at, name in given)
        self._peers = tuple(peers)
        self._connector = PeerConnector(
            identity,
            tls_files(config, config.tls_ca),
            insecure="peer" in config.insecure,
            clocks=self.clocks,
            silence_ns=config.peer_silence,
        )
        stack.push_async_callback(self._connector.close)
        states = self.peer_states = PeerStates(
            self._peers,
            metrics,
            time.time_ns,
            connections=self._connector,
            is_scheduled=config.sync_interval > 0,
        )
        self._sessions = Exchange(
            ExchangeWork(
                node_id=identity.node_id,
                store_id=identity.store_id,
                cluster=config.cluster,
                shards=tuple(sorted(config.shard)),
                index=self.index,
                reads=self.reader,
                writer=writer,
                policy=policy,
                observer=states,
                environment=system_environment("store.sync.session", metrics),
                transfer_limits=TransferLimits(silence_ns=config.peer_silence),
                statements=self._statements,
            )
        )
        stack.callback(self._sessions.close)
        self._recorder = fetch.OnlineRecorder(
            self._online, system_environment("store.sync.online", metrics)
        )
        lookups = system_environment("store.sync.lookup", metrics)
        work = fetch.FetchWork(self._connector, writer, policy, lookups)
        self.synchronizer = Synchronizer(
            ScheduleConfig(
                peers=self._peers,
                interval_ns=config.sync_interval,
                range_ns=config.sync_range,
                offset_ns=config.sync_offset,
                wide_interval_ns=WIDE_INTERVALS * config.sync_interval,
            ),
            self._connector,
            self._sessions,
            fetch.Fetcher(work, self.sds),
            system_environment("store.sync.schedule", metrics),
        )
        stack.push_async_callback(self.synchronizer.stop)
        # Without a schedule nothing else fetches what a short stop has missed.
        shortest_ns = fetch.SHORTEST_GAP_NS if config.sync_interval else 0
        self.resumer = fetch.Resumer(
            self._peers,
            replace(work, environment=system_environment("store.sync.resume", metrics)),
            self._recorder,
            slack_ns=config.sync_offset,
            shortest_ns=shortest_ns,
            proceed=self.synchronizer.start,
            failed=states.failed,
        )

    def _open_gossip(self, stack: AsyncExitStack) -> None:
        """Begin to exchange messages live."""
        config, tasks = self.config, BackgroundTasks()
        if config.read_only:
            return
        if not config.gossip:
            self._confirmations = SharedConfirmations(self.unread, GossipReads(self.database))
            return
        transport = GossipTransport(
            self._connector, lambda: Admission(self.policy.current(), time.time_ns(), Source.GOSSIP)
        )
        driver = self.gossip = GossipDriver(
            lambda count: Gossip(self.identity.store_id, config.max_confirms, count=count),
            self.identity.node_id,
            self._peers,
            database=DriverDatabase(
                GossipReads(self.database, self._own.body),
                self._own,
                self.unread.unread_hashes,
                self.unread,
                partial(self.writer.store, source=Source.GOSSIP),
            ),
            connector=transport,
            environment=system_environment("store.gossip", self.metrics),
            count=partial(_count_gossip, self.metrics),
        )
        self._gossip_calls, self._confirmations = (driver, transport), driver.waits
        stack.callback(driver.stop)
        stack.push_async_callback(tasks.stop)
        stack.callback(driver.close)
        self._commit_listeners.append(driver)
        for name, work in driver.work():
            tasks.start(name, work)

    def _context(self) -> RpcContext:
        read_only = self.config.read_only
        return RpcContext(
            identity=self.identity,
            writer=self.writer,
            reader=self.reader,
            feed=self.feed,
            sds=self.sds,
            cursors=follow_cursors(self.database),
            policy=self.policy.current,
            access=lambda: self._tokens.access,
            now_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
            health=self.health,
            state=self._status.state,
            metrics=self.metrics,
            answers=UnsentBudget(time.monotonic, self.config.max_unsent_size),
            drain=self._drain,
            exchange=self.synchronizer,
            sessions=None if read_only else self._sessions,
            gossip=self._gossip_calls,
            confirmations=self._confirmations,
            callers=self.callers,
            intake=self._online.overlapping,
            missing_parents=lambda *asked: count_missing_parents(self.database, *asked),
            coverage=self.coverage,
            read_only=read_only,
            clocks=self.clocks,
        )

    def _begin_work(self, stack: AsyncExitStack, listeners: Listeners, context: RpcContext) -> None:
        """Begin what runs until the end: checks, maintenance, exchange with peers, readings."""
        config, tasks, health, metrics = self.config, BackgroundTasks(), self.health, self.metrics
        condition = self._status.condition
        metrics.read_only.set(int(config.read_only))
        interval_s = config.sync_interval / NS_PER_S if config.peer else 0
        # Peers are chosen at random: with ten of them, one may wait for dozens of rounds.
        metrics.peer_silence_limit_seconds.set(3_600 + 10 * interval_s * len(config.peer))
        assert self._monitor is not None
        ports = {int(each.address.rpartition(":")[2]) for each in listeners.values()}
        limiter = ConnectionLimiter(ports, config.max_connections_per_host)
        work = {"database monitor": self._monitor.run, "unfinished requests": context.arrivals.run}
        # Seconds between two rounds of each work: requests read in between what the last one found.
        every: list[tuple[int, str, Callable[[], object]]] = [
            (5, "connections", limiter.enforce),
            (30, "telemetry", self._status.read_summary),
            (60, "condition", partial(condition.get, READ_TIMEOUT_S)),
            (10, "disk space", self._disk.look),
            (10, "problems", health.look),
            (10, "log summary", write_suppressed),
            (60, "memory", trim_memory),
        ]
        if isinstance(self._host, ExternalHost) and self._host.guard is not None:
            look_at_hosts = partial(self._host.look, self.database, metrics, health)
            every += [(2, "database hosts", look_at_hosts), (10, "newest commit", self._host.keep)]
        if config.client_token_file is not None:
            every.append((2, "token file", self._tokens.follow))
        if not config.read_only:
            self.canary = WriteCanary(
                self.database,
                self.writer.commit_canary,
                lambda: self.writer.committed_s,
                lambda reason: health.set(Obstacle.WRITES, reason is not None, reason),
            )
            # Records when the store is online, before it fetches what it has missed.
            self._recorder.begin()
            stack.push_async_callback(_finish, self._recorder.note)
            work |= {"write canary": self.canary.run, "maintainer": self.maintainer.run}
            work |= {"online": self._recorder.run, "resume": self.resumer.run}
            every.append((600, "unread events", self._sweep_unread))
        stack.push_async_callback(tasks.stop)
        map_large_blocks()
        for name, run in work.items():
            tasks.start(name, run)
        for interval_s, name, look in every:
            tasks.start_every(interval_s, name, look)

    async def _sweep_unread(self) -> None:
        with suppress(NotServingError):
            await self.unread.sweep()

    def _tell_ready(self, listeners: Listeners, metrics_address: str) -> None:
        ready = {
            **{name: each.address for name, each in listeners.items()},
            "metrics": metrics_address,
            "database": self._host.kind,
            "node_id": self.identity.node_id,
        }
        _LOG.info("serving", **ready)
        self._announce(json.dumps({"event": "ready", **ready}))

    # Ending

    async def _end_calls(self, listeners: Listeners) -> None:
        """Fail readiness probes, end endless calls, and drain the others until the timeout."""
        _LOG.info("draining")
        self.health.set(Obstacle.DRAINING, present=True)
        await asyncio.sleep(DRAIN_NOTICE_S)
        self._drain.begin()
        if self._confirmations is not None:
            self._confirmations.stop()
        await _stop_listeners(listeners, self.config.drain_timeout / NS_PER_S)

    # What happens meanwhile

    def _commits_lost(self, reached: Place, left: Place) -> None:
        _LOG.error("commits_lost", reached=reached[0], newest=left[0])
        self.metrics.database_events.labels("commits_lost").inc()
        self.unread.unread_hashes.clear()
        for listener in self._commit_listeners:
            listener.lost()

    def _database_changed(self, outage: Outage | None) -> None:
        is_up = outage is None
        if is_up != total(self.metrics.database_up):
            self.metrics.database_up.set(int(is_up))
            self.metrics.database_events.labels("back" if is_up else "away").inc()
        self.health.set(Obstacle.DATABASE, not is_up, outage and outage.sentence)

    def _host_event(self, name: str, reason: str) -> None:
        if self._monitor is None or self._ending.is_set():
            return
        self.metrics.database_events.labels(f"postgres_{name}").inc()
        if name == "exited":
            self.health.set(Obstacle.DISK, present=is_full_disk(reason))
            self._monitor.lost(reason)
            return
        if name == "restarted":
            self.health.set(Obstacle.DISK, present=False)
            self.database.move(self._host.url())
        self._monitor.check_now()


async def _stop_listeners(listeners: Listeners, grace_s: float) -> None:
    """Stop all servers together, so that their times of grace are one."""
    await asyncio.gather(*(each.stop(grace_s) for each in set(listeners.values())))


async def _finish(work: Work) -> None:
    """Await a last write, and give it up when its time has passed."""
    writing = asyncio.ensure_future(work())
    try:
        await asyncio.wait({writing}, timeout=LAST_WRITE_TIMEOUT_S)
    finally:
        await cancel({writing})
    if not writing.cancelled():
        writing.result()


def _note_conflict(source: Source, conflict: Conflict) -> None:
    # A client is answered; what others send has no one else to notice it.
    if source not in PUBLISHED:
        _LOG.warning("message_conflict", source=source.value, **conflict.fields())


def _note_maintenance(metrics: Metrics, name: str, /, **fields: object) -> None:
    metrics.maintenance_events.labels(name).inc()
    write = _LOG.info if name in ROUTINE_EVENTS else _LOG.warning
    write(name, **fields)


class SharedConfirmations(ConfirmationWaits):
    """The confirmations of a node without gossip: other nodes on its database may have peers."""

    def __init__(self, unread: UnreadRows, reads: GossipReads) -> None:
        super().__init__(
            unread,
            reads,
            reach=lambda: None,
            unread_hashes=unread.unread_hashes,
            # The gossip of the others reads from the table what is asked for.
            want=lambda *_given: None,
        )

    async def _hopeless(
        self, lacking: set[bytes], stored: frozenset[bytes], min_confirms: int
    ) -> str:
        if not lacking or await self._is_shared():
            return await super()._hopeless(lacking, stored, min_confirms)
        with suppress(NotServingError):
            await self._table.expire(sorted(lacking))
        return "this node exchanges no read confirmations"


def _count_gossip(metrics: Metrics, what: GossipCounter, number: int, reason: str) -> None:
    match what:
        case GossipCounter.REFUSED:
            counter = metrics.messages_rejected.labels(Source.GOSSIP.value, reason)
        case GossipCounter.CONFLICTS:
            counter = metrics.conflicts.labels(Source.GOSSIP.value)
        case GossipCounter.BYTES_SENT:
            counter = metrics.gossip_bytes.labels("sent")
        case GossipCounter.BYTES_RECEIVED:
            counter = metrics.gossip_bytes.labels("received")
        case _:
            counter = metrics.gossip_events.labels(what.value)
    counter.inc(number)


def system_environment(component: str, metrics: Metrics) -> Environment:
    """Return the clocks of the system, its randomness, and a log that names the component."""
    return Environment(
        now_ns=time.time_ns,
        steady_ns=time.monotonic_ns,
        random=random.SystemRandom(),
        log=get_logger(component),
        count_intake=metrics.count_intake,
    )
