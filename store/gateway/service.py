"""Starts a gateway, announces that it serves, and shuts it down."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from store.gateway.clients import Clients
from store.gateway.config import LEAF, GatewayConfig
from store.gateway.connection import Handler, Surroundings
from store.gateway.faults import GatewayError
from store.gateway.feed import NodeFeed
from store.gateway.filter import FILTER_SUBSCRIBE, Filter
from store.gateway.identity import Identity, kept_identity
from store.gateway.light_push import VERSIONS, LightPush
from store.gateway.limits import DRAIN_TIMEOUT_S, MAX_REQUEST_BYTES
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.noise import StaticKey
from store.gateway.protocols import (
    IDENTIFY,
    METADATA,
    PING,
    STORE_QUERY,
    StoreQuery,
    encode_identify,
    encode_metadata,
    fixed_response,
    serve_pings,
)
from store.gateway.relay import HEARTBEAT_S, RELAY, Relay
from store.gateway.server import Join, Listening, Server, bind, keep_connected
from store.gateway.spool import Spool
from store.gateway.sync import RECONCILIATION, TRANSFER, NwakuSync, SyncRules
from store.observe.http import ANY, METRICS_PATH, STATUS_PATH, MetricsListener
from store.observe.logging import get_logger
from store.observe.problems import GATEWAY_RULES, Problem, Problems
from store.serving.tasks import BackgroundTasks
from store.serving.tls import TlsError, TlsFiles, renewing_context
from storenode.client.nodes import Nodes
from storenode.wire.storenode.v1.store_pb2 import PUBLISH_SOURCE_NWAKU, PUBLISH_SOURCE_RELAY

_LOOK_EVERY_S: Final = 5.0
"""How often to look for problems, and for subscriptions that have expired."""

_log = get_logger("store.gateway")


class _Services:
    """The protocols of a gateway, as its configuration wants them, at work.

    ``handlers`` are those that answer on streams, by protocol, but for identify.
    """

    def __init__(
        self,
        config: GatewayConfig,
        node: UpstreamNode,
        metrics: GatewayMetrics,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._node = node
        self._metrics = metrics
        self._tasks = tasks
        self._feed = NodeFeed(node)
        self._joins: dict[str, list[Join]] = defaultdict(list)
        tasks.start("feed", self._feed.run)
        self.relay = self._start_relay()
        metadata = encode_metadata(config.cluster, config.shard)
        self.handlers: dict[str, Handler] = {
            STORE_QUERY: StoreQuery(node, metrics, config.max_request).serve,
            METADATA: fixed_response(metadata, MAX_REQUEST_BYTES),
            PING: serve_pings,
        }
        if not config.no_light_push and config.relay != LEAF:
            push = LightPush(node, metrics, config.pubsub_topics, self.relay)
            self.handlers |= {name: partial(push.serve, each) for name, each in VERSIONS.items()}
        if not config.no_filter:
            found = Filter(self._feed, metrics, config.pubsub_topics)
            tasks.start_every(_LOOK_EVERY_S, "filter", lambda: found.expire(time.monotonic_ns()))
            self.handlers[FILTER_SUBSCRIBE] = found.serve
        if self.relay is not None:
            self.handlers[RELAY] = self.relay.serve
        if config.nwaku_sync_peer:
            self._start_sync()

    def connect(self, around: Surroundings) -> None:
        """Connect to the peers that the configuration names, one time for all that uses each."""
        named = (*self._config.relay_peer, *self._config.nwaku_sync_peer)
        for peer in {each.peer_id: each for each in reversed(named) if each.host}.values():
            joins = self._joins[peer.peer_id]
            self._tasks.start(str(peer), partial(keep_connected, peer, around, joins))

    def _start_relay(self) -> Relay | None:
        config, metrics = self._config, self._metrics
        if config.relay is None:
            return None
        spool = Spool(self._node, metrics.relayed, PUBLISH_SOURCE_RELAY)
        peers = frozenset(each.peer_id for each in config.relay_peer)
        relay = Relay(
            config.pubsub_topics,
            peers,
            forwards=config.relay != LEAF,
            spool=spool,
            feed=self._feed,
            metrics=metrics,
        )
        self._tasks.start("relay spool", spool.run)
        self._tasks.start_every(HEARTBEAT_S, "relay", relay.beat)
        for peer_id in peers:
            self._joins[peer_id].append(partial(relay.join, is_outbound=True))
        return relay

    def _start_sync(self) -> None:
        config, metrics = self._config, self._metrics
        spool = Spool(self._node, metrics.synced, PUBLISH_SOURCE_NWAKU)
        rules = SyncRules(
            frozenset(each.peer_id for each in config.nwaku_sync_peer),
            config.nwaku_sync_interval,
            config.nwaku_sync_range,
            sorted(config.pubsub_topics),
        )
        sync = NwakuSync(rules, self._node, spool, metrics)
        self._tasks.start("sync spool", spool.run)
        for peer_id in rules.peers:
            self._joins[peer_id].append(sync.join)
        self.handlers |= {RECONCILIATION: sync.serve, TRANSFER: sync.serve_transfer}


class _StatusPage:
    """The problems of a gateway, the node that serves it, and its relay peers."""

    def __init__(
        self, title: str, node: UpstreamNode, relay: Relay | None, metrics: GatewayMetrics
    ) -> None:
        self._title = title
        self._node = node
        self._relay = relay
        self._evaluation = Problems(metrics, rules=GATEWAY_RULES)
        self._problems: tuple[Problem, ...] = ()

    def evaluate(self) -> None:
        """Look for problems."""
        self._problems = self._evaluation.evaluate()

    async def render(self) -> bytes:
        """Return the text of the page."""
        now_s = time.time()
        problems = [
            f"{'critical' if each.critical else 'warning'}, for {now_s - each.since_s:,.0f} s:"
            f" {each.sentence} ({each.url})"
            for each in self._problems
        ]
        peers = [] if self._relay is None else self._relay.describe()
        node = self._node.unready or f"{self._node.serving} serves"
        lines = [self._title, f"nodes: {self._node.addresses}; {node}"]
        for name, entries in (("problems", problems), ("relay peers", peers)):
            lines += [f"{name}: {len(entries)}", *(f"  {each}" for each in entries)]
        return "\n".join((*lines, "")).encode()


class Gateway:
    """A gateway; ``announce`` is called once, with its ready line of JSON."""

    def __init__(
        self, config: GatewayConfig, nodes: Nodes, version: str, announce: Callable[[str], None]
    ) -> None:
        self._config = config
        self._nodes = nodes
        self._version = version
        self._announce = announce
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Ask it to shut down."""
        self._stopped.set()

    async def run(self) -> None:
        """Serve until `stop` is called.

        Raises:
            GatewayError: It cannot start.
        """
        config = self._config
        identity = kept_identity(config.key_file)
        tls = _tls(config)
        metrics = GatewayMetrics(self._version)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._nodes.close)
            bound = []
            for address in config.listen:
                bound.append(bind(address))
                stack.callback(bound[-1].socket.close)
            tasks = BackgroundTasks()
            stack.push_async_callback(tasks.stop)
            node = UpstreamNode(self._nodes, metrics)
            services = _Services(config, node, metrics, tasks)
            title = f"storenode gateway {self._version}, peer ID {identity.peer_id}"
            page = _StatusPage(title, node, services.relay, metrics)
            where = await self._open_metrics(metrics, node, page, stack)
            served = services.handlers
            addresses = [each.address for each in bound]
            identify = encode_identify(identity, addresses, self._version, [*served, IDENTIFY])
            served[IDENTIFY] = fixed_response(identify)
            around = Surroundings(StaticKey(identity), served, metrics, config.max_streams)
            clients = Clients(
                config.max_connections_per_address,
                config.max_new_connections_per_s,
                config.max_requests_per_s,
            )
            server = Server(around, clients, tls, config.max_connections)
            for each in bound:
                tasks.start(f"accept {each.address}", partial(server.accept, each))
            tasks.start("node", node.watch)
            tasks.start_every(_LOOK_EVERY_S, "status", page.evaluate)
            services.connect(around)
            self._announce_ready(identity, bound, where)
            await self._stopped.wait()
            await tasks.stop()
            _log.info("gateway_stopping")
            await server.drain(DRAIN_TIMEOUT_S)

    async def _open_metrics(
        self, metrics: GatewayMetrics, node: UpstreamNode, page: _StatusPage, stack: AsyncExitStack
    ) -> str | None:
        address = self._config.metrics_listen
        if address is None:
            return None
        rendered = {METRICS_PATH: metrics.render, STATUS_PATH: page.render}
        listener = MetricsListener(rendered, lambda: node.unready, [ANY])
        try:
            bound = await listener.open(address.host, address.port)
        except OSError as error:
            raise GatewayError(
                f"--metrics-listen {address} cannot be bound ({error.strerror}): end the program"
                " that uses the port, or choose another address."
            ) from error
        stack.push_async_callback(listener.close)
        return str(replace(address, port=bound))

    def _announce_ready(
        self, identity: Identity, bound: list[Listening], metrics: str | None
    ) -> None:
        addresses = [f"{each.address}/p2p/{identity.peer_id}" for each in bound]
        _log.info("gateway_ready", listen=addresses, nodes=self._nodes.addresses)
        ready = {"listen": addresses, "peer_id": identity.peer_id, "metrics": metrics}
        self._announce(json.dumps({name: each for name, each in ready.items() if each}))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.wss_cert is None or config.wss_key is None:
        return None
    try:
        return renewing_context(TlsFiles(config.wss_cert, config.wss_key))
    except TlsError as error:
        raise GatewayError(f"--wss-cert and --wss-key cannot be used: {error}") from error
