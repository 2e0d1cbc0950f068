"""Faults of a node as its metrics show them, minute by minute: the fault, and its end."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

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


def _remove_standby(metrics: Metrics, now_s: float) -> None:
    """Stop a standby that has a slot, and drop the slot a minute later."""
    minute = round((now_s - START_S) / 60 - WELL_MIN)
    standbys, active, inactive = [(1, 1, 0), (0, 0, 1), (0, 0, 0)][min(minute, 2)]
    metrics.standbys.set(standbys)
    metrics.standby_slots.labels("active").set(active)
    metrics.standby_slots.labels("inactive").set(inactive)


def _commit_nothing(metrics: Metrics, now_s: float) -> None:
    cause = "commits wait for synchronous replication"
    _commit(metrics, cause, now_s - WELL_MIN * 60 + 5)


def _commit(metrics: Metrics, cause: str = "", age_s: float = 1) -> None:
    metrics.ready.set(not age_s > 15)
    metrics.commit_age_seconds.clear()
    metrics.commit_age_seconds.labels(cause).set(age_s)


_FAULTS: Final = (
    Fault("nothing commits", ("nothing-commits",), _commit_nothing, lambda m, _: _commit(m)),
    Fault(
        "commits take a quarter of a minute",
        (),
        lambda m, _: _commit(m, "the database cannot be reached", 15),
        lambda m, _: _commit(m),
    ),
    Fault("a standby was removed, and its slot dropped", (), _remove_standby),
)
_TABLE: Final = """
the database is away: database_up 0, ready 0 | database_up 1, ready 1 = database-unreachable
a former primary takes writes: database_hosts_refused 1 | 0 = database-host-refused
the node takes no writes: ready 0 | 1 = node-not-ready
nothing is stored, since the disk is full: disk_full 1, ready 0 | disk_full 0, ready 1 = disk-full
the disk is almost full: disk_free_bytes/data 4 | 40 = disk-full
the clock jumped, and retention is paused: retention_paused 1 | 0 = clock-wrong
this node's clock is wrong, and publishes are rejected: clock_offset_seconds/database 7200,
    clock_offset_seconds/node-b 7200, clocks_off_ratio 1, messages_rejected/client/too_new +5 |
    clock_offset_seconds/database 0, clock_offset_seconds/node-b 0, clocks_off_ratio 0
    = clock-wrong clock-differs
the clock of this machine is wrong, and most publishers are refused:
    clock_offset_seconds/node-b 300,
    clocks_off_ratio 0.5, clock_refused_publishers 1 |
    clock_offset_seconds/node-b 0, clocks_off_ratio 0, clock_refused_publishers 0
    = clock-wrong clock-differs
the clock of one peer is wrong: clock_offset_seconds/node-b -11 | 0 = clock-differs
most publishers' clocks are wrong: clock_refused_publishers 0.8 | 0.2 = clock-differs
commits are lost: database_events/commits_lost +1 = commits-lost 1 min, then 63
the embedded Postgres is killed again and again: database_events/postgres_exited +1
    = postgres-restarting 10 min, then 18
a standby is away: standbys 0 | 1 = standby-missing
the standby of a slot is away: standby_slots/inactive 1 | 0 = standby-missing
a standby was removed a day ago: standbys 0 = 1500 min
a standby lags: standby_lag_bytes/s 1e9 | 0 = replication-lag
calls wait for connections: pool_connections/read/waiting 2 | 0 = connections-exhausted
the database gives no further connection:
    connections_refused/the database has no free connection for this node 1 | 0
    = connections-exhausted
dead rows accumulate: table_dead_ratio/messages 0.5 | 0 = dead-tuples 65 min
partitions run out: partitions_until now+1d | now+30d = partitions-missing 20 min
maintenance fails: maintenance_failing/fold 1 | 0 = maintenance-failing
maintenance fails for three minutes: maintenance_failing/fold 1 | 0 = 3 min
five connections of maintenance are lost: maintenance_events/maintenance_disconnected +5 =
retention cannot drop partitions: maintenance_failing/retention 1 | 0 = retention-failing 40 min
retention waits for the archive: retention_blocked 1 | 0 = retention-blocked-by-archive
nothing is archived any more: oldest_unarchived 60 | now+0d = archive-behind 1620 min
sessions with a peer fail: peer_failures/a:1 3 | 0 = peer-unreachable
a peer is away: peer_absent_since/b:1 300 | 0 = peer-unreachable
a peer is restarted: peer_absent_since/b:1 300 | 0 = 3 min
a peer is silent: peer_silent_since/b:1 60 | now+0d = peer-silent 165 min
a peer is of another cluster: peer_refusals/a:1 +1 | peer_refusals/a:1 0 = sync-refused
differences stay: peer_differences/a:1/recent 7 | 0 = differences-not-shrinking 200 min
differences shrink: peer_differences/a:1/recent 1e6-now = 220 min
fingerprints are forged: sync_hidden_differences +1 = forged-fingerprint 10 min, then 63
a peer is cut off: gossip_peers/cut_off 1 | 0 = gossip-peer-cut-off
confirmations are missing: unconfirmed_oldest_seconds 301 | 0 = unread-events-ageing
publishing fails: calls/Publish/UNAVAILABLE +200 = publish-errors
callers give up while nothing is committed: publishes_abandoned +200 = publish-errors
some publishes fail in one moment: calls/Publish/UNAVAILABLE +200 = 1 min
publishing over HTTP fails: http_requests/publish/503 +200 = publish-errors
clients publish at a node that only reads: read_only 1, calls/Publish/UNAVAILABLE +200 =
clients send malformed, late and too many requests: calls/Publish/INVALID_ARGUMENT +500,
    calls/Publish/DEADLINE_EXCEEDED +500, calls/Publish/RESOURCE_EXHAUSTED +500 =
one publisher's clock is wrong: messages_rejected/client/too_old +500 =
strangers ask for sessions that are refused: sync_sessions/responder/refused +9 =
batches are slow: publish_batch_seconds 50*3 = publish-slow 20 min, then 13
queries are slow: query_seconds/Query 50*9 = reads-slow 20 min, then 13
streams to slow readers last long: query_seconds/GetSdsMessages 1*60 =
calls fail with an internal error: calls/Publish/INTERNAL +50
    = calls-failing publish-errors 10 min, then 7
a certificate ends soon: certificate_expiry/node.pem now+13d | now+90d = certificate-expiring
a certificate ends tomorrow: certificate_expiry/node.pem now+1d | now+90d
    = certificate-expiring certificate-ending
the token file is broken: token_file_broken 1 | 0 = token-file-broken
"""
"""The faults, one per line: events in each minute | events after its end = its problems. A series
and the value of its gauge; ``+n``: more of a counter; ``n*x``: observations."""


def _change(text: str, series: str = "") -> Change:
    """Return a change of metrics; the series may be that of the fault's begin."""
    changes = [each.strip().rpartition(" ") for each in text.split(",") if each.strip()]

    def change(metrics: Metrics, now_s: float) -> None:
        for named, _, value in changes:
            name, *labels = (named or series).split("/")
            metric = getattr(metrics, name)
            _set(metric.labels(*labels) if labels else metric, value, now_s)

    return change


def _set(metric: Any, value: str, now_s: float) -> None:  # noqa: ANN401 - of any kind
    if value.startswith("+"):
        metric.inc(float(value))
    elif value.startswith("now+"):
        metric.set(now_s + float(value[4:-1]) * DAY_S)
    elif value.endswith("-now"):
        metric.set(float(value[:-4]) - now_s)
    elif "*" in value:
        count, observed = value.split("*")
        for _ in range(int(count)):
            metric.observe(float(observed))
    else:
        metric.set(float(value))


def _fault(row: str) -> Fault:
    """Return the fault of a row."""
    name, changes, pages, minutes, settle_min = re.fullmatch(  # type: ignore[union-attr]
        r"(.*?): ([^=]*)=([a-z -]*)(?: (\d+) min)?(?:, then (\d+))?", " ".join(row.split())
    ).groups()
    begin, _, end = changes.partition("|")
    settles = {"settle_min": int(settle_min)} if settle_min else {}
    series = begin.strip().rpartition(" ")[0]
    return Fault(
        name,
        tuple(pages.split()),
        _change(begin),
        _change(end, series),
        int(minutes or 10),
        **settles,
    )


FAULTS: Final = (*_FAULTS, *map(_fault, re.split(r"\n(?! )", _TABLE.strip())))


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
    problems, named = Problems(metrics, *2 * [lambda: now_s[0]]), _named(metrics, names)
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
