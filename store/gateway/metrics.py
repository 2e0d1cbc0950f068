"""Metrics of the gateway for Prometheus. Labels take their values from closed lists."""

from __future__ import annotations

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

REASONS: Final = (
    *("malformed", "identity", "no_protocol", "too_large", "flood", "timeout", "busy"),
    "relay_peer",
    *("connections", "connections_of_address", "connection_rate", "request_rate", "streams"),
)
"""Values of the label ``reason`` of what is refused."""

RELAY_OUTCOMES: Final = (
    *("received", "invalid", "ignored", "sent"),
    *("stored", "duplicate", "ephemeral", "rejected", "dropped", "unsent"),
)
"""Values of the label ``outcome`` of relayed messages."""

SYNC_OUTCOMES: Final = (
    *("received", "unsolicited", "missing", "sent", "too_large"),
    *("stored", "duplicate", "ephemeral", "rejected", "dropped"),
)
"""Values of the label ``outcome`` of messages of reconciliation."""


class GatewayMetrics:
    """The metrics of one gateway, in a registry of their own."""

    def __init__(self, version: str) -> None:
        registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._registry = registry
        info = gauge("storenode_gateway_build_info", "Always 1.", ["version"])
        info.labels(version).set(1)
        self.open_connections = gauge(
            "storenode_gateway_open_connections", "Connections that are open."
        )
        self.queries = counter(
            "storenode_gateway_queries_total",
            "Queries that were answered: `node` by the node, `gateway` with a status of the"
            " gateway itself.",
            ["by"],
        )
        self.light_pushes = counter(
            "storenode_gateway_light_pushes_total",
            "Messages that clients pushed, by the status of the response.",
            ["status"],
        )
        self.filter_subscribers = gauge(
            "storenode_gateway_filter_subscribers", "Connections with subscriptions."
        )
        self.filter_pushes = counter(
            "storenode_gateway_filter_pushes_total", "Messages queued for subscribers."
        )
        self.filter_drops = counter(
            "storenode_gateway_filter_drops_total",
            "Messages that a subscriber did not get because too many waited for it.",
        )
        self.relay_peers = gauge("storenode_gateway_relay_peers", "Relay peers that are connected.")
        self.relay_topics = gauge(
            "storenode_gateway_relay_topics", "Pubsub topics that are relayed; 0 without --relay."
        )
        self.relay_peers_apart = gauge(
            "storenode_gateway_relay_peers_apart",
            "Peers of --relay-peer that are connected and subscribe to none of these topics.",
        )
        self.relayed = counter(
            "storenode_gateway_relay_messages_total",
            "Messages between the mesh and the node, by what became of them: received, invalid,"
            " ignored, sent; stored, duplicate, ephemeral, rejected by the node; dropped, unsent"
            " because too many waited.",
            ["outcome"],
        )
        self.sync_sessions = counter(
            "storenode_gateway_sync_sessions_total",
            "Sessions of reconciliation with nwaku, by role and by how they ended: done, refused by"
            " the peer, topics_differ, failed.",
            ["role", "outcome"],
        )
        self.synced = counter(
            "storenode_gateway_sync_messages_total",
            "Messages of reconciliation with nwaku, by what became of them: listed by a peer and"
            " missing here; received, unsolicited; stored, duplicate, rejected by the node; sent,"
            " too_large to be sent.",
            ["outcome"],
        )
        self.refusals = counter(
            "storenode_gateway_refusals_total",
            "Connections, streams and queries that were refused or ended, by reason.",
            ["reason"],
        )
        self.node_reachable = gauge(
            "storenode_gateway_node_reachable", "1 while the node is connected."
        )
        closed = {self.relayed: RELAY_OUTCOMES, self.synced: SYNC_OUTCOMES, self.refusals: REASONS}
        for metric, labels in closed.items():
            for label in labels:
                metric.labels(label)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)

    def refused(self, reason: str) -> None:
        """Count a refusal; a client that says goodbye was not refused."""
        if reason in REASONS:
            self.refusals.labels(reason).inc()

    async def render(self) -> bytes:
        """Render the text that Prometheus reads."""
        return generate_latest(self._registry)
