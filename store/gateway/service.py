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

from store.gateway import limits
from store.gateway.clients import Clients
from store.gateway.config import LEAF, GatewayConfig
from store.gateway.connection import Handler, Join, Surroundings
from store.gateway.faults import GatewayError
from store.gateway.filter import FILTER_SUBSCRIBE, Filter
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import NodeFeed, Spool, UpstreamNode
from store.gateway.noise import kept_identity
from store.gateway.relay import HEARTBEAT_S, RELAY, Relay
from store.gateway.server import Server, bind, keep_connected
from store.gateway.services import (
    IDENTIFY,
    METADATA,
    PING,
    STORE_QUERY,
    VERSIONS,
    LightPush,
    StoreQuery,
    encode_identify,
    fixed_response,
    serve_pings,
)
from store.gateway.sync import RECONCILIATION, TRANSFER, NwakuSync, SyncRules
from store.observe.http import ANY, METRICS_PATH, STATUS_PATH, MetricsListener
from store.observe.logging import get_logger
from store.observe.problems import GATEWAY_RULES, Problem, Problems
from store.serving.tasks import BackgroundTasks
from store.serving.tls import TlsError, TlsFiles, renewing_context
from storenode.client.nodes import Nodes
from storenode.wire.storenode.internal.v1.waku_protocols_pb2 import WakuMetadata
from storenode.wire.storenode.v1.store_pb2 import PUBLISH_SOURCE_NWAKU, PUBLISH_SOURCE_RELAY

_LOOK_EVERY_S: Final = 5.0
"""The interval at which problems and expired subscriptions are looked for."""

_log = get_logger("store.gateway")


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
        self._metrics = GatewayMetrics(version)
        self._node = UpstreamNode(nodes, self._metrics)
        self._feed = NodeFeed(self._node)
        self._tasks = BackgroundTasks()
        self._handlers: dict[str, Handler] = {}
        self._joins: dict[str, list[Join]] = defaultdict(list)

    def stop(self) -> None:
        """Ask it to shut down."""
        self._stopped.set()

    async def run(self) -> None:
        """Serve until `stop` is called; raise GatewayError if it cannot start."""
        config, tasks = self._config, self._tasks
        identity, tls = kept_identity(config.key_file), _tls(config)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._nodes.close)
            bound = {}
            for each in config.listen:
                address, listening = bind(each)
                bound[address] = listening
                stack.callback(listening.close)
            stack.push_async_callback(tasks.stop)
            relay = self._start_services()
            title = f"storenode gateway {self._version}, peer ID {identity.peer_id}"
            page = _StatusPage(title, self._node, relay, self._metrics)
            where = await self._open_metrics(page, stack)
            addresses, names = list(bound), [*self._handlers, IDENTIFY]
            identify = encode_identify(identity, addresses, self._version, names)
            self._handlers[IDENTIFY] = fixed_response(identify)
            around = Surroundings(
                identity, self._handlers, self._metrics, config.max_streams, self._joins
            )
            clients = Clients(
                config.max_connections_per_address,
                config.max_new_connections_per_s,
                config.max_requests_per_s,
            )
            server = Server(around, clients, tls, config.max_connections)
            for address, listening in bound.items():
                tasks.start(f"accept {address}", partial(server.accept, address, listening))
            tasks.start("node", self._node.watch)
            tasks.start_every(_LOOK_EVERY_S, "status", page.evaluate)
            self._connect(around)
            listen = [f"{each}/p2p/{identity.peer_id}" for each in addresses]
            _log.info("gateway_ready", listen=listen, nodes=self._nodes.addresses)
            ready = {"listen": listen, "peer_id": identity.peer_id, "metrics": where}
            self._announce(json.dumps({name: each for name, each in ready.items() if each}))
            await self._stopped.wait()
            await tasks.stop()
            _log.info("gateway_stopping")
            await server.drain(limits.DRAIN_TIMEOUT_S)

    def _start_services(self) -> Relay | None:
        """Start the protocols that the configuration wants."""
        config, node, metrics = self._config, self._node, self._metrics
        self._tasks.start("feed", self._feed.run)
        relay = None if config.relay is None else self._start_relay(forwards=config.relay != LEAF)
        metadata = WakuMetadata(cluster_id=config.cluster, shards=sorted(config.shard))
        self._handlers |= {
            STORE_QUERY: StoreQuery(node, metrics, config.max_request).serve,
            METADATA: fixed_response(metadata.SerializeToString(), limits.MAX_REQUEST_BYTES),
            PING: serve_pings,
        }
        if not config.no_light_push and config.relay != LEAF:
            push = LightPush(node, metrics, config.pubsub_topics, relay)
            self._handlers |= {name: partial(push.serve, each) for name, each in VERSIONS.items()}
        if not config.no_filter:
            found = Filter(self._feed, metrics, config.pubsub_topics)
            self._tasks.start_every(
                _LOOK_EVERY_S, "filter", lambda: found.expire(time.monotonic_ns())
            )
            self._handlers[FILTER_SUBSCRIBE] = found.serve
        if config.nwaku_sync_peer:
            self._start_sync()
        return relay

    def _start_relay(self, *, forwards: bool) -> Relay:
        peers = frozenset(each.peer_id for each in self._config.relay_peer)
        spool = Spool(self._node, self._metrics.relayed, PUBLISH_SOURCE_RELAY)
        relay = Relay(
            self._config.pubsub_topics,
            peers,
            forwards=forwards,
            spool=spool,
            feed=self._feed,
            metrics=self._metrics,
        )
        self._tasks.start("relay spool", spool.run)
        self._tasks.start_every(HEARTBEAT_S, "relay", relay.beat)
        for peer_id in peers:
            self._joins[peer_id].append(relay.join)
        self._handlers[RELAY] = relay.serve
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
        self._handlers |= {RECONCILIATION: sync.serve, TRANSFER: sync.serve_transfer}

    def _connect(self, around: Surroundings) -> None:
        """Connect to the peers that the configuration names, one time for all that uses each."""
        named = (*self._config.relay_peer, *self._config.nwaku_sync_peer)
        for peer in {each.peer_id: each for each in reversed(named) if each.host}.values():
            joins = self._joins[peer.peer_id]
            self._tasks.start(str(peer), partial(keep_connected, peer, around, joins))

    async def _open_metrics(self, page: _StatusPage, stack: AsyncExitStack) -> str | None:
        address = self._config.metrics_listen
        if address is None:
            return None
        rendered = {METRICS_PATH: self._metrics.render, STATUS_PATH: page.render}
        listener = MetricsListener(rendered, lambda: self._node.unready, [ANY])
        try:
            bound = await listener.open(address.host, address.port)
        except OSError as error:
            raise GatewayError(
                f"--metrics-listen {address} cannot be bound ({error.strerror}): end the program"
                " that uses the port, or choose another address."
            ) from error
        stack.push_async_callback(listener.close)
        return str(replace(address, port=bound))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.wss_cert is None or config.wss_key is None:
        return None
    try:
        return renewing_context(TlsFiles(config.wss_cert, config.wss_key))
    except TlsError as error:
        raise GatewayError(f"--wss-cert and --wss-key cannot be used: {error}") from error
