"""The problems of a node, each defined once: condition, duration, severity, sentence and runbook.

The status page, ``storenode status`` and ``GetStatus`` evaluate the definitions on the node's own
metrics. The alerts of Prometheus (`deploy/prometheus/rules`) are generated from the same
definitions by `tools/generate_rules.py`, so that both have the same conditions and durations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from store.observe.metrics import (
    FAILING,
    HTTP_FAILING,
    HTTP_FAULTS,
    HTTP_PUBLISHING,
    PUBLISHING,
    SERVER_FAULTS,
    Metrics,
    samples,
)

RUNBOOKS: Final = "https://github.com/storenode/storenode/blob/main/docs/runbooks/"
DAY_S: Final = 86_400.0

MAX_STEPS: Final = 1_024
"""Changes of a metric that are kept; with more, the time that is covered is shorter."""

_MIB: Final = 1024 * 1024

Labels: TypeAlias = tuple[tuple[str, str], ...]
Vector: TypeAlias = dict[Labels, float]


@dataclass(frozen=True, slots=True)
class Series:
    """The series of a metric, an attribute of `Metrics`, whose labels have one of these values."""

    metric: str
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    suffix: str = ""


class _Past:
    """The values that series had at earlier evaluations, as far as they have changed."""

    def __init__(self) -> None:
        self._steps: dict[object, deque[tuple[float, float]]] = {}

    def window(
        self, key: object, value: float, now_s: float, window_s: float, first: float
    ) -> deque[tuple[float, float]]:
        """Return times and values, the oldest first; a new series had the value ``first``."""
        steps = self._steps.setdefault(key, deque([(now_s, first)], maxlen=MAX_STEPS))
        if steps[-1][1] != value:
            steps.append((now_s, value))
        while len(steps) > 1 and steps[1][0] <= now_s - window_s:
            steps.popleft()
        return steps


@dataclass(frozen=True, slots=True)
class _Moment:
    metrics: Metrics
    past: _Past
    now_s: float

    def vector(self, series: Series) -> Vector:
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for sample in samples(getattr(self.metrics, series.metric))
            if sample.name.endswith(series.suffix)
            and all(sample.labels.get(name) in of for name, of in series.labels.items())
        }

    def total(self, series: Sequence[Series]) -> float:
        return sum(sum(self.vector(each).values()) for each in series)

    def value(self, metric: str) -> float:
        return self.total([Series(metric)])

    def growth(self, series: Sequence[Series], window_s: float) -> float:
        value, key = self.total(series), repr((series, window_s))
        return value - self.past.window(key, value, self.now_s, window_s, 0.0)[0][1]

    def windows(
        self, series: Series, window_s: float, *, whole: bool = False
    ) -> dict[Labels, list[float]]:
        """Return the values within a window; with ``whole`` of series that are as old alone."""
        found: dict[Labels, list[float]] = {}
        for labels, value in self.vector(series).items():
            key = series.metric, window_s, labels
            steps = self.past.window(key, value, self.now_s, window_s, value)
            if not whole or steps[0][0] <= self.now_s - window_s:
                found[labels] = [each for _, each in steps]
        return found


@dataclass(frozen=True, slots=True)
class Above:
    """A value is above a bound, or above the value of the metric ``limit``."""

    series: Series
    bound: float = 0.0
    limit: str = ""
    absolute: bool = False


@dataclass(frozen=True, slots=True)
class Zero:
    """A value is zero."""

    series: Series


@dataclass(frozen=True, slots=True)
class SmallPart:
    """A value is less than a share of another metric's with the same labels."""

    series: Series
    whole: Series
    share: float


@dataclass(frozen=True, slots=True)
class Older:
    """A time, in Unix seconds and not 0, is longer ago than an age, or the value of ``limit``.

    An age below zero: less than that is left until the time.
    """

    series: Series
    age_s: float = 0.0
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Grown:
    """Counters have grown by more than a bound within a window."""

    series: Sequence[Series]
    window_s: float
    bound: float = 0.0


@dataclass(frozen=True, slots=True)
class LargeShare:
    """Counters ``part`` have grown by more than a share of the growth of ``whole``.

    ``complement``: the part of ``whole`` that is not in ``part`` is meant.
    """

    part: Sequence[Series]
    whole: Sequence[Series]
    window_s: float
    share: float = 0.01
    complement: bool = False


@dataclass(frozen=True, slots=True)
class BelowPeak:
    """A value is below its largest within a window."""

    series: Series
    window_s: float


@dataclass(frozen=True, slots=True)
class NotShrinking:
    """A value was never 0 within a window and is not smaller than at its beginning."""

    series: Series
    window_s: float


Condition: TypeAlias = (
    Above | Zero | SmallPart | Older | Grown | LargeShare | BelowPeak | NotShrinking
)


def _find(condition: Condition, moment: _Moment) -> Vector:
    """Return the values that meet a condition, by their labels."""
    found: Vector
    match condition:
        case Above(series, bound, limit, absolute):
            bound = moment.value(limit) if limit else bound
            values = moment.vector(series).items()
            found = {key: v for key, v in values if (abs(v) if absolute else v) > bound}
        case Zero(series):
            found = {key: value for key, value in moment.vector(series).items() if not value}
        case SmallPart(series, whole, share):
            wholes = moment.vector(whole)
            parts = moment.vector(series).items()
            found = {key: value for key, value in parts if value < share * wholes.get(key, 0.0)}
        case Older(series, age_s, limit):
            age_s = moment.value(limit) if limit else age_s
            ages = {key: moment.now_s - v for key, v in moment.vector(series).items() if v > 0}
            found = {key: age for key, age in ages.items() if age > age_s}
        case Grown(counters, window_s, bound):
            grown = moment.growth(counters, window_s)
            found = {(): grown} if grown > bound else {}
        case LargeShare(part, whole_, window_s, least, complement):
            some, every = moment.growth(part, window_s), moment.growth(whole_, window_s)
            share = some / every if every else 0.0
            share = 1 - share if complement and every else share
            found = {(): share} if share > least else {}
        case BelowPeak(series, window_s):
            pasts = moment.windows(series, window_s)
            found = {key: past[-1] for key, past in pasts.items() if past[-1] < max(past)}
        case NotShrinking(series, window_s):
            pasts = moment.windows(series, window_s, whole=True)
            found = {
                key: past[-1]
                for key, past in pasts.items()
                if min(past) > 0 and past[-1] >= past[0]
            }
    return found


@dataclass(frozen=True, slots=True)
class Rule:
    """The definition of a problem.

    ``sentence`` is a format of the found value (``value``, ``mib``, ``hours``) and of its labels.
    It holds while ``condition`` does, for ``for_s`` and longer, and while ``where`` does and
    ``unless`` does not, if they are given.
    """

    page: str
    condition: Condition
    sentence: str
    critical: bool = False
    for_s: float = 0.0
    where: Condition | None = None
    unless: Sequence[Condition] = ()


def _present(rule: Rule, moment: _Moment) -> Vector:
    """Return the values for which a problem is present; what looks back is always evaluated."""
    found = _find(rule.condition, moment)
    if rule.where is not None and not _find(rule.where, moment):
        return {}
    return {} if any(_find(each, moment) for each in rule.unless) else found


def _events(metric: str, window_s: float, bound: float, *events: str) -> Grown:
    return Grown([Series(metric, {"event": events})], window_s, bound)


_CALLS: Final = Series("calls", {"method": PUBLISHING})
_REQUESTS: Final = Series("http_requests", {"operation": HTTP_PUBLISHING})
_FAILED_CALLS: Final = Series("calls", {"method": PUBLISHING, "code": SERVER_FAULTS})
_FAILED_REQUESTS: Final = Series(
    "http_requests", {"operation": HTTP_PUBLISHING, "code": HTTP_FAULTS}
)
_QUERY: Final = {"method": ("Query",)}

RULES: Final = (
    Rule(
        "database-unreachable",
        Zero(Series("database_up")),
        "the database does not answer, or accepts no writes",
        critical=True,
        for_s=15,
    ),
    Rule(
        "database-host-refused",
        Above(Series("database_hosts_refused")),
        "{value:,.0f} hosts of the database take writes and must not; the log names them",
        critical=True,
        for_s=15,
    ),
    Rule(
        "node-not-ready",
        Zero(Series("ready")),
        "the node is running but not ready",
        critical=True,
        for_s=60,
        where=Above(Series("database_up")),
        unless=(Above(Series("disk_full")),),
    ),
    Rule(
        "disk-full",
        Above(Series("disk_full")),
        "less than --min-free-disk is free: publishing is refused until there is more",
        critical=True,
    ),
    Rule(
        "disk-full",
        SmallPart(Series("disk_free_bytes"), Series("disk_size_bytes"), 0.05),
        "volume {volume} has {mib:,.0f} MiB left",
        critical=True,
    ),
    Rule(
        "clock-wrong",
        _events("maintenance_events", 300, 0, "clock_ahead", "clock_doubted"),
        "a clock is wrong, this node's or the database's: retention is paused",
        critical=True,
    ),
    Rule(
        "clock-wrong",
        Grown(
            [
                Series(
                    "messages_rejected", {"source": ("client",), "reason": ("too_old", "too_new")}
                )
            ],
            300,
        ),
        "publishes are rejected for their timestamps, and this node's clock differs from others",
        critical=True,
        where=Above(Series("clocks_off_ratio"), 0.5),
    ),
    Rule(
        "clock-differs",
        Above(Series("clock_offset_seconds"), limit="clock_limit_seconds", absolute=True),
        "the clock of {other} differs from this node's by {value:,.0f} s: set the wrong one",
        for_s=60,
    ),
    Rule(
        "clock-differs",
        Above(Series("clock_refused_publishers"), 0.5),
        "most publishers' timestamps are refused: this node's clock or theirs is wrong",
        for_s=60,
    ),
    Rule(
        "commits-lost",
        _events("database_events", 3_600, 0, "commits_lost"),
        "the database has lost commits that this node had seen",
        critical=True,
    ),
    Rule(
        "postgres-restarting",
        _events("database_events", 900, 2, "postgres_exited"),
        "the embedded Postgres has exited {value:,.0f} times within 15 minutes",
        critical=True,
    ),
    Rule(
        "standby-missing",
        BelowPeak(Series("standbys"), DAY_S),
        "{value:,.0f} standbys of the database are connected; there were more",
        for_s=300,
    ),
    Rule(
        "replication-lag",
        Above(Series("standby_lag_bytes"), 64 * _MIB),
        "standby {standby} lags by {mib:,.0f} MiB",
        for_s=300,
    ),
    Rule(
        "connections-exhausted",
        Above(Series("pool_connections", {"state": ("waiting",)})),
        "calls wait for a connection of the pool {pool}",
        for_s=120,
    ),
    Rule(
        "dead-tuples",
        Above(Series("table_dead_ratio"), 0.2),
        "more than a fifth of the rows of {table} are dead",
        for_s=3_600,
    ),
    Rule(
        "partitions-missing",
        Older(Series("partitions_until"), -36 * 3_600),
        "partitions for new messages run out within 36 hours",
        for_s=900,
    ),
    Rule(
        "maintenance-failing",
        _events("maintenance_events", 1_800, 5, "maintenance_failed"),
        "partition maintenance has failed {value:,.0f} times in 30 minutes",
        where=_events("maintenance_events", 600, 0, "maintenance_failed"),
    ),
    Rule(
        "retention-failing",
        _events("maintenance_events", 3_600, 30, "retention_problem"),
        "retention cannot drop expired partitions",
        where=_events("maintenance_events", 300, 0, "retention_problem"),
    ),
    Rule(
        "retention-blocked-by-archive",
        Above(Series("retention_blocked")),
        "retention waits for the archive, and no space is freed",
        critical=True,
    ),
    Rule(
        "archive-behind",
        Older(Series("oldest_unarchived"), 26 * 3_600),
        "the oldest hour that is not archived is {hours:,.1f} hours old",
        where=Above(Series("archived_until")),
    ),
    Rule(
        "peer-unreachable",
        Above(Series("peer_failures"), 2),
        "the last {value:,.0f} sessions with {peer} have failed",
    ),
    Rule(
        "peer-silent",
        Older(Series("peer_silent_since"), limit="peer_silence_limit_seconds"),
        "not reconciled with {peer} for {hours:,.1f} hours",
    ),
    Rule(
        "sync-refused",
        Above(Series("peer_refusals"), 2),
        "{peer} and this node refuse to reconcile",
    ),
    Rule(
        "differences-not-shrinking",
        NotShrinking(Series("peer_differences"), 3 * 3_600),
        "{peer} and this node keep differing by {value:,.0f} messages ({window} history)",
        for_s=900,
    ),
    Rule(
        "forged-fingerprint",
        Grown([Series("sync_hidden_differences")], 3_600),
        "differences were hidden from WAKU-SYNC's fingerprints: sets of messages are forged",
        critical=True,
    ),
    Rule(
        "gossip-peer-cut-off",
        Above(Series("gossip_peers", {"state": ("cut_off",)})),
        "{value:,.0f} peers are cut off from gossip",
        for_s=300,
    ),
    Rule(
        "unread-events-ageing",
        Above(Series("unconfirmed_oldest_seconds"), 300),
        "a message lacks the confirmations of --max-confirms for more than five minutes",
    ),
    Rule(
        "publish-errors",
        LargeShare((_FAILED_CALLS, _FAILED_REQUESTS), (_CALLS, _REQUESTS), 120),
        "publishing fails: more than one call in a hundred",
        critical=True,
        for_s=60,
        unless=(Above(Series("read_only")),),
    ),
    Rule(
        "publish-slow",
        LargeShare(
            [Series("publish_batch_seconds", {"le": ("1.0",)}, "_bucket")],
            [Series("publish_batch_seconds", suffix="_count")],
            600,
            complement=True,
        ),
        "one batch in a hundred takes more than a second to be durable",
        for_s=300,
    ),
    Rule(
        "reads-slow",
        LargeShare(
            [Series("query_seconds", {**_QUERY, "le": ("2.5",)}, "_bucket")],
            [Series("query_seconds", _QUERY, "_count")],
            600,
            complement=True,
        ),
        "one Query in a hundred takes more than 2.5 s",
        for_s=300,
    ),
    Rule(
        "calls-failing",
        Grown(
            [
                Series("calls", {"code": FAILING}),
                Series("http_requests", {"code": HTTP_FAILING}),
            ],
            600,
        ),
        "calls fail with an internal error, which the log explains",
    ),
    Rule(
        "certificate-expiring",
        Older(Series("certificate_expiry"), -14 * DAY_S),
        "a certificate in {file} ends within 14 days",
    ),
    Rule(
        "certificate-ending",
        Older(Series("certificate_expiry"), -2 * DAY_S),
        "a certificate in {file} ends within two days, or has ended",
        critical=True,
    ),
    Rule(
        "token-file-broken",
        Above(Series("token_file_broken")),
        "the token file cannot be used: the tokens of before stay in effect",
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that is present.

    ``page``: the name of its runbook. ``since_s``: Unix seconds, at most since the start.
    """

    page: str
    critical: bool
    sentence: str
    since_s: float

    @property
    def url(self) -> str:
        """The address of the runbook."""
        return f"{RUNBOOKS}{self.page}.md"


class Problems:
    """The problems that are present, evaluated periodically."""

    def __init__(self, metrics: Metrics, now_s: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._now_s = now_s
        self._past = _Past()
        self._since: dict[tuple[int, Labels], float] = {}

    def evaluate(self, unready: str | None = None) -> tuple[Problem, ...]:
        """Return the problems: critical ones first, then the oldest.

        Args:
            unready: Why the node is not ready; None if it is.
        """
        moment = _Moment(self._metrics, self._past, self._now_s())
        found: list[Problem] = []
        since: dict[tuple[int, Labels], float] = {}
        for number, rule in enumerate(RULES):
            for labels, value in _present(rule, moment).items():
                key = number, labels
                since[key] = self._since.get(key, moment.now_s)
                if moment.now_s - since[key] < rule.for_s:
                    continue
                sentence = _format(rule.sentence, labels, value)
                if rule.page == "node-not-ready" and unready is not None:
                    sentence += f": {unready}"
                found.append(Problem(rule.page, rule.critical, sentence, since[key]))
        self._since = since
        return tuple(sorted(found, key=lambda each: (not each.critical, each.since_s)))


def _format(sentence: str, labels: Labels, value: float) -> str:
    return sentence.format(value=value, mib=value / _MIB, hours=value / 3_600, **dict(labels))
