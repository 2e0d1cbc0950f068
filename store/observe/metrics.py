"""What a node counts and measures, for Prometheus.

Names that the contract gives ("Metrics") never change; the others are ours. Every label takes
its values from a closed list or is bounded, so the number of series is too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
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

from storenode.message.rules import Reason

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
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._gauge = partial(Gauge, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)

        self.messages_stored = self._counter(
            "storenode_messages_stored_total",
            "Messages that this node stored and that were new.",
            ["source"],
        )
        self.messages_rejected = self._counter(
            "storenode_messages_rejected_total",
            "Messages that this node refused, by reason.",
            ["source", "reason"],
        )
        self.messages_duplicate = self._counter(
            "storenode_messages_duplicate_total", "Messages that were held already.", ["source"]
        )
        self.conflicts = self._counter(
            "storenode_conflicts_total",
            "Messages that were not stored, or not confirmed, since another one has their hash.",
            ["source"],
        )
        self.messages_ephemeral = self._counter(
            "storenode_messages_ephemeral_total",
            "Messages that were handed to live followers and not stored.",
        )
        self.messages = self._gauge("storenode_messages", "Messages held in the database.")
        self.oldest_timestamp_seconds = self._gauge(
            "storenode_oldest_timestamp_seconds",
            "Timestamp of the oldest message held, in Unix seconds; 0: none held.",
        )
        self.newest_timestamp_seconds = self._gauge(
            "storenode_newest_timestamp_seconds",
            "Timestamp of the newest message held, in Unix seconds; 0: none held.",
        )
        self.index_entries = self._gauge("storenode_index_entries", "SyncIDs held in memory.")
        self.query_seconds = self._histogram(
            "storenode_query_seconds",
            "Time from a read's request to the end of its response.",
            ["method"],
            buckets=_SECONDS_BUCKETS,
        )
        self.publish_batch_seconds = self._histogram(
            "storenode_publish_batch_seconds",
            "Time from a batch's arrival to its acknowledgement.",
            buckets=_SECONDS_BUCKETS,
        )
        self._make_calls()
        self._make_peers()
        self._make_database()
        self._make_process(version)

    def _make_calls(self) -> None:
        self.calls = self._counter(
            "storenode_calls_total",
            "gRPC calls that ended, by method and status code.",
            ["method", "code"],
        )
        self.publishes_in_flight = self._gauge(
            "storenode_publishes_in_flight", "Batches that were received and not yet acknowledged."
        )
        self.read_only = self._gauge(
            "storenode_read_only", "1 on a node that takes no messages (--read-only), else 0."
        )
        self.followers = self._gauge("storenode_followers", "Follow calls under way.")
        self.http_requests = self._counter(
            "storenode_http_requests_total",
            "HTTP requests that ended, by operation and status code; 499: the caller hung up.",
            ["operation", "code"],
        )
        self.http_seconds = self._histogram(
            "storenode_http_seconds",
            "Time from an HTTP request to the end of its answer, followers apart.",
            ["operation"],
            buckets=_SECONDS_BUCKETS,
        )
        self.http_connections = self._gauge("storenode_http_connections", "Open HTTP connections.")
        self.http_connections_refused = self._counter(
            "storenode_http_connections_refused_total",
            "HTTP connections that were closed: there were too many, or no request came in time.",
            ["reason"],
        )

    def _make_peers(self) -> None:
        """The exchange with other stores; a dashboard finds the names also where there is none."""
        self.sync_sessions = self._counter(
            "storenode_sync_sessions_total",
            "Reconciliations that ended, by role and outcome.",
            ["role", "outcome"],
        )
        self.sync_round_trips = self._histogram(
            "storenode_sync_round_trips",
            "Payloads that the initiator sent in one reconciliation.",
            buckets=_ROUND_TRIP_BUCKETS,
        )
        self.sync_bytes = self._counter(
            "storenode_sync_bytes_total",
            "Bytes of reconciliation payloads, by direction.",
            ["direction"],
        )
        self.sync_differences = self._histogram(
            "storenode_sync_differences",
            "Messages that one side lacked, in one reconciliation.",
            buckets=_DIFFERENCE_BUCKETS,
        )
        self.sync_comparisons = self._counter(
            "storenode_sync_comparisons_total",
            "Reconciliations that ended well, by how the two sides were compared: keyed, xor, or"
            " partly_keyed.",
            ["equality"],
        )
        self.sync_modes = self._counter(
            "storenode_sync_modes_total",
            "Reconciliations that ended well, by how the differences were found: compact, or base.",
            ["mode"],
        )
        self.sync_hidden_differences = self._counter(
            "storenode_sync_hidden_differences_total",
            "Differences that lattice sums found and the fingerprints of WAKU-SYNC hid: a publisher"
            " forged them, or something is broken.",
        )
        self.transfer_messages = self._counter(
            "storenode_transfer_messages_total",
            "Messages that reconciliation transferred, by direction and outcome.",
            ["direction", "outcome"],
        )
        self.peer_last_sync_timestamp_seconds = self._gauge(
            "storenode_peer_last_sync_timestamp_seconds",
            "When a peer was last reconciled with, in Unix seconds.",
            ["peer"],
        )
        self.peer_failures = self._gauge(
            "storenode_peer_failures",
            "Reconciliations that this node began with a configured peer and that failed in a row.",
            ["peer"],
        )
        self.peer_differences = self._gauge(
            "storenode_peer_differences",
            "Messages that one side still lacked after the last session that this node began with a"
            " peer over the whole history, or over a part of it (recent).",
            ["peer", "window"],
        )
        self.sync_interval_seconds = self._gauge(
            "storenode_sync_interval_seconds",
            "How often this node reconciles with some peer; 0: never by itself.",
        )
        self._make_gossip()

    def _make_gossip(self) -> None:
        self.unread_events = self._gauge(
            "storenode_unread_events", "Messages held that too few other stores have confirmed."
        )
        self.unread_oldest_seconds = self._gauge(
            "storenode_unread_oldest_seconds",
            "For how long the oldest unread event has waited; 0: there is none.",
        )
        self.unconfirmed_oldest_seconds = self._gauge(
            "storenode_unconfirmed_oldest_seconds",
            "For how long the oldest message lacks confirmations that --max-confirms asks for; 0:"
            " none does.",
        )
        self.waiting_events = self._gauge(
            "storenode_waiting_events", "Messages held that name a parent which is not."
        )
        self.gossip_peers = self._gauge(
            "storenode_gossip_peers",
            "Nodes with which messages are exchanged live, by state (connected, slowed, cut_off).",
            ["state"],
        )
        self.gossip_events = self._counter(
            "storenode_gossip_events_total",
            "What gossip did: bodies and IDs sent and received, confirmations, peers cut off.",
            ["what"],
        )
        self.gossip_bytes = self._counter(
            "storenode_gossip_body_bytes_total",
            "Bytes of messages that gossip sent and received.",
            ["direction"],
        )

    def _make_database(self) -> None:
        self.database_up = self._gauge(
            "storenode_database_up", "1 while the database answers, else 0."
        )
        self.database_hosts_refused = self._gauge(
            "storenode_database_hosts_refused",
            "Hosts of the database URL that take writes and must not.",
        )
        self.database_timeline = self._gauge(
            "storenode_database_timeline",
            "Timeline of the Postgres server in use; 0 if it is unknown or embedded.",
        )
        self.pool_connections = self._gauge(
            "storenode_pool_connections",
            "Database connections, by pool and state (idle, used) and waiting requests (waiting).",
            ["pool", "state"],
        )
        self.database_events = self._counter(
            "storenode_database_events_total",
            "What happened to the database: connections lost, servers restarted.",
            ["event"],
        )
        self.feed_position = self._gauge(
            "storenode_feed_position",
            "Commit position up to which live followers have been served.",
        )
        self.partitions = self._gauge("storenode_partitions", "Partitions, by table.", ["table"])
        self.maintenance_events = self._counter(
            "storenode_maintenance_events_total",
            "What the maintenance of partitions did or could not do, by event.",
            ["event"],
        )

        self.maintenance_in_charge = self._gauge(
            "storenode_maintenance_in_charge",
            "1 on the node that does the maintenance of its database, else 0.",
        )
        for event in MAINTENANCE_EVENTS:
            self.maintenance_events.labels(event)
        for event in DATABASE_EVENTS:
            self.database_events.labels(event)
        self._make_tables()
        self._make_retention()

    def _make_tables(self) -> None:
        self.table_bytes = self._gauge(
            "storenode_table_bytes", "Size of a table with its partitions and indexes.", ["table"]
        )
        self.table_rows = self._gauge(
            "storenode_table_rows",
            "Rows of a table as Postgres counts them, by state (live, dead).",
            ["table", "state"],
        )
        self.partitions_until = self._gauge(
            "storenode_partitions_until_timestamp_seconds",
            "Up to this Unix time no timestamp from now on lacks a partition.",
        )
        self.standbys = self._gauge(
            "storenode_database_standbys",
            "Standbys that are connected to the database for replication.",
        )
        self.standby_lag_bytes = self._gauge(
            "storenode_database_standby_lag_bytes",
            "Bytes of log that a standby has not replayed; only with the role pg_read_all_stats.",
            ["standby"],
        )
        self.disk_free_bytes = self._gauge(
            "storenode_disk_free_bytes",
            "Free space of the file system of an embedded database.",
            ["volume"],
        )
        self.disk_size_bytes = self._gauge(
            "storenode_disk_size_bytes",
            "Size of the file system of an embedded database.",
            ["volume"],
        )
        self.disk_full = self._gauge(
            "storenode_disk_full",
            "1 while nothing is stored, since less than --min-free-disk is free.",
        )

    def _make_retention(self) -> None:
        self.retention_seconds = self._gauge(
            "storenode_retention_seconds", "Age at which messages are dropped; 0: none are, by age."
        )
        self.retention_requires_archive = self._gauge(
            "storenode_retention_requires_archive",
            "1 where only what is archived is dropped, else 0.",
        )
        self.unarchived_hours = self._gauge(
            "storenode_unarchived_hours",
            "Hours that are over, have messages, and are not marked as archived.",
        )
        self.oldest_unarchived = self._gauge(
            "storenode_oldest_unarchived_timestamp_seconds",
            "Beginning of the oldest of these hours, in Unix seconds; 0: there is none.",
        )
        self.archived_until = self._gauge(
            "storenode_archived_until_timestamp_seconds",
            "End of the newest hour marked as archived, in Unix seconds; 0: none was.",
        )

    def _make_process(self, version: str) -> None:
        self.ready = self._gauge("storenode_ready", "1 while the node is able to serve, else 0.")
        self.clock_offset_seconds = self._gauge(
            "storenode_clock_offset_seconds",
            "By how much the clock of the database or of a peer is ahead of this node's.",
            ["other"],
        )
        self.clock_limit_seconds = self._gauge(
            "storenode_clock_limit_seconds",
            "A clock that differs by more is a problem: half of --max-clock-drift.",
        )
        self.clock_refused_publishers = self._gauge(
            "storenode_clock_refused_publishers_ratio",
            "Share of the publishers of the last five minutes whose timestamps were refused; 0: of"
            " fewer than three.",
        )
        self.log_events_suppressed = self._gauge(
            "storenode_log_events_suppressed",
            "Log events that were held back since the start because there were too many.",
        )
        self.trace_spans = self._counter(
            "storenode_trace_spans_total",
            "Spans of traces: sent to the collector, not taken by it (failed), or dropped since too"
            " many waited.",
            ["outcome"],
        )
        build = self._gauge("storenode_build_info", "1, with the version.", ["version"])
        build.labels(version).set(1)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        for source in SOURCES:
            self.messages_stored.labels(source)

    def count_stored(self, source: str, new: int) -> None:
        """Count messages that are durable now, also those of a caller that has gone away."""
        self.messages_stored.labels(source).inc(new)

    def count_intake(self, source: str, duplicate: int, rejected: Mapping[str, int]) -> None:
        """Count messages that came in and were not stored; ``rejected`` by label of the reason."""
        if duplicate:
            self.messages_duplicate.labels(source).inc(duplicate)
        for label, count in rejected.items():
            self.messages_rejected.labels(source, label).inc(count)
            if label == Reason.CONFLICT:
                self.conflicts.labels(source).inc(count)

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)
