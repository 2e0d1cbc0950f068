"""Metrics of a node, for Prometheus.

Names that the contract gives ("Metrics") never change; the others are ours. Every label takes
its values from a closed list or is bounded, so the number of series is too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from storenode.message.rules import Reason

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SOURCES: Final = ("client", "relay", "nwaku", "transfer", "gossip", "resume", "restore")
"""Values of the label `source`."""

ROUTINE_EVENTS: Final = (
    *("maintenance_taken", "partition_dropped", "index_rebuilt"),
    *("retention_waits", "clock_believed"),
)
MAINTENANCE_EVENTS: Final = (
    *ROUTINE_EVENTS,
    *("maintenance_failed", "maintenance_disconnected", "retention_problem"),
    "clock_doubted",
)
"""Values of the label `event` of what maintenance does; those of routine are no warnings."""

DATABASE_EVENTS: Final = (
    *("away", "back", "commits_lost", "host_cleared", "host_refused"),
    *("postgres_exited", "postgres_restarted", "timeline", "timeline_not_kept"),
)
"""Values of the label `event` of what happens to the database; an embedded one may add others."""

_SECONDS_BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip

_ROUND_TRIP_BUCKETS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)
_DIFFERENCE_BUCKETS: Final = (0, 1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)

disable_created_metrics()  # type: ignore[no-untyped-call]


def _declare(kind: type, text: str, *labels: str, **more: Any) -> Any:  # noqa: ANN401 - `Metrics` makes it
    return partial(kind, documentation=text, labelnames=labels, **more)


_counter, _gauge, _histogram = (partial(_declare, each) for each in (Counter, Gauge, Histogram))


class Metrics:
    """The metrics of a node, in a registry of its own: two nodes in a process do not mix.

    Each is called ``storenode_`` and its attribute, or its ``name``; counters end with ``_total``.
    """

    messages_stored: Counter = _counter(
        "Messages that this node stored and that were new.", "source"
    )
    messages_rejected: Counter = _counter(
        "Messages that this node refused, by reason.", "source", "reason"
    )
    messages_duplicate: Counter = _counter("Messages that were held already.", "source")
    conflicts: Counter = _counter(
        "Messages that were not stored, or not confirmed, since another one has their hash.",
        "source",
    )
    messages_ephemeral: Counter = _counter(
        "Messages that were handed to live followers and not stored."
    )
    messages: Gauge = _gauge("Messages held in the database.")
    oldest_timestamp_seconds: Gauge = _gauge(
        "Timestamp of the oldest message held, in Unix seconds; 0: none held."
    )
    index_entries: Gauge = _gauge("SyncIDs held in memory.")
    query_seconds: Histogram = _histogram(
        "Time from a read's request to the end of its response.", "method", buckets=_SECONDS_BUCKETS
    )
    publish_batch_seconds: Histogram = _histogram(
        "Time from a batch's arrival to its acknowledgement.", buckets=_SECONDS_BUCKETS
    )

    # Calls

    calls: Counter = _counter("gRPC calls that ended, by method and status code.", "method", "code")
    publishes_abandoned: Counter = _counter(
        "Calls that publish whose callers hung up, or whose deadlines passed, after more than a"
        " second of waiting for the commit."
    )
    publishes_in_flight: Gauge = _gauge("Batches that were received and not yet acknowledged.")
    read_only: Gauge = _gauge("1 on a node that takes no messages (--read-only), else 0.")
    followers: Gauge = _gauge("Follow calls under way.")
    http_requests: Counter = _counter(
        "HTTP requests that ended, by operation and status code; 499: the caller hung up.",
        "operation",
        "code",
    )
    http_seconds: Histogram = _histogram(
        "Time from an HTTP request to the end of its answer, followers apart.",
        "operation",
        buckets=_SECONDS_BUCKETS,
    )
    http_connections: Gauge = _gauge("Open HTTP connections.")
    http_connections_refused: Counter = _counter(
        "HTTP connections that were closed: there were too many, or no request came in time.",
        "reason",
    )

    # Other stores; a dashboard finds the names also where there is none

    sync_sessions: Counter = _counter(
        "Reconciliations that ended, by role and outcome.", "role", "outcome"
    )
    sync_round_trips: Histogram = _histogram(
        "Payloads that the initiator sent in one reconciliation.", buckets=_ROUND_TRIP_BUCKETS
    )
    sync_bytes: Counter = _counter("Bytes of reconciliation payloads, by direction.", "direction")
    sync_differences: Histogram = _histogram(
        "Messages that one side lacked, in one reconciliation.", buckets=_DIFFERENCE_BUCKETS
    )
    sync_comparisons: Counter = _counter(
        "Reconciliations that ended well, by how the two sides were compared: keyed, xor, or"
        " partly_keyed.",
        "equality",
    )
    sync_modes: Counter = _counter(
        "Reconciliations that ended well, by how the differences were found: compact, or base.",
        "mode",
    )
    sync_hidden_differences: Counter = _counter(
        "Differences that lattice sums found and the fingerprints of WAKU-SYNC hid: a publisher"
        " forged them, or something is broken.",
    )
    transfer_messages: Counter = _counter(
        "Messages that reconciliation transferred, by direction and outcome.",
        "direction",
        "outcome",
    )
    peer_last_sync_timestamp_seconds: Gauge = _gauge(
        "When a peer was last reconciled with, in Unix seconds.", "peer"
    )
    peer_silent_since: Gauge = _gauge(
        "When this node and a peer last reconciled, or when a peer that only calls last did; since"
        " the start, where they have not. In Unix seconds.",
        "peer",
        name="peer_silent_since_timestamp_seconds",
    )
    peer_silence_limit_seconds: Gauge = _gauge("A peer that is silent for longer is a problem.")
    peer_absent_since: Gauge = _gauge(
        "Since when gossip has no stream with a configured peer that refuses none, in Unix seconds;"
        " 0: it has one.",
        "peer",
        name="peer_absent_since_timestamp_seconds",
    )
    peer_refusals: Gauge = _gauge(
        "Reconciliations that this node began with a configured peer and were refused in a row.",
        "peer",
    )
    peer_failures: Gauge = _gauge(
        "Reconciliations that this node began with a configured peer and that failed in a row.",
        "peer",
    )
    peer_differences: Gauge = _gauge(
        "Messages that one side still lacked after the last session that this node began with a"
        " peer over the whole history, or over a part of it (recent).",
        "peer",
        "window",
    )

    # Gossip

    unread_events: Gauge = _gauge("Messages held that too few other stores have confirmed.")
    unread_oldest_seconds: Gauge = _gauge(
        "For how long the oldest unread event has waited; 0: there is none."
    )
    unconfirmed_oldest_seconds: Gauge = _gauge(
        "For how long the oldest message lacks confirmations that --max-confirms asks for; 0:"
        " none does.",
    )
    waiting_events: Gauge = _gauge("Messages held that name a parent which is not.")
    gossip_peers: Gauge = _gauge(
        "Nodes with which messages are exchanged live, by state (connected, slowed, cut_off).",
        "state",
    )
    gossip_events: Counter = _counter(
        "What gossip did: bodies and IDs sent and received, confirmations, peers cut off.", "what"
    )
    gossip_bytes: Counter = _counter(
        "Bytes of messages that gossip sent and received.", "direction", name="gossip_body_bytes"
    )

    # The database

    database_up: Gauge = _gauge("1 while the database answers, else 0.")
    commit_age_seconds: Gauge = _gauge(
        "How long ago this node last committed anything; a node that takes no messages has none."
        " cause: why nothing is committed, empty while something is.",
        "cause",
    )
    database_hosts_refused: Gauge = _gauge(
        "Hosts of the database URL that take writes and must not."
    )
    database_timeline: Gauge = _gauge(
        "Timeline of the Postgres server in use; 0 if it is unknown or embedded."
    )
    pool_connections: Gauge = _gauge(
        "Database connections, by pool and state (idle, used) and waiting requests (waiting).",
        "pool",
        "state",
    )
    connections_refused: Gauge = _gauge(
        "1 while the database answers and gives this node no further connection; with its cause.",
        "cause",
    )
    database_events: Counter = _counter(
        "What happened to the database: connections lost, servers restarted.", "event"
    )
    feed_position: Gauge = _gauge("Commit position up to which live followers have been served.")
    partitions: Gauge = _gauge("Partitions, by table.", "table")
    maintenance_events: Counter = _counter(
        "What the maintenance of partitions did or could not do, by event.", "event"
    )
    maintenance_in_charge: Gauge = _gauge(
        "1 on the node that does the maintenance of its database, else 0."
    )
    maintenance_failing: Gauge = _gauge(
        "1 for each task of maintenance whose last attempt failed on this node.", "task"
    )
    retention_paused: Gauge = _gauge(
        "1 while a clock that is wrong keeps this node from dropping partitions, else 0."
    )
    table_bytes: Gauge = _gauge("Size of a table with its partitions and indexes.", "table")
    table_rows: Gauge = _gauge(
        "Rows of a table as Postgres counts them, by state (live, dead).", "table", "state"
    )
    table_dead_ratio: Gauge = _gauge(
        "Share of dead rows among all rows of a table; 0: there are fewer than 100,000 dead rows.",
        "table",
    )
    partitions_until: Gauge = _gauge(
        "Up to this Unix time no timestamp from now on lacks a partition.",
        name="partitions_until_timestamp_seconds",
    )
    standbys: Gauge = _gauge(
        "Standbys that are connected to the database for replication.", name="database_standbys"
    )
    standby_slots: Gauge = _gauge(
        "Replication slots of standbys: active while the standby is connected.",
        "state",
        name="database_standby_slots",
    )
    standby_lag_bytes: Gauge = _gauge(
        "Bytes of log that a standby has not replayed; only with the role pg_read_all_stats.",
        "standby",
        name="database_standby_lag_bytes",
    )
    disk_free_bytes: Gauge = _gauge(
        "Free space of the file system of an embedded database.", "volume"
    )
    disk_size_bytes: Gauge = _gauge("Size of the file system of an embedded database.", "volume")
    disk_full: Gauge = _gauge("1 while nothing is stored, since less than --min-free-disk is free.")

    # Retention

    retention_blocked: Gauge = _gauge(
        "1 while an hour is older than the retention and kept, since it is not archived."
    )
    unarchived_hours: Gauge = _gauge(
        "Hours that are over, have messages, and are not marked as archived."
    )
    oldest_unarchived: Gauge = _gauge(
        "Beginning of the oldest of these hours, in Unix seconds; 0: there is none.",
        name="oldest_unarchived_timestamp_seconds",
    )
    archived_until: Gauge = _gauge(
        "End of the newest hour marked as archived, in Unix seconds; 0: none was.",
        name="archived_until_timestamp_seconds",
    )

    # The process

    ready: Gauge = _gauge("1 while the node is able to serve, else 0.")
    health_revision: Gauge = _gauge(
        "Revision of the node's health; grows when readiness or the problems change."
    )
    clock_offset_seconds: Gauge = _gauge(
        "By how much the clock of the database or of a peer is ahead of this node's.", "other"
    )
    clock_limit_seconds: Gauge = _gauge(
        "A clock that differs by more is a problem: half of --max-clock-drift."
    )
    clocks_off_ratio: Gauge = _gauge(
        "Share of the clocks of the database and the peers that differ by more than the limit."
    )
    clock_refused_publishers: Gauge = _gauge(
        "Share of the publishers of the last five minutes whose timestamps were refused; 0: of"
        " fewer than three.",
        name="clock_refused_publishers_ratio",
    )
    certificate_expiry: Gauge = _gauge(
        "When a certificate chain, or the last authority of a file, ends, in Unix seconds.",
        "file",
        name="certificate_expiry_timestamp_seconds",
    )
    token_file_broken: Gauge = _gauge(
        "1 while the token file has changed and cannot be used, else 0."
    )
    log_events_suppressed: Gauge = _gauge(
        "Log events that were held back since the start because there were too many."
    )
    build_info: Gauge = _gauge("1, with the version.", "version")

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        for attribute, make in vars(Metrics).items():
            if isinstance(make, partial):
                name = f"storenode_{make.keywords.get('name', attribute)}"
                setattr(self, attribute, make(name=name, registry=self.registry))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.build_info.labels(version).set(1)
        for source in SOURCES:
            self.messages_stored.labels(source)
        for event in MAINTENANCE_EVENTS:
            self.maintenance_events.labels(event)
        for event in DATABASE_EVENTS:
            self.database_events.labels(event)

    def count_intake(self, source: str, duplicate: int, rejected: Mapping[str, int]) -> None:
        """Count messages that came in and were not stored; ``rejected`` by label of the reason."""
        if duplicate:
            self.messages_duplicate.labels(source).inc(duplicate)
        for label, count in rejected.items():
            self.messages_rejected.labels(source, label).inc(count)
            if label == Reason.CONFLICT:
                self.conflicts.labels(source).inc(count)

    def render(self) -> bytes:
        """Return all of them in the text format, version 0.0.4."""
        return generate_latest(self.registry)


def samples(
    metric: MetricWrapperBase, suffix: str = "", wanted: Mapping[str, Collection[str]] = {}
) -> Iterator[tuple[dict[str, str], float]]:
    """Yield the labels and values of a metric's series whose labels have one of these values.

    ``suffix`` is ``_bucket``, ``_count`` or ``_sum`` of a histogram. The library's `collect` takes
    many times as long.
    """
    names = metric._labelnames
    children: dict[Sequence[str], Any] = metric._metrics if names else {(): metric}
    for values, child in list(children.items()):
        labels = dict(zip(names, values, strict=True))
        if any(labels[name] not in wanted[name] for name in wanted if name in labels):
            continue
        series = child._child_samples() if suffix else (("", {}, child._value.get()),)
        for found, bucket, value, *_ in series:
            if found == suffix and all(
                bucket[name] in wanted.get(name, bucket[name]) for name in bucket
            ):
                yield labels | bucket, value


def total(metric: MetricWrapperBase, suffix: str = "", **labels: Collection[str]) -> float:
    """Return the sum of a metric's series whose labels have one of these values."""
    return sum(value for _, value in samples(metric, suffix, labels))


def read_totals(metrics: Metrics) -> dict[str, float]:
    """Return the counts since the start that the status page makes rates of.

    Messages by the way that they came or went; reads of any kind; calls that the node failed; and
    the batches of publishers, with the seconds that they took.
    """
    stored, pushed = metrics.messages_stored, {"bodies_pushed", "bodies_answered"}
    return {
        "published": total(stored, source={"client", "relay"}),
        "queries": total(metrics.query_seconds, "_count"),
        "gossip_in": total(stored, source={"gossip"}),
        "gossip_out": total(metrics.gossip_events, what=pushed),
        "transfer_in": total(stored, source={"transfer", "resume", "nwaku"}),
        "transfer_out": total(metrics.transfer_messages, direction={"sent"}),
        # Not DEADLINE_EXCEEDED: the request did not come in time.
        "failed": total(metrics.calls, code={"UNAVAILABLE", "INTERNAL", "UNKNOWN"})
        + total(metrics.http_requests, code={"500", "503"})
        + total(metrics.publishes_abandoned),
        "batches": total(metrics.publish_batch_seconds, "_count"),
        "batch_seconds": total(metrics.publish_batch_seconds, "_sum"),
    }
