"""What a node counts and measures, for Prometheus.

Names that the contract gives ("Metrics") never change; the others are ours. Every label takes
its values from a closed list or is bounded, so the number of series is too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SOURCES: Final = ("client", "transfer", "gossip", "resume", "restore")
"""Values of the label `source`."""

MAINTENANCE_EVENTS: Final = (
    "maintenance_taken",
    "maintenance_failed",
    "maintenance_disconnected",
    "partition_dropped",
    "partitions_analyzed",
    "index_rebuilt",
    "retention_problem",
    "clock_ahead",
    "clock_doubted",
    "retention_waits",
    "clock_believed",
)
"""Values of the label `event` of what maintenance does."""

DATABASE_EVENTS: Final = (
    "away",
    "back",
    "commits_lost",
    "host_cleared",
    "host_refused",
    "postgres_exited",
    "postgres_restarted",
    "timeline",
    "timeline_not_kept",
)
"""Values of the label `event` of what happens to the database; an embedded one may add others."""

_SECONDS_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip

_ROUND_TRIP_BUCKETS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
_DIFFERENCE_BUCKETS: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one node, in a registry of its own: two nodes in a process do not mix."""

    def __init__(self, version: str) -> None:
        registry = CollectorRegistry()
        self.registry = registry

        self.messages_stored = Counter(
            "storenode_messages_stored_total",
            "Messages that this node stored and that were new.",
            ["source"],
            registry=registry,
        )
        self.messages_rejected = Counter(
            "storenode_messages_rejected_total",
            "Messages that this node refused, by reason.",
            ["source", "reason"],
            registry=registry,
        )
        self.messages_duplicate = Counter(
            "storenode_messages_duplicate_total",
            "Messages that were held already.",
            ["source"],
            registry=registry,
        )
        self.messages_ephemeral = Counter(
            "storenode_messages_ephemeral_total",
            "Messages that were handed to live followers and not stored.",
            registry=registry,
        )
        self.messages = Gauge(
            "storenode_messages", "Messages held in the database.", registry=registry
        )
        self.oldest_timestamp_seconds = Gauge(
            "storenode_oldest_timestamp_seconds",
            "Timestamp of the oldest message held, in Unix seconds; 0: none held.",
            registry=registry,
        )
        self.newest_timestamp_seconds = Gauge(
            "storenode_newest_timestamp_seconds",
            "Timestamp of the newest message held, in Unix seconds; 0: none held.",
            registry=registry,
        )
        self.index_entries = Gauge(
            "storenode_index_entries", "SyncIDs held in memory.", registry=registry
        )
        self.query_seconds = Histogram(
            "storenode_query_seconds",
            "Time from a read's request to the end of its response.",
            ["method"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.publish_batch_seconds = Histogram(
            "storenode_publish_batch_seconds",
            "Time from a batch's arrival to its acknowledgement.",
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self._make_calls(registry)
        self._make_peers(registry)
        self._make_database(registry)
        self._make_process(registry, version)

    def _make_calls(self, registry: CollectorRegistry) -> None:
        self.calls = Counter(
            "storenode_calls_total",
            "gRPC calls that ended, by method and status code.",
            ["method", "code"],
            registry=registry,
        )
        self.publishes_in_flight = Gauge(
            "storenode_publishes_in_flight",
            "Batches that were received and not yet acknowledged.",
            registry=registry,
        )
        self.followers = Gauge("storenode_followers", "Follow calls under way.", registry=registry)
        self.http_requests = Counter(
            "storenode_http_requests_total",
            "HTTP requests that ended, by operation and status code; 499: the caller hung up.",
            ["operation", "code"],
            registry=registry,
        )
        self.http_seconds = Histogram(
            "storenode_http_seconds",
            "Time from an HTTP request to the end of its answer, followers apart.",
            ["operation"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        self.http_connections = Gauge(
            "storenode_http_connections", "Open HTTP connections.", registry=registry
        )
        self.http_connections_refused = Counter(
            "storenode_http_connections_refused_total",
            "HTTP connections that were closed: there were too many, or no request came in time.",
            ["reason"],
            registry=registry,
        )

    def _make_peers(self, registry: CollectorRegistry) -> None:
        """The exchange with other stores; a dashboard finds the names also where there is none."""
        self.sync_sessions = Counter(
            "storenode_sync_sessions_total",
            "Reconciliations that ended, by role and outcome.",
            ["role", "outcome"],
            registry=registry,
        )
        self.sync_round_trips = Histogram(
            "storenode_sync_round_trips",
            "Payloads that the initiator sent in one reconciliation.",
            buckets=_ROUND_TRIP_BUCKETS,
            registry=registry,
        )
        self.sync_bytes = Counter(
            "storenode_sync_bytes_total",
            "Bytes of reconciliation payloads, by direction.",
            ["direction"],
            registry=registry,
        )
        self.sync_differences = Histogram(
            "storenode_sync_differences",
            "Messages that one side lacked, in one reconciliation.",
            buckets=_DIFFERENCE_BUCKETS,
            registry=registry,
        )
        self.sync_comparisons = Counter(
            "storenode_sync_comparisons_total",
            "Reconciliations that ended well, by how the two sides were compared: keyed, xor, or"
            " partly_keyed.",
            ["equality"],
            registry=registry,
        )
        self.sync_modes = Counter(
            "storenode_sync_modes_total",
            "Reconciliations that ended well, by how the differences were found: compact, or base.",
            ["mode"],
            registry=registry,
        )
        self.sync_hidden_differences = Counter(
            "storenode_sync_hidden_differences_total",
            "Differences that keyed fingerprints found and those of WAKU-SYNC hid: a publisher"
            " forged them, or something is broken.",
            registry=registry,
        )
        self.transfer_messages = Counter(
            "storenode_transfer_messages_total",
            "Messages that reconciliation transferred, by direction and outcome.",
            ["direction", "outcome"],
            registry=registry,
        )
        self.peer_last_sync_timestamp_seconds = Gauge(
            "storenode_peer_last_sync_timestamp_seconds",
            "When a peer was last reconciled with, in Unix seconds.",
            ["peer"],
            registry=registry,
        )
        self.peer_failures = Gauge(
            "storenode_peer_failures",
            "Reconciliations that this node began with a configured peer and that failed in a row.",
            ["peer"],
            registry=registry,
        )
        self.peer_differences = Gauge(
            "storenode_peer_differences",
            "Messages that one side still lacked after the last session that this node began with a"
            " peer over the whole history, or over a part of it (recent).",
            ["peer", "window"],
            registry=registry,
        )
        self.sync_interval_seconds = Gauge(
            "storenode_sync_interval_seconds",
            "How often this node reconciles with some peer; 0: never by itself.",
            registry=registry,
        )
        self._make_gossip(registry)

    def _make_gossip(self, registry: CollectorRegistry) -> None:
        self.unread_events = Gauge(
            "storenode_unread_events",
            "Messages held that too few other stores have confirmed.",
            registry=registry,
        )
        self.unread_oldest_seconds = Gauge(
            "storenode_unread_oldest_seconds",
            "For how long the oldest unread event has waited; 0: there is none.",
            registry=registry,
        )
        self.waiting_events = Gauge(
            "storenode_waiting_events",
            "Messages held that name a parent which is not.",
            registry=registry,
        )
        self.gossip_peers = Gauge(
            "storenode_gossip_peers",
            "Nodes with which messages are exchanged live, by state (connected, slowed, cut_off).",
            ["state"],
            registry=registry,
        )
        self.gossip_events = Counter(
            "storenode_gossip_events_total",
            "What gossip did: bodies and IDs sent and received, confirmations, peers cut off.",
            ["what"],
            registry=registry,
        )
        self.gossip_bytes = Counter(
            "storenode_gossip_body_bytes_total",
            "Bytes of messages that gossip sent and received.",
            ["direction"],
            registry=registry,
        )

    def _make_database(self, registry: CollectorRegistry) -> None:
        self.database_up = Gauge(
            "storenode_database_up", "1 while the database answers, else 0.", registry=registry
        )
        self.database_hosts_refused = Gauge(
            "storenode_database_hosts_refused",
            "Hosts of the database URL that take writes and must not.",
            registry=registry,
        )
        self.database_timeline = Gauge(
            "storenode_database_timeline",
            "Timeline of the Postgres server in use; 0 if it is unknown or embedded.",
            registry=registry,
        )
        self.pool_connections = Gauge(
            "storenode_pool_connections",
            "Database connections, by pool and state (idle, used) and waiting requests (waiting).",
            ["pool", "state"],
            registry=registry,
        )
        self.database_events = Counter(
            "storenode_database_events_total",
            "What happened to the database: connections lost, servers restarted.",
            ["event"],
            registry=registry,
        )
        self.feed_position = Gauge(
            "storenode_feed_position",
            "Commit position up to which live followers have been served.",
            registry=registry,
        )
        self.partitions = Gauge(
            "storenode_partitions", "Partitions, by table.", ["table"], registry=registry
        )
        self.maintenance_events = Counter(
            "storenode_maintenance_events_total",
            "What the maintenance of partitions did or could not do, by event.",
            ["event"],
            registry=registry,
        )

        self.maintenance_in_charge = Gauge(
            "storenode_maintenance_in_charge",
            "1 on the node that does the maintenance of its database, else 0.",
            registry=registry,
        )
        for event in MAINTENANCE_EVENTS:
            self.maintenance_events.labels(event)
        for event in DATABASE_EVENTS:
            self.database_events.labels(event)
        self._make_tables(registry)
        self._make_retention(registry)

    def _make_tables(self, registry: CollectorRegistry) -> None:
        self.table_bytes = Gauge(
            "storenode_table_bytes",
            "Size of a table with its partitions and indexes.",
            ["table"],
            registry=registry,
        )
        self.table_rows = Gauge(
            "storenode_table_rows",
            "Rows of a table as Postgres counts them, by state (live, dead).",
            ["table", "state"],
            registry=registry,
        )
        self.partitions_until = Gauge(
            "storenode_partitions_until_timestamp_seconds",
            "Up to this Unix time no timestamp from now on lacks a partition.",
            registry=registry,
        )
        self.standbys = Gauge(
            "storenode_database_standbys",
            "Standbys that are connected to the database for replication.",
            registry=registry,
        )
        self.standby_lag_bytes = Gauge(
            "storenode_database_standby_lag_bytes",
            "Bytes of log that a standby has not replayed; only with the role pg_read_all_stats.",
            ["standby"],
            registry=registry,
        )
        self.disk_free_bytes = Gauge(
            "storenode_disk_free_bytes",
            "Free space of the file system of an embedded database.",
            ["volume"],
            registry=registry,
        )
        self.disk_size_bytes = Gauge(
            "storenode_disk_size_bytes",
            "Size of the file system of an embedded database.",
            ["volume"],
            registry=registry,
        )
        self.disk_full = Gauge(
            "storenode_disk_full",
            "1 while nothing is stored, since less than --min-free-disk is free.",
            registry=registry,
        )

    def _make_retention(self, registry: CollectorRegistry) -> None:
        self.retention_seconds = Gauge(
            "storenode_retention_seconds",
            "Age at which messages are dropped; 0: none are, by age.",
            registry=registry,
        )
        self.retention_requires_archive = Gauge(
            "storenode_retention_requires_archive",
            "1 where only what is archived is dropped, else 0.",
            registry=registry,
        )
        self.unarchived_hours = Gauge(
            "storenode_unarchived_hours",
            "Hours that are over, have messages, and are not marked as archived.",
            registry=registry,
        )
        self.oldest_unarchived = Gauge(
            "storenode_oldest_unarchived_timestamp_seconds",
            "Beginning of the oldest of these hours, in Unix seconds; 0: there is none.",
            registry=registry,
        )
        self.archived_until = Gauge(
            "storenode_archived_until_timestamp_seconds",
            "End of the newest hour marked as archived, in Unix seconds; 0: none was.",
            registry=registry,
        )

    def _make_process(self, registry: CollectorRegistry, version: str) -> None:
        self.ready = Gauge(
            "storenode_ready", "1 while the node is able to serve, else 0.", registry=registry
        )
        self.log_events_suppressed = Gauge(
            "storenode_log_events_suppressed",
            "Log events that were held back since the start because there were too many.",
            registry=registry,
        )
        self.trace_spans = Counter(
            "storenode_trace_spans_total",
            "Spans of traces: sent to the collector, not taken by it (failed), or dropped since too"
            " many waited.",
            ["outcome"],
            registry=registry,
        )
        build = Gauge(
            "storenode_build_info", "1, with the version.", ["version"], registry=registry
        )
        build.labels(version).set(1)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        for source in SOURCES:
            self.messages_stored.labels(source)

    def count_intake(
        self, source: str, stored: int, duplicate: int, rejected: Mapping[str, int]
    ) -> None:
        """Count what became of messages that came in; ``rejected`` by label of the reason."""
        self.messages_stored.labels(source).inc(stored)
        if duplicate:
            self.messages_duplicate.labels(source).inc(duplicate)
        for label, count in rejected.items():
            self.messages_rejected.labels(source, label).inc(count)

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)
