"""Faults of a node as its metrics show them, minute by minute: the fault, and its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from prometheus_client.metrics import MetricWrapperBase

from store.observe.metrics import Metrics
from store.observe.problems import Problems

DAY_S: Final = 86_400.0
START_S: Final = 60.0
WELL_MIN: Final = 5
"""Minutes without a fault at first."""

Change = Callable[[Metrics, float], object]
"""Changes metrics at a time, in Unix seconds."""


@dataclass(frozen=True)
class Fault:
    """A fault and its end.

    Attributes:
        name: Of the fault.
        pages: The problems that the fault is.
        begin: What happens in each minute of the fault.
        end: What happens when it is over.
        minutes: How long it lasts.
        settle_min: When no problem is present any more, after its end.
    """

    name: str
    pages: Sequence[str]
    begin: Change
    end: Change = lambda _metrics, _now_s: None
    minutes: int = 10
    settle_min: int = 2

    @property
    def step_min(self) -> int:
        """The minutes between two looks."""
        return 10 if self.minutes > 600 else 1


def healthy(now_s: float = START_S) -> Metrics:
    """Return the metrics of a node without problems, with two peers and an archive."""
    metrics = Metrics("test")
    metrics.ready.set(1)
    metrics.database_up.set(1)
    metrics.commit_age_seconds.labels("").set(1)
    metrics.disk_size_bytes.labels("data").set(100)
    metrics.disk_free_bytes.labels("data").set(50)
    metrics.peer_silence_limit_seconds.set(9_600)
    for peer in ("a:1", "b:1"):
        metrics.peer_failures.labels(peer).set(0)
        metrics.peer_refusals.labels(peer).set(0)
        metrics.peer_silent_since.labels(peer).set(now_s)
        metrics.peer_differences.labels(peer, "recent").set(0)
    metrics.partitions_until.set(now_s + 30 * DAY_S)
    metrics.oldest_unarchived.set(now_s)
    metrics.archived_until.set(now_s)
    metrics.certificate_expiry.labels("node.pem").set(now_s + 90 * DAY_S)
    metrics.clock_limit_seconds.set(10)
    for clock in ("database", "node-b"):
        metrics.clock_offset_seconds.labels(clock).set(0.1)
    metrics.standbys.set(1)
    metrics.pool_connections.labels("read", "waiting").set(0)
    for code in ("OK", "UNAVAILABLE", "INTERNAL"):
        metrics.calls.labels("Publish", code)
    metrics.http_requests.labels("publish", "503")
    for reason in ("too_old", "too_new"):
        metrics.messages_rejected.labels("client", reason)
    serve(metrics)
    return metrics


def serve(metrics: Metrics) -> None:
    """Publish and query without any failure."""
    metrics.calls.labels("Publish", "OK").inc(1_000)
    for _ in range(10):
        metrics.publish_batch_seconds.observe(0.01)
        metrics.query_seconds.labels("Query").observe(0.01)


def _slow_batches(metrics: Metrics, _now_s: float) -> None:
    for _ in range(50):
        metrics.publish_batch_seconds.observe(3.0)


def _slow_reads(metrics: Metrics, _now_s: float) -> None:
    for _ in range(50):
        metrics.query_seconds.labels("Query").observe(9.0)


def _wrong_clock(metrics: Metrics, _now_s: float) -> None:
    for clock in ("database", "node-b"):
        metrics.clock_offset_seconds.labels(clock).set(7_200)
    metrics.clocks_off_ratio.set(1)
    metrics.messages_rejected.labels("client", "too_new").inc(5)


def _refuse_most(metrics: Metrics, _now_s: float) -> None:
    """Show a clock of node and database that is wrong, and a peer's that is right."""
    metrics.clock_offset_seconds.labels("node-b").set(300)
    metrics.clocks_off_ratio.set(0.5)
    metrics.clock_refused_publishers.set(1)


def _take_all(metrics: Metrics, _now_s: float) -> None:
    metrics.clock_offset_seconds.labels("node-b").set(0)
    metrics.clocks_off_ratio.set(0)
    metrics.clock_refused_publishers.set(0)


def _right_clock(metrics: Metrics, _now_s: float) -> None:
    for clock in ("database", "node-b"):
        metrics.clock_offset_seconds.labels(clock).set(0)
    metrics.clocks_off_ratio.set(0)


def _remove_standby(metrics: Metrics, now_s: float) -> None:
    """Stop a standby that has a slot, and drop the slot a minute later."""
    minute = round((now_s - START_S) / 60 - WELL_MIN)
    standbys, active, inactive = [(1, 1, 0), (0, 0, 1), (0, 0, 0)][min(minute, 2)]
    metrics.standbys.set(standbys)
    metrics.standby_slots.labels("active").set(active)
    metrics.standby_slots.labels("inactive").set(inactive)


def _commit_nothing(metrics: Metrics, now_s: float) -> None:
    metrics.ready.set(0)
    metrics.commit_age_seconds.clear()
    cause = "commits wait for synchronous replication"
    metrics.commit_age_seconds.labels(cause).set(now_s - WELL_MIN * 60 + 5)


def _commit_again(metrics: Metrics, _now_s: float) -> None:
    metrics.ready.set(1)
    metrics.commit_age_seconds.clear()
    metrics.commit_age_seconds.labels("").set(1)


def _fail_over(metrics: Metrics, _now_s: float) -> None:
    metrics.commit_age_seconds.clear()
    metrics.commit_age_seconds.labels("the database cannot be reached").set(15)


def _lose_peer(metrics: Metrics, _now_s: float) -> None:
    metrics.peer_absent_since.labels("b:1").set(WELL_MIN * 60)


def _find_peer(metrics: Metrics, _now_s: float) -> None:
    metrics.peer_absent_since.labels("b:1").set(0)


def _publish_at_a_reader(metrics: Metrics, _now_s: float) -> None:
    metrics.read_only.set(1)
    metrics.calls.labels("Publish", "UNAVAILABLE").inc(200)


def _refused_publishes(metrics: Metrics, _now_s: float) -> None:
    for code in ("INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"):
        metrics.calls.labels("Publish", code).inc(500)


def _gauges(**values: float) -> Change:
    def change(metrics: Metrics, _now_s: float) -> None:
        for name, value in values.items():
            getattr(metrics, name).set(value)

    return change


def _gauge(
    name: str, page: str, series: str, values: tuple[float, float], *, minutes: int = 10
) -> Fault:
    """Return a fault that sets a gauge, ``name/label/…``, to a value and back to another."""
    metric, *labels = series.split("/")

    def setting(value: float) -> Change:
        def change(metrics: Metrics, _now_s: float) -> None:
            gauge = getattr(metrics, metric)
            (gauge.labels(*labels) if labels else gauge).set(value)

        return change

    bad, good = values
    return Fault(name, (page,) if page else (), setting(bad), setting(good), minutes)


FAULTS: Final = (
    Fault(
        "the database is away",
        ("database-unreachable",),
        _gauges(database_up=0, ready=0),
        _gauges(database_up=1, ready=1),
    ),
    _gauge(
        "a former primary takes writes", "database-host-refused", "database_hosts_refused", (1, 0)
    ),
    _gauge("the node takes no writes", "node-not-ready", "ready", (0, 1)),
    Fault("nothing commits", ("nothing-commits",), _commit_nothing, _commit_again),
    Fault("commits take a quarter of a minute", (), _fail_over, _commit_again),
    Fault(
        "nothing is stored, since the disk is full",
        ("disk-full",),
        _gauges(disk_full=1, ready=0),
        _gauges(disk_full=0, ready=1),
    ),
    _gauge("the disk is almost full", "disk-full", "disk_free_bytes/data", (4, 40)),
    _gauge("the clock jumped, and retention is paused", "clock-wrong", "retention_paused", (1, 0)),
    Fault(
        "this node's clock is wrong, and publishes are rejected",
        ("clock-wrong", "clock-differs"),
        _wrong_clock,
        _right_clock,
    ),
    Fault(
        "the clock of this machine is wrong, and most publishers are refused",
        ("clock-wrong", "clock-differs"),
        _refuse_most,
        _take_all,
    ),
    _gauge(
        "the clock of one peer is wrong", "clock-differs", "clock_offset_seconds/node-b", (-11, 0)
    ),
    _gauge(
        "most publishers' clocks are wrong", "clock-differs", "clock_refused_publishers", (0.8, 0.2)
    ),
    Fault(
        "commits are lost",
        ("commits-lost",),
        lambda m, _: m.database_events.labels("commits_lost").inc(),
        minutes=1,
        settle_min=63,
    ),
    Fault(
        "the embedded Postgres is killed again and again",
        ("postgres-restarting",),
        lambda m, _: m.database_events.labels("postgres_exited").inc(),
        settle_min=18,
    ),
    _gauge("a standby is away", "standby-missing", "standbys", (0, 1)),
    _gauge("the standby of a slot is away", "standby-missing", "standby_slots/inactive", (1, 0)),
    Fault("a standby was removed, and its slot dropped", (), _remove_standby),
    Fault("a standby was removed a day ago", (), lambda m, _: m.standbys.set(0), minutes=25 * 60),
    _gauge("a standby lags", "replication-lag", "standby_lag_bytes/s", (10**9, 0)),
    _gauge(
        "calls wait for connections",
        "connections-exhausted",
        "pool_connections/read/waiting",
        (2, 0),
    ),
    _gauge(
        "the database gives no further connection",
        "connections-exhausted",
        "connections_refused/the database has no free connection for this node",
        (1, 0),
    ),
    _gauge(
        "dead rows accumulate", "dead-tuples", "table_dead_ratio/messages", (0.5, 0), minutes=65
    ),
    Fault(
        "partitions run out",
        ("partitions-missing",),
        lambda m, now_s: m.partitions_until.set(now_s + DAY_S),
        lambda m, now_s: m.partitions_until.set(now_s + 30 * DAY_S),
        minutes=20,
    ),
    _gauge("maintenance fails", "maintenance-failing", "maintenance_failing/fold", (1, 0)),
    _gauge(
        "maintenance fails for three minutes", "", "maintenance_failing/fold", (1, 0), minutes=3
    ),
    Fault(
        "five connections of maintenance are lost",
        (),
        lambda m, _: m.maintenance_events.labels("maintenance_disconnected").inc(5),
    ),
    _gauge(
        "retention cannot drop partitions",
        "retention-failing",
        "maintenance_failing/retention",
        (1, 0),
        minutes=40,
    ),
    _gauge("a lower retention is held", "retention-held", "retention_overdue_days", (29, 0)),
    _gauge(
        "retention waits for the archive",
        "retention-blocked-by-archive",
        "retention_blocked",
        (1, 0),
    ),
    Fault(
        "nothing is archived any more",
        ("archive-behind",),
        lambda m, _: m.oldest_unarchived.set(START_S),
        lambda m, now_s: m.oldest_unarchived.set(now_s),
        minutes=27 * 60,
    ),
    _gauge("sessions with a peer fail", "peer-unreachable", "peer_failures/a:1", (3, 0)),
    Fault("a peer is away", ("peer-unreachable",), _lose_peer, _find_peer),
    Fault("a peer is restarted", (), _lose_peer, _find_peer, minutes=3),
    Fault(
        "a peer is silent",
        ("peer-silent",),
        lambda m, _: m.peer_silent_since.labels("b:1").set(START_S),
        lambda m, now_s: m.peer_silent_since.labels("b:1").set(now_s),
        minutes=165,
    ),
    Fault(
        "a peer is of another cluster",
        ("sync-refused",),
        lambda m, _: m.peer_refusals.labels("a:1").inc(),
        lambda m, _: m.peer_refusals.labels("a:1").set(0),
    ),
    _gauge(
        "differences stay",
        "differences-not-shrinking",
        "peer_differences/a:1/recent",
        (7, 0),
        minutes=200,
    ),
    Fault(
        "differences shrink",
        (),
        lambda m, now_s: m.peer_differences.labels("a:1", "recent").set(1_000_000 - now_s),
        minutes=220,
    ),
    Fault(
        "fingerprints are forged",
        ("forged-fingerprint",),
        lambda m, _: m.sync_hidden_differences.inc(),
        settle_min=63,
    ),
    _gauge("a peer is cut off", "gossip-peer-cut-off", "gossip_peers/cut_off", (1, 0)),
    _gauge(
        "confirmations are missing", "unread-events-ageing", "unconfirmed_oldest_seconds", (301, 0)
    ),
    Fault(
        "publishing fails",
        ("publish-errors",),
        lambda m, _: m.calls.labels("Publish", "UNAVAILABLE").inc(200),
    ),
    Fault(
        "callers give up while nothing is committed",
        ("publish-errors",),
        lambda m, _: m.publishes_abandoned.inc(200),
    ),
    Fault(
        "some publishes fail in one moment",
        (),
        lambda m, _: m.calls.labels("Publish", "UNAVAILABLE").inc(200),
        minutes=1,
    ),
    Fault(
        "publishing over HTTP fails",
        ("publish-errors",),
        lambda m, _: m.http_requests.labels("publish", "503").inc(200),
    ),
    Fault("clients publish at a node that only reads", (), _publish_at_a_reader),
    Fault("clients send malformed, late and too many requests", (), _refused_publishes),
    Fault(
        "one publisher's clock is wrong",
        (),
        lambda m, _: m.messages_rejected.labels("client", "too_old").inc(500),
    ),
    Fault(
        "strangers ask for sessions that are refused",
        (),
        lambda m, _: m.sync_sessions.labels("responder", "refused").inc(9),
    ),
    Fault("batches are slow", ("publish-slow",), _slow_batches, minutes=20, settle_min=13),
    Fault("queries are slow", ("reads-slow",), _slow_reads, minutes=20, settle_min=13),
    Fault(
        "streams to slow readers last long",
        (),
        lambda m, _: m.query_seconds.labels("GetSdsMessages").observe(60.0),
    ),
    Fault(
        "calls fail with an internal error",
        ("calls-failing", "publish-errors"),
        lambda m, _: m.calls.labels("Publish", "INTERNAL").inc(50),
        settle_min=7,
    ),
    Fault(
        "a certificate ends soon",
        ("certificate-expiring",),
        lambda m, now_s: m.certificate_expiry.labels("node.pem").set(now_s + 13 * DAY_S),
        lambda m, now_s: m.certificate_expiry.labels("node.pem").set(now_s + 90 * DAY_S),
    ),
    Fault(
        "a certificate ends tomorrow",
        ("certificate-expiring", "certificate-ending"),
        lambda m, now_s: m.certificate_expiry.labels("node.pem").set(now_s + DAY_S),
        lambda m, now_s: m.certificate_expiry.labels("node.pem").set(now_s + 90 * DAY_S),
    ),
    _gauge("the token file is broken", "token-file-broken", "token_file_broken", (1, 0)),
)


def record(
    fault: Fault, names: Collection[str] = ()
) -> tuple[list[dict[str, float]], dict[int, frozenset[str]]]:
    """Record a fault, step by step.

    Returns:
        The value of each series of these names at every step, and the problems of the node at some
        minutes: before the fault, at its end, after it.
    """
    now_s = [START_S]
    metrics = healthy()
    problems, named = Problems(metrics, lambda: now_s[0]), _named(metrics, names)
    step = fault.step_min
    over_min = step * (WELL_MIN + fault.minutes // step)
    end_min = over_min + step * fault.settle_min
    recorded: list[dict[str, float]] = []
    present: dict[int, frozenset[str]] = {}
    for minute in range(step, end_min + 1, step):
        now_s[0] = 60.0 * minute
        serve(metrics)
        if "silent" not in fault.name:
            metrics.peer_silent_since.labels("b:1").set(now_s[0])
        metrics.peer_silent_since.labels("a:1").set(now_s[0])
        if "archived" not in fault.name:
            metrics.oldest_unarchived.set(now_s[0])
        if step * WELL_MIN <= minute < over_min:
            fault.begin(metrics, now_s[0])
        if minute == over_min:
            fault.end(metrics, now_s[0])
        found = problems.evaluate()
        if minute in (step * (WELL_MIN - 1), over_min - step, end_min):
            present[minute] = frozenset(each.page for each in found)
        recorded.append(_samples(named, names))
    return recorded, present


def _named(metrics: Metrics, names: Collection[str]) -> list[MetricWrapperBase]:
    """Return the metrics with series of these names."""
    every = [each for each in vars(metrics).values() if isinstance(each, MetricWrapperBase)]
    return [each for each in every if any(name.startswith(each._name) for name in names)]


def _samples(named: Sequence[MetricWrapperBase], names: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in chain.from_iterable(each.samples for of in named for each in of.collect()):
        if sample.name in names:
            labels = (f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{','.join(labels)}}}"] = sample.value
    return found
