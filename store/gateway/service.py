"""Starts a gateway, says that it serves, and shuts it down."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from store.gateway.addresses import PeerMultiaddr
from store.gateway.clients import Clients
from store.gateway.config import GatewayConfig, RelayMode
from store.gateway.connection import Handler, Surroundings, WakuConnection
from store.gateway.connector import WakuConnector
from store.gateway.faults import GatewayError
from store.gateway.feed import NodeFeed
from store.gateway.filter import FILTER_SUBSCRIBE, Filter
from store.gateway.identity import Identity, kept_identity
from store.gateway.light_push import VERSIONS, LightPush
from store.gateway.limits import DRAIN_TIMEOUT_S, MAX_METADATA_BYTES
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.noise import StaticKey
from store.gateway.protocols import (
    IDENTIFY,
    METADATA,
    PING,
    STORE_QUERY,
    FixedResponse,
    StoreQuery,
    encode_identify,
    encode_metadata,
    serve_pings,
)
from store.gateway.relay import RELAY, Relay
from store.gateway.server import Listening, Server, bind
from store.gateway.spool import Spool
from store.gateway.sync import RECONCILIATION, TRANSFER, NwakuSync, SyncRules
from store.observe.http import ANY, METRICS_PATH, STATUS_PATH, MetricsListener
from store.observe.logging import get_logger
from store.observe.problems import GATEWAY_RULES, Problem, Problems
from store.serving.tasks import BackgroundTasks, Work
from store.serving.tls import TlsError, TlsFiles, renewing_context
from storenode.client.nodes import Nodes
from storenode.connection.channel import TlsIdentity
from storenode.wire.storenode.v1.store_pb2 import PUBLISH_SOURCE_NWAKU, PUBLISH_SOURCE_RELAY

_LOOK_EVERY_S: Final = 5.0
"""How often to look for problems."""

_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class Upstream:
    """The nodes behind the gateway: HOST:PORT of each, and who the gateway is to them."""

    addresses: tuple[str, ...]
    token: str | None
    tls: TlsIdentity | None


class _Services:
    """The protocols that pass messages on, as the configuration wants them."""

    def __init__(self, config: GatewayConfig, node: UpstreamNode, metrics: GatewayMetrics) -> None:
        self._config = config
        self._node = node
        self._metrics = metrics
        self._feed = NodeFeed(node)
        self._filter = Filter(self._feed, metrics, config.pubsub_topics)
        self._spool = Spool(node, metrics.relayed, PUBLISH_SOURCE_RELAY)
        self._relay: Relay | None = None
        if config.relay is not None:
            peers = frozenset(each.peer_id for each in config.relay_peer)
            mode, topics = RelayMode(config.relay), sorted(config.pubsub_topics)
            self._relay = Relay(
                mode, topics, peers, spool=self._spool, feed=self._feed, metrics=metrics
            )

        self._sync_spool = Spool(node, metrics.synced, PUBLISH_SOURCE_NWAKU)
        rules = SyncRules(
            frozenset(each.peer_id for each in config.nwaku_sync_peer),
            config.nwaku_sync_interval,
            config.nwaku_sync_range,
            sorted(config.pubsub_topics),
        )
        self._sync = NwakuSync(rules, node, self._sync_spool, metrics)

    def handlers(self) -> dict[str, Handler]:
        """Return what serves each protocol but identify."""
        config, node, metrics = self._config, self._node, self._metrics
        metadata = encode_metadata(config.cluster, config.shard)
        served: dict[str, Handler] = {
            STORE_QUERY: StoreQuery(node, metrics, config.max_request).serve,
            METADATA: FixedResponse(metadata, MAX_METADATA_BYTES).serve,
            PING: serve_pings,
        }
        if not config.no_light_push and config.relay != RelayMode.LEAF:
            push = LightPush(node, metrics, config.pubsub_topics, self._relay)
            served |= {name: partial(push.serve, each) for name, each in VERSIONS.items()}
        if not config.no_filter:
            served[FILTER_SUBSCRIBE] = self._filter.serve
        if self._relay is not None:
            served[RELAY] = self._relay.serve
        if config.nwaku_sync_peer:
            served[RECONCILIATION] = self._sync.serve
            served[TRANSFER] = self._sync.serve_transfer
        return served

    def peers(self) -> list[str]:
        """Return a line about each relay peer."""
        return [] if self._relay is None else self._relay.describe()

    def work(self, around: Surroundings) -> list[tuple[str, Work]]:
        """Return what runs as long as the gateway."""
        work: list[tuple[str, Work]] = [("feed", self._feed.run), ("filter", self._filter.run)]
        peers: dict[str, PeerMultiaddr] = {}
        joins: dict[str, list[Callable[[WakuConnection], None]]] = defaultdict(list)
        if self._relay is not None:
            work += [("relay spool", self._spool.run), ("relay", self._relay.run)]
            for each in self._config.relay_peer:
                peers[each.peer_id] = each
                joins[each.peer_id] = [partial(self._relay.join, is_outbound=True)]
        if self._config.nwaku_sync_peer:
            work.append(("sync spool", self._sync_spool.run))
        for each in self._config.nwaku_sync_peer:
            # nwaku accepts one connection of a peer, which serves both.
            if each.host:
                peers.setdefault(each.peer_id, each)
            joins[each.peer_id].append(self._sync.join)
        connector = WakuConnector(around, joins)
        return work + [(str(each), partial(connector.keep, each)) for each in peers.values()]


class GatewayStatus:
    """The problems of a gateway, and the text of its status page."""

    def __init__(
        self, title: str, node: UpstreamNode, services: _Services, metrics: GatewayMetrics
    ) -> None:
        self._title = title
        self._node = node
        self._services = services
        self._evaluation = Problems(metrics, rules=GATEWAY_RULES)
        self._problems: tuple[Problem, ...] = ()

    async def watch(self) -> None:
        """Look for problems, until cancelled."""
        while True:
            self._problems = self._evaluation.evaluate()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def render(self) -> bytes:
        """Return the page: problems, the node, and the relay peers."""
        now_s = time.time()
        problems = [
            f"{'critical' if each.critical else 'warning'}, for {now_s - each.since_s:,.0f} s:"
            f" {each.sentence} ({each.url})"
            for each in self._problems
        ]
        node = self._node.unready or f"{self._node.serving} serves"
        lines = [self._title, f"nodes: {self._node.addresses}; {node}"]
        for name, entries in (("problems", problems), ("relay peers", self._services.peers())):
            lines += [f"{name}: {len(entries)}", *(f"  {each}" for each in entries)]
        return "\n".join((*lines, "")).encode()


class Gateway:
    """A gateway; ``announce`` is called once, with its ready line of JSON."""

    def __init__(
        self,
        config: GatewayConfig,
        upstream: Upstream,
        version: str,
        announce: Callable[[str], None],
    ) -> None:
        self._config = config
        self._upstream = upstream
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
        config, upstream = self._config, self._upstream
        identity = kept_identity(config.key_file)
        tls = _tls(config)
        metrics = GatewayMetrics(self._version)
        async with AsyncExitStack() as stack:
            nodes = Nodes(upstream.addresses, upstream.token, upstream.tls)
            stack.push_async_callback(nodes.close)
            node = UpstreamNode(nodes, metrics)
            bound = []
            for address in config.listen:
                bound.append(bind(address))
                stack.callback(bound[-1].socket.close)
            services = _Services(config, node, metrics)
            title = f"storenode gateway {self._version}, peer ID {identity.peer_id}"
            status = GatewayStatus(title, node, services, metrics)
            where = await self._open_metrics(metrics, node, status, stack)
            served = services.handlers()
            addresses = [each.address for each in bound]
            identify = encode_identify(identity, addresses, self._version, [*served, IDENTIFY])
            served[IDENTIFY] = FixedResponse(identify).serve
            around = Surroundings(StaticKey(identity), served, metrics, config.max_streams)
            server = Server(around, Clients(config.rules), tls, config.max_connections)
            tasks = BackgroundTasks()
            stack.push_async_callback(tasks.stop)
            for each in bound:
                tasks.start(f"accept {each.address}", partial(server.accept, each))
            tasks.start("node", node.watch)
            tasks.start("status", status.watch)
            for name, work in services.work(around):
                tasks.start(name, work)
            self._say_ready(identity, bound, where)
            await self._stopped.wait()
            await tasks.stop()
            _log.info("gateway_stopping")
            await server.drain(DRAIN_TIMEOUT_S)

    async def _open_metrics(
        self,
        metrics: GatewayMetrics,
        node: UpstreamNode,
        status: GatewayStatus,
        stack: AsyncExitStack,
    ) -> str | None:
        address = self._config.metrics_listen
        if address is None:
            return None
        rendered = {METRICS_PATH: metrics.render, STATUS_PATH: status.render}
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

    def _say_ready(self, identity: Identity, bound: list[Listening], metrics: str | None) -> None:
        addresses = [f"{each.address}/p2p/{identity.peer_id}" for each in bound]
        _log.info("gateway_ready", listen=addresses, nodes=self._upstream.addresses)
        ready = {"listen": addresses, "peer_id": identity.peer_id, "metrics": metrics}
        self._announce(json.dumps({name: each for name, each in ready.items() if each}))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.wss_cert is None or config.wss_key is None:
        return None
    try:
        return renewing_context(TlsFiles(config.wss_cert, config.wss_key))
    except TlsError as error:
        raise GatewayError(f"--wss-cert and --wss-key cannot be used: {error}") from error
