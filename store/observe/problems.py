"""Problems of a node: the conditions of the alerts, from its own metrics.

Prometheus asks the same of the same metrics (`deploy/prometheus/rules`), and has a memory longer
than the process. Here it is for who looks at the node without one: the status page, ``storenode
status`` and ``GetStatus``. Every problem has the page of docs/runbooks that its alert has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics import MetricWrapperBase

from store.observe.metrics import HTTP_FAULTS, SERVER_FAULTS, Metrics, samples, total

RUNBOOKS: Final = "https://github.com/storenode/storenode/blob/main/docs/runbooks/"

CALLER_SILENT_S: Final = 3_600.0
"""A peer that used to call and has not for this long is told of."""

MAX_STEPS: Final = 1_024
"""Of a counter that is looked back at; with more the time that is covered is shorter."""

_MIB: Final = 1024 * 1024
_NEVER: Final = ("INTERNAL", "UNKNOWN", "DATA_LOSS")
_PUBLISHING: Final = ("Publish", "PublishStream")
_HTTP_PUBLISHING: Final = ("publish", "connect_Publish")


@dataclass(frozen=True, slots=True)
class Problem:
    """``page``: the name of its runbook. ``since_s``: Unix seconds, at most since the start."""

    page: str
    critical: bool
    sentence: str
    since_s: float

    @property
    def url(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOKS}{self.page}.md"


_Found = Iterator[tuple[str, str]]
"""What of the node is meant, where it has several, and a sentence."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """A condition: what ``find`` yields, once it has lasted for ``for_s``."""

    page: str
    critical: bool
    find: Callable[[_Look], _Found]
    for_s: float = 0.0


class _Past:
    """The values of counters at earlier looks, as far as they have changed."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[tuple[float, float]]] = {}

    def growth(self, name: str, value: float, now_s: float, window_s: float) -> float:
        """Return by how much a counter has grown in so many seconds; of a new one, all of it."""
        steps = self._steps.setdefault(name, deque([(now_s, 0.0)], maxlen=MAX_STEPS))
        if steps[-1][1] != value:
            steps.append((now_s, value))
        while len(steps) > 1 and steps[1][0] < now_s - window_s:
            steps.popleft()
        return value - steps[0][1]


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at the metrics.

    ``silent``: callers that do not call any more, and since when. ``unready``: why the node is
    not ready.
    """

    metrics: Metrics
    past: _Past
    now_s: float
    started_s: float
    silent: Mapping[str, float]
    most_standbys: float
    unready: str | None = None

    def grown(
        self, metric: MetricWrapperBase, window_s: float, suffix: str = "_total", **labels: str
    ) -> float:
        """Return the growth of the series with these labels; several values are parted by ``|``."""
        wanted: dict[str, Collection[str]] = {
            name: values.split("|") for name, values in labels.items()
        }
        value = total(metric, suffix, **wanted)
        name = f"{metric._name}{suffix}{sorted(labels.items())}{window_s}"
        return self.past.growth(name, value, self.now_s, window_s)


def _series(metric: MetricWrapperBase) -> Iterator[tuple[dict[str, str], float]]:
    return ((sample.labels, sample.value) for sample in samples(metric))


def _value(metric: MetricWrapperBase) -> float:
    return total(metric, "")


def _database_away(look: _Look) -> _Found:
    if not _value(look.metrics.database_up):
        yield "", "the database does not answer, or accepts no writes"


def _host_refused(look: _Look) -> _Found:
    hosts = _value(look.metrics.database_hosts_refused)
    if hosts:
        yield "", f"database hosts that take writes and must not: {hosts:.0f}; the log names them"


def _not_ready(look: _Look) -> _Found:
    metrics = look.metrics
    # An outage and a full disk have pages of their own.
    if not (_value(metrics.ready) or _value(metrics.disk_full)) and _value(metrics.database_up):
        reason = "" if look.unready is None else f": {look.unready}"
        yield "", f"the node is running but not ready{reason}"


def _disk_full(look: _Look) -> _Found:
    sizes = {labels["volume"]: size for labels, size in _series(look.metrics.disk_size_bytes)}
    stopped = _value(look.metrics.disk_full)
    refused = ": publishing is refused until there is more (--min-free-disk)" if stopped else ""
    for labels, free in _series(look.metrics.disk_free_bytes):
        if stopped or free < 0.05 * sizes.get(labels["volume"], 0.0):
            yield (
                labels["volume"],
                f"volume {labels['volume']} has {free / _MIB:,.0f} MiB left{refused}",
            )


def _clock(look: _Look) -> _Found:
    if look.grown(look.metrics.maintenance_events, 900, event="clock_ahead|clock_doubted"):
        yield "", "a clock is wrong: this node's or the database's; retention is paused"
    rejected = look.grown(
        look.metrics.messages_rejected, 300, source="client", reason="too_old|too_new"
    )
    off, compared = _clocks_off(look), len(list(_series(look.metrics.clock_offset_seconds)))
    if rejected and 2 * len(off) > compared:
        name, ahead_s = next(iter(off.items()))
        yield (
            "rejected",
            f"publishes are rejected for their timestamps, and {_clock_of(name, ahead_s)}",
        )


def _clock_differs(look: _Look) -> _Found:
    for name, ahead_s in _clocks_off(look).items():
        yield name, f"{_clock_of(name, ahead_s)}: set the one that is wrong"
    if _value(look.metrics.clock_refused_publishers) > 0.5:
        yield (
            "publishers",
            "most publishers' timestamps are refused: this node's clock or theirs is wrong",
        )


def _clocks_off(look: _Look) -> dict[str, float]:
    """Return the offsets of the clocks that differ from this node's by too much."""
    limit_s = _value(look.metrics.clock_limit_seconds)
    offsets = {each["other"]: value for each, value in _series(look.metrics.clock_offset_seconds)}
    return {name: value for name, value in offsets.items() if abs(value) > limit_s}


def _clock_of(name: str, ahead_s: float) -> str:
    side = "ahead of" if ahead_s > 0 else "behind"
    return f"the clock of {name} is {abs(ahead_s):,.0f} s {side} this node's"


def _commits_lost(look: _Look) -> _Found:
    if look.grown(look.metrics.database_events, 3_600, event="commits_lost"):
        yield "", "the database has lost commits that this node had seen"


def _postgres_restarts(look: _Look) -> _Found:
    times = look.grown(look.metrics.database_events, 900, event="postgres_exited")
    if times > 2:
        yield "", f"the embedded Postgres has exited {times:.0f} times within 15 minutes"


def _standby_missing(look: _Look) -> _Found:
    now = _value(look.metrics.standbys)
    if now < look.most_standbys:
        yield "", f"{now:.0f} standbys of the database are connected; there were more"


def _standby_lag(look: _Look) -> _Found:
    for labels, lag in _series(look.metrics.standby_lag_bytes):
        if lag > 64 * _MIB:
            yield labels["standby"], f"standby {labels['standby']} lags by {lag / _MIB:,.0f} MiB"


def _waiting_connections(look: _Look) -> _Found:
    for labels, number in _series(look.metrics.pool_connections):
        if labels["state"] == "waiting" and number:
            yield labels["pool"], f"calls wait for a connection of the pool {labels['pool']}"


def _dead_rows(look: _Look) -> _Found:
    rows = {(labels["table"], labels["state"]): n for labels, n in _series(look.metrics.table_rows)}
    for (table, state), dead in rows.items():
        if state == "dead" and dead > 100_000 and dead > 0.2 * rows.get((table, "live"), 0.0):
            yield table, f"{dead:,.0f} dead rows in {table}"


def _partitions(look: _Look) -> _Found:
    until_s = _value(look.metrics.partitions_until)
    if until_s and until_s - look.now_s < 36 * 3_600:
        yield "", "partitions for new messages run out within 36 hours"


def _maintenance(look: _Look) -> _Found:
    failed = "maintenance_failed|maintenance_disconnected"
    if look.grown(look.metrics.maintenance_events, 1_800, event=failed) > 5:
        yield "", "partition maintenance fails"


def _retention(look: _Look) -> _Found:
    if look.grown(look.metrics.maintenance_events, 3_600, event="retention_problem") > 30:
        yield "", "retention cannot drop expired partitions"


def _retention_waits(look: _Look) -> _Found:
    metrics = look.metrics
    oldest_s, age_s = _value(metrics.oldest_unarchived), _value(metrics.retention_seconds)
    waits = _value(metrics.retention_requires_archive) and oldest_s and age_s
    if waits and look.now_s - oldest_s > age_s:
        yield "", "retention waits for the archive, and no space is freed"


def _archive(look: _Look) -> _Found:
    oldest_s = _value(look.metrics.oldest_unarchived)
    if oldest_s and _value(look.metrics.archived_until) and look.now_s - oldest_s > 26 * 3_600:
        yield "", f"the oldest hour that is not archived is {_hours(look.now_s - oldest_s)} old"


def _peer_unreachable(look: _Look) -> _Found:
    for labels, failures in _series(look.metrics.peer_failures):
        if failures >= 3:
            yield (
                labels["peer"],
                f"the last {failures:,.0f} sessions with {labels['peer']} have failed",
            )


def _peer_silent(look: _Look) -> _Found:
    interval_s = _value(look.metrics.sync_interval_seconds)
    peers = [labels["peer"] for labels, _ in _series(look.metrics.peer_failures)]
    last = {
        labels["peer"]: when
        for labels, when in _series(look.metrics.peer_last_sync_timestamp_seconds)
    }
    longest_s = 3_600 + 10 * interval_s * len(peers)
    for peer in peers if interval_s else ():
        if peer in last and look.now_s - last[peer] > longest_s:
            yield peer, f"not reconciled with {peer} for {_hours(look.now_s - last[peer])}"
        if peer not in last and look.now_s - look.started_s > 6 * 3_600:
            yield peer, f"not reconciled with {peer} since the start"
    for name, seen_s in look.silent.items():
        yield (
            name,
            f"{name} used to call this node and has not for {_hours(look.now_s - seen_s)}",
        )


def _refused(look: _Look) -> _Found:
    # Sessions that others begin may be anybody's where peers need no certificate.
    refused = look.grown(look.metrics.sync_sessions, 3_600, role="initiator", outcome="refused")
    if refused > 2:
        yield "", "a peer and this node refuse to reconcile"


def _differences(look: _Look) -> _Found:
    for labels, number in _series(look.metrics.peer_differences):
        if number:
            peer, window = labels["peer"], labels["window"]
            yield f"{peer} {window}", f"{peer} and this node keep differing ({window} history)"


def _forged(look: _Look) -> _Found:
    if look.grown(look.metrics.sync_hidden_differences, 3_600):
        yield "", "differences were hidden from WAKU-SYNC's fingerprints: somebody forges"


def _cut_off(look: _Look) -> _Found:
    for labels, number in _series(look.metrics.gossip_peers):
        if labels["state"] == "cut_off" and number:
            yield "", f"{number:.0f} peers are cut off from gossip"


def _unread(look: _Look) -> _Found:
    if _value(look.metrics.unconfirmed_oldest_seconds) > 300:
        yield "", "a message lacks the confirmations of --max-confirms for more than five minutes"


def _publish_errors(look: _Look) -> _Found:
    if _value(look.metrics.read_only):
        return  # whoever publishes here has come to the wrong node
    calls, requests = look.metrics.calls, look.metrics.http_requests
    methods, operations = "|".join(_PUBLISHING), "|".join(_HTTP_PUBLISHING)
    failed = look.grown(calls, 300, method=methods, code="|".join(SERVER_FAULTS))
    failed += look.grown(requests, 300, operation=operations, code="|".join(HTTP_FAULTS))
    every = look.grown(calls, 300, method=methods)
    every += look.grown(requests, 300, operation=operations)
    if failed and failed > 0.01 * every:
        yield "", "publishing fails: more than one call in a hundred"


def _publish_slow(look: _Look) -> _Found:
    timed = look.metrics.publish_batch_seconds
    every = look.grown(timed, 600, "_count")
    if every and look.grown(timed, 600, "_bucket", le="1.0") < 0.99 * every:
        yield "", "one batch in a hundred takes more than a second to be durable"


def _reads_slow(look: _Look) -> _Found:
    # Streams last as long as their callers take to read them.
    timed = look.metrics.query_seconds
    every = look.grown(timed, 600, "_count", method="Query")
    if every and look.grown(timed, 600, "_bucket", method="Query", le="2.5") < 0.99 * every:
        yield "", "one Query in a hundred takes more than 2.5 s"


def _calls_failing(look: _Look) -> _Found:
    failed = look.grown(look.metrics.calls, 600, code="|".join(_NEVER))
    if failed + look.grown(look.metrics.http_requests, 600, code="500"):
        yield "", "calls fail with an internal error, which the log explains"


RULES: Final = (
    _Rule("database-unreachable", critical=True, find=_database_away),
    _Rule("database-host-refused", critical=True, find=_host_refused),
    _Rule("node-not-ready", critical=True, find=_not_ready),
    _Rule("disk-full", critical=True, find=_disk_full),
    _Rule("clock-wrong", critical=True, find=_clock),
    _Rule("clock-differs", critical=False, find=_clock_differs),
    _Rule("commits-lost", critical=True, find=_commits_lost),
    _Rule("postgres-restarting", critical=True, find=_postgres_restarts),
    _Rule("standby-missing", critical=False, find=_standby_missing, for_s=60),
    _Rule("replication-lag", critical=False, find=_standby_lag, for_s=60),
    _Rule("connections-exhausted", critical=False, find=_waiting_connections, for_s=60),
    _Rule("dead-tuples", critical=False, find=_dead_rows, for_s=3_600),
    _Rule("partitions-missing", critical=False, find=_partitions, for_s=900),
    _Rule("maintenance-failing", critical=False, find=_maintenance),
    _Rule("retention-failing", critical=False, find=_retention),
    _Rule("retention-blocked-by-archive", critical=True, find=_retention_waits),
    _Rule("archive-behind", critical=False, find=_archive),
    _Rule("peer-unreachable", critical=False, find=_peer_unreachable),
    _Rule("peer-silent", critical=False, find=_peer_silent),
    _Rule("sync-refused", critical=False, find=_refused),
    _Rule("differences-not-shrinking", critical=False, find=_differences, for_s=3 * 3_600),
    _Rule("forged-fingerprint", critical=True, find=_forged),
    _Rule("gossip-peer-cut-off", critical=False, find=_cut_off),
    _Rule("unread-events-ageing", critical=False, find=_unread),
    _Rule("publish-errors", critical=True, find=_publish_errors, for_s=60),
    _Rule("publish-slow", critical=False, find=_publish_slow, for_s=120),
    _Rule("reads-slow", critical=False, find=_reads_slow, for_s=120),
    _Rule("calls-failing", critical=False, find=_calls_failing),
)


class Problems:
    """Looks again and again, and remembers since when each problem lasts."""

    def __init__(self, metrics: Metrics, now_s: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._now_s = now_s
        self._started_s = now_s()
        self._past = _Past()
        self._since: dict[tuple[str, str], float] = {}
        self._most_standbys = 0.0
        self._present: Sequence[Problem] = ()

    @property
    def present(self) -> Sequence[Problem]:
        """The problems at the last look: critical problems first, then the oldest."""
        return self._present

    def look(self, silent: Iterable[tuple[str, float]] = (), unready: str | None = None) -> None:
        """Find the problems that are present.

        Args:
            silent: Callers that are not connected, and when they last called.
            unready: Why the node is not ready; None if it is.
        """
        now_s, metrics = self._now_s(), self._metrics
        self._most_standbys = max(self._most_standbys, _value(metrics.standbys))
        quiet = {name: when for name, when in silent if now_s - when > CALLER_SILENT_S}
        look = _Look(
            metrics, self._past, now_s, self._started_s, quiet, self._most_standbys, unready
        )
        found: list[Problem] = []
        since: dict[tuple[str, str], float] = {}
        for rule in RULES:
            for subject, sentence in rule.find(look):
                key = rule.page, subject
                since[key] = self._since.get(key, now_s)
                if now_s - since[key] >= rule.for_s:
                    found.append(Problem(rule.page, rule.critical, sentence, since[key]))
        self._since = since
        self._present = tuple(sorted(found, key=lambda each: (not each.critical, each.since_s)))


def _hours(seconds: float) -> str:
    return f"{seconds / 3_600:,.1f} hours"
