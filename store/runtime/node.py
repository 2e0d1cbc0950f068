"""The lifecycle of a node, from its start to its end.

    starting --everything is up--> serving --stop()--> draining --calls have ended--> ended
    starting --stop()--> ended

What is opened first is closed last: metrics listener, database, services, tasks, other listeners.
The database may go away and come back meanwhile; the node says that it is not ready, and stays.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from store.config.node import NodeConfig
from store.domain.ports import StoreUnavailableError
from store.embedded.process import is_full_disk
from store.observe.clocks import ClockComparison
from store.observe.http import MetricsListener
from store.observe.logging import get_logger, write_suppressed
from store.observe.metrics import Metrics, total
from store.rpc.call import MAX_CALLERS, RpcContext
from store.runtime.database import ExternalHost, HostWatch, external_host, note_hosts
from store.runtime.embedded_host import EmbeddedHost
from store.runtime.errors import NodeFailedError, UnreachableError, WrongConfigurationError, ended
from store.runtime.health import NodeHealth, Obstacle
from store.runtime.listeners import Listeners, bind_listeners, listener_addresses
from store.runtime.monitor import DatabaseHealth, DatabaseMonitor, WriteCanary
from store.runtime.node_files import kept_node_id
from store.runtime.policy import PolicySource, TokenFile, client_limits
from store.runtime.preflight import file_checks
from store.runtime.resources import TRIM_INTERVAL_S, DiskSpace, Trimmer, map_large_blocks
from store.runtime.services import NodeParts, system_environment
from store.runtime.status import StatusReport
from store.runtime.tasks import READ_TIMEOUT_S, finish
from store.runtime.telemetry import CONDITION_INTERVAL_S, FOLLOW_INTERVAL_S, Telemetry
from store.serving.addresses import BindError, ListenerAddress, bind_error, require_free
from store.serving.answers import UnsentBudget
from store.serving.context import NodeIdentity
from store.serving.drain import Drain
from store.serving.tasks import BackgroundTasks
from store.serving.tls import TlsError, first_dns_name
from store.sync.resume import OnlineRecorder
from storenode.cli.options.types import Address
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.runtime.node")

LOG_SUMMARY_INTERVAL_S: Final = 10.0
HOSTS_INTERVAL_S: Final = 2.0
TOKEN_CHECK_INTERVAL_S: Final = 2.0
CONNECTIONS_INTERVAL_S: Final = 2.0
DISK_INTERVAL_S: Final = 5.0
PROBLEMS_INTERVAL_S: Final = 5.0
"""How often periodic work is done."""

DRAIN_NOTICE_S: Final = 0.2
"""Time between reporting the end to those that watch the node's health, and ending their calls."""

_T = TypeVar("_T")


class NodeRuntime:
    """A node, made inside the event loop that runs it; `announce` is given the ready line.

    ``embedded`` is its database where the options name no other.
    """

    def __init__(
        self,
        config: NodeConfig,
        version: str,
        announce: Callable[[str], None],
        embedded: EmbeddedHost | None,
    ) -> None:
        self._config = config
        self._version = version
        self._announce = announce
        self._loop = asyncio.get_running_loop()
        self._metrics = Metrics(version)
        self._telemetry: Telemetry | None = None
        self._health = NodeHealth(self._metrics, self._refresh)
        self._drain = Drain()
        self._answers = UnsentBudget(time.monotonic, config.max_unsent_size)
        self._clocks = ClockComparison(config.max_clock_drift)
        self._status = StatusReport(version, self._metrics, self._health)
        self._callers = BoundedDict[str, float](MAX_CALLERS)
        embedded_in = config.data_dir if config.database_url is None else None
        self._disk = DiskSpace(
            embedded_in,
            config.min_free_disk,
            self._metrics,
            lambda full: self._health.set(Obstacle.SPACE, present=full),
        )
        self._policy = PolicySource(config, time.time_ns)
        self._tokens = TokenFile(
            config.client_token_file,
            client_limits(config),
            lambda usable: self._metrics.token_file_broken.set(int(not usable)),
        )
        self._tasks = BackgroundTasks()
        self._exchange_tasks = BackgroundTasks()
        self._host: EmbeddedHost | ExternalHost
        if embedded is not None:
            self._host = embedded
            embedded.on_event = self._host_event
        else:
            self._host = external_host(config, note_hosts(self._metrics))
        self._parts: NodeParts | None = None
        self._monitor: DatabaseMonitor | None = None
        self._canary: WriteCanary | None = None
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Start, serve until `stop` is called, drain, and close everything.

        Raises:
            WrongConfigurationError: An option, or a file that it names, cannot be used.
            UnreachableError: The database could not be reached.
            NodeFailedError: The node could not start.
        """
        try:
            async with AsyncExitStack() as stack:
                listeners = await self._unless_ending(self._start(stack))
                if listeners is not None:
                    await self._ending.wait()
                    await self._end_calls(listeners)
        except TlsError as error:
            raise WrongConfigurationError(str(error)) from error
        except BindError as error:
            raise NodeFailedError(str(error)) from error
        except StoreUnavailableError as error:
            raise UnreachableError(ended(f"The database does not serve: {error}")) from error
        _LOG.info("ended")

    def stop(self) -> None:
        """Begin the end; `run` returns when all is closed."""
        self._ending.set()

    def reload(self) -> None:
        """Read again what may change while the node runs: the token file."""
        self._tokens.reload()

    # Starting

    async def _unless_ending(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Await some work and return its result; None if `stop` was called first."""
        doing = asyncio.create_task(work)
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait({doing, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not doing.done():
            _LOG.info("start_broken_off")
            doing.cancel()
            await asyncio.wait({doing})
        return None if doing.cancelled() else doing.result()

    async def _start(self, stack: AsyncExitStack) -> Listeners:
        config = self._config
        stack.push_async_callback(self._host.stop)
        for check in file_checks(config, self._tokens):
            check()
        certified = None
        if config.tls_cert is not None and config.tls_key is not None:
            certified = first_dns_name(config.tls_cert, config.tls_key)
        metrics_address = await self._open_metrics(stack)
        for address in listener_addresses(config):
            if address.option != "--metrics-listen":  # which is open already
                require_free(address)
        url = await self._host.start()
        node_id = certified or kept_node_id(config.data_dir)
        parts = NodeParts(stack, config, self._metrics, self._policy, self._clocks)
        await parts.open_database(url, self._host.guard, self._disk)
        self._parts = parts
        telemetry = await self._start_tasks(stack, parts)
        store_id = str(UUID(bytes=parts.database.store_id))
        parts.open_peers(NodeIdentity(node_id, store_id, self._version, config.cluster))
        parts.open_gossip()
        self._status.complete(stack, parts, telemetry, self._callers)
        context = self._context(parts)
        listeners = bind_listeners(config, context)
        stack.push_async_callback(listeners.stop, 0)
        for listener in listeners.all:
            await listener.start()
        if not config.read_only:
            self._begin_exchange(stack, parts)
        self._tasks.start_every(
            CONNECTIONS_INTERVAL_S, "connections", listeners.connection_limiter(config).enforce
        )
        self._tasks.start("unfinished requests", context.arrivals.run)
        self._health.set(Obstacle.STARTING, present=False)
        self._tell_ready(listeners, metrics_address, node_id)
        return listeners

    def _begin_exchange(self, stack: AsyncExitStack, parts: NodeParts) -> None:
        """Record when the store is online, and fetch what it has missed."""
        environment = system_environment("store.sync.online", self._metrics)
        online = OnlineRecorder(parts.online, environment)
        online.begin()
        stack.push_async_callback(finish, online.note)
        stack.push_async_callback(self._exchange_tasks.stop)
        self._exchange_tasks.start("online", online.run)
        self._exchange_tasks.start("resume", parts.resumer.run)

    async def _open_metrics(self, stack: AsyncExitStack) -> str:
        where = self._config.metrics_listen
        listener = MetricsListener(
            self._render_metrics,
            self._status.render,
            lambda: self._health.value.unready,
            self._config.metrics_hosts,
        )
        try:
            port = await listener.open(where.host, where.port)
        except OSError as error:
            raise bind_error(ListenerAddress("--metrics-listen", where.host, where.port)) from error
        stack.push_async_callback(listener.close)
        return str(Address(where.host, port))

    async def _start_tasks(self, stack: AsyncExitStack, parts: NodeParts) -> Telemetry:
        telemetry = Telemetry(stack, parts, self._callers)
        await telemetry.read_summary()
        self._telemetry = telemetry
        self._metrics.database_up.set(1)
        self._show_options()
        self._monitor = DatabaseMonitor(
            parts.database,
            self._database_changed,
            read_only=self._config.read_only,
            on_time=None if self._config.database_url is None else self._clocks.note,
        )
        tasks = self._tasks
        if self._host.guard is not None:
            watch = HostWatch(
                self._host.guard, self._host.url(), self._metrics, parts.database, self._health
            )
            stack.push_async_callback(watch.end)
            tasks.start_every(HOSTS_INTERVAL_S, "database hosts", watch.look)
        stack.push_async_callback(tasks.stop)
        tasks.start("database monitor", self._monitor.run)
        if not self._config.read_only:
            writer = parts.writer
            self._canary = WriteCanary(
                parts.database,
                writer.commit_canary,
                lambda: writer.committed_s,
                lambda reason: self._health.set(Obstacle.WRITES, reason is not None, reason),
            )
            tasks.start("write canary", self._canary.run)
            tasks.start("maintainer", parts.maintainer.run)
        read_condition = partial(telemetry.condition.get, READ_TIMEOUT_S)
        tasks.start_every(FOLLOW_INTERVAL_S, "telemetry", telemetry.follow)
        tasks.start_every(CONDITION_INTERVAL_S, "condition", read_condition)
        tasks.start_every(DISK_INTERVAL_S, "disk space", self._disk.look)
        tasks.start_every(PROBLEMS_INTERVAL_S, "problems", self._health.look)
        if self._config.client_token_file is not None:
            tasks.start_every(TOKEN_CHECK_INTERVAL_S, "token file", self._tokens.follow)
        tasks.start_every(LOG_SUMMARY_INTERVAL_S, "log summary", write_suppressed)
        map_large_blocks()
        tasks.start_every(TRIM_INTERVAL_S, "memory", Trimmer().trim_grown)
        return telemetry

    def _show_options(self) -> None:
        """Set the metrics of the options that alerts compare with."""
        config, metrics = self._config, self._metrics
        metrics.read_only.set(int(config.read_only))
        interval_s = config.sync_interval / NS_PER_S if config.peer else 0
        # Peers are chosen at random: with ten of them, one may wait for dozens of rounds.
        metrics.peer_silence_limit_seconds.set(3_600 + 10 * interval_s * len(config.peer))

    def _context(self, parts: NodeParts) -> RpcContext:
        gossip = None
        if parts.gossip is not None and parts.transport is not None:
            gossip = parts.gossip, parts.transport
        return RpcContext(
            identity=parts.identity,
            services=parts.services,
            policy=self._policy.current,
            access=lambda: self._tokens.access,
            now_ns=time.time_ns,
            monotonic_ns=time.monotonic_ns,
            health=lambda: self._health.value,
            state=self._status.state,
            metrics=self._metrics,
            answers=self._answers,
            drain=self._drain,
            exchange=parts.synchronizer,
            sessions=None if self._config.read_only else parts.sessions,
            gossip=gossip,
            confirmations=parts.confirmations,
            callers=self._callers,
            look=self._health.look,
            await_revision=self._health.await_revision,
            intake=parts.online.overlapping,
            missing_parents=parts.missing_parents,
            coverage=parts.coverage,
            read_only=self._config.read_only,
            clocks=self._clocks,
        )

    def _tell_ready(self, listeners: Listeners, metrics_address: str, node_id: str) -> None:
        ready = {
            "event": "ready",
            "listen": listeners.client.address,
            "peer": listeners.peer.address,
            "admin": listeners.admin.address,
            "metrics": metrics_address,
            "database": self._host.kind,
            "node_id": node_id,
        }
        if listeners.http is not None:
            ready["http"] = listeners.http.address
        _LOG.info("serving", **{name: ready[name] for name in ready if name != "event"})
        self._announce(json.dumps(ready))

    # Ending

    async def _end_calls(self, listeners: Listeners) -> None:
        """Fail readiness probes, end endless calls, and drain the others until the timeout."""
        _LOG.info("draining")
        self._health.set(Obstacle.DRAINING, present=True)
        await asyncio.sleep(DRAIN_NOTICE_S)
        self._drain.begin()
        if self._parts is not None and self._parts.confirmations is not None:
            self._parts.confirmations.stop()
        await listeners.stop(self._config.drain_timeout / NS_PER_S)

    # What happens meanwhile

    def _refresh(self) -> None:
        """Renew the gauges that problems look at."""
        if self._telemetry is not None:
            self._telemetry.read_process()
        if self._canary is not None:
            self._canary.measure(self._metrics.commit_age_seconds)

    async def _render_metrics(self) -> bytes:
        if self._telemetry is not None:
            await self._telemetry.read_database()
        self._refresh()
        return self._metrics.render()

    def _database_changed(self, health: DatabaseHealth) -> None:
        is_up = health.is_up
        if is_up != total(self._metrics.database_up):
            self._metrics.database_up.set(int(is_up))
            self._metrics.database_events.labels("back" if is_up else "away").inc()
        self._health.set(Obstacle.DATABASE, not is_up, health.reason)

    def _host_event(self, name: str, fields: Mapping[str, object]) -> None:
        # Called from the supervisor's threads, also while the loop is closing.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(
                self._handle_host_event, name, str(fields.get("reason"))
            )

    def _handle_host_event(self, name: str, reason: str) -> None:
        if self._parts is None or self._monitor is None or self._ending.is_set():
            return
        self._metrics.database_events.labels(f"postgres_{name}").inc()
        if name == "exited":
            self._health.set(Obstacle.DISK, present=is_full_disk(reason))
            self._monitor.lost(reason)
            return
        if name == "restarted":
            self._health.set(Obstacle.DISK, present=False)
            self._parts.database.move(self._host.url())
        self._monitor.check_now()
