"""The problems of a node that are derived from its own metrics."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.observe.metrics import Metrics
from store.observe.problems import CALLER_SILENT_S, RULES, Problems

DAY_S = 86_400.0
NOW_S = 1_763_625_600.0


class Clock:
    """Unix seconds, set by the test."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def healthy() -> Metrics:
    """Return the metrics of a node without problems, with two peers and an archive."""
    metrics = Metrics("test")
    metrics.ready.set(1)
    metrics.database_up.set(1)
    metrics.disk_size_bytes.labels("data").set(100)
    metrics.disk_free_bytes.labels("data").set(50)
    metrics.sync_interval_seconds.set(300)
    for peer in ("a:1", "b:1"):
        metrics.peer_failures.labels(peer).set(0)
        metrics.peer_last_sync_timestamp_seconds.labels(peer).set(NOW_S)
        metrics.peer_differences.labels(peer, "recent").set(0)
    metrics.partitions_until.set(NOW_S + 30 * DAY_S)
    metrics.retention_seconds.set(5 * DAY_S)
    metrics.retention_requires_archive.set(1)
    metrics.oldest_unarchived.set(NOW_S - 3_600)
    metrics.archived_until.set(NOW_S - 3_600)
    metrics.standbys.set(1)
    metrics.pool_connections.labels("reads", "waiting").set(0)
    metrics.table_rows.labels("messages", "live").set(1_000_000)
    metrics.table_rows.labels("messages", "dead").set(1_000)
    metrics.calls.labels("Publish", "OK").inc(1_000)
    for _ in range(1_000):
        metrics.publish_batch_seconds.observe(0.01)
        metrics.query_seconds.labels("Query").observe(0.01)
    return metrics


def slow_batches(metrics: Metrics) -> None:
    for _ in range(50):
        metrics.publish_batch_seconds.observe(3.0)


def slow_reads(metrics: Metrics) -> None:
    for _ in range(50):
        metrics.query_seconds.labels("Query").observe(9.0)


def set_back(metrics: Metrics) -> None:
    """Set metrics as after a clock was set back and publishers are rejected for it."""
    metrics.clock_limit_seconds.set(10)
    metrics.clock_offset_seconds.labels("database").set(7_200)
    metrics.clock_offset_seconds.labels("node-b").set(7_199)
    metrics.messages_rejected.labels("client", "too_new").inc()


def peer_off(metrics: Metrics) -> None:
    metrics.clock_limit_seconds.set(10)
    metrics.clock_offset_seconds.labels("database").set(0.1)
    metrics.clock_offset_seconds.labels("node-b").set(-11)


PROVOKED: dict[str, Callable[[Metrics], object]] = {
    "database-unreachable": lambda m: m.database_up.set(0),
    "database-host-refused": lambda m: m.database_hosts_refused.set(1),
    "node-not-ready": lambda m: m.ready.set(0),
    "disk-full": lambda m: m.disk_free_bytes.labels("data").set(4),
    "clock-wrong": lambda m: m.maintenance_events.labels("clock_doubted").inc(),
    "clock-differs": peer_off,
    "commits-lost": lambda m: m.database_events.labels("commits_lost").inc(),
    "postgres-restarting": lambda m: m.database_events.labels("postgres_exited").inc(3),
    "standby-missing": lambda m: m.standbys.set(0),
    "replication-lag": lambda m: m.standby_lag_bytes.labels("s").set(10**9),
    "connections-exhausted": lambda m: m.pool_connections.labels("reads", "waiting").set(2),
    "dead-tuples": lambda m: m.table_rows.labels("messages", "dead").set(900_000),
    "partitions-missing": lambda m: m.partitions_until.set(NOW_S + DAY_S),
    "maintenance-failing": lambda m: m.maintenance_events.labels("maintenance_failed").inc(6),
    "retention-failing": lambda m: m.maintenance_events.labels("retention_problem").inc(31),
    "retention-blocked-by-archive": lambda m: m.oldest_unarchived.set(NOW_S - 6 * DAY_S),
    "archive-behind": lambda m: m.oldest_unarchived.set(NOW_S - 2 * DAY_S),
    "peer-unreachable": lambda m: m.peer_failures.labels("a:1").set(3),
    "peer-silent": lambda m: m.peer_last_sync_timestamp_seconds.labels("a:1").set(NOW_S - DAY_S),
    "sync-refused": lambda m: m.sync_sessions.labels("initiator", "refused").inc(3),
    "differences-not-shrinking": lambda m: m.peer_differences.labels("a:1", "recent").set(7),
    "forged-fingerprint": lambda m: m.sync_hidden_differences.inc(),
    "gossip-peer-cut-off": lambda m: m.gossip_peers.labels("cut_off").set(1),
    "unread-events-ageing": lambda m: m.unconfirmed_oldest_seconds.set(301),
    "publish-errors": lambda m: m.calls.labels("Publish", "UNAVAILABLE").inc(20),
    "publish-slow": slow_batches,
    "reads-slow": slow_reads,
    "calls-failing": lambda m: m.calls.labels("Query", "UNKNOWN").inc(),
}
BESIDE = {"retention-blocked-by-archive": {"archive-behind"}}
"""What cannot be without another problem."""


def test_every_rule_is_provoked_here() -> None:
    assert PROVOKED.keys() == {rule.page for rule in RULES}


@pytest.mark.parametrize("page", PROVOKED)
def test_each_problem_is_reported_once_it_has_lasted_and_until_it_ends(page: str) -> None:
    metrics, clock = healthy(), Clock()
    (rule,) = (each for each in RULES if each.page == page)
    problems = Problems(metrics, clock)
    problems.look()
    assert not problems.present
    clock.now_s += 5
    PROVOKED[page](metrics)
    problems.look()
    if rule.for_s:
        assert not problems.present
        clock.now_s += rule.for_s
        problems.look()
    found = {each.page: each for each in problems.present}
    assert found.keys() - BESIDE.get(page, set()) - _aged(rule.for_s) == {page}
    assert found[page].critical == rule.critical
    assert found[page].since_s == NOW_S + 5
    assert found[page].sentence


def _aged(for_s: float) -> set[str]:
    """Return the problems that appear merely because so much time has passed."""
    return {"peer-silent"} if for_s >= 3_600 else set()


def test_a_disk_on_which_nothing_is_stored_any_more_is_full_however_much_that_is() -> None:
    metrics = healthy()
    problems = Problems(metrics, Clock())
    metrics.disk_full.set(1)
    problems.look()
    (found,) = problems.present
    assert (found.page, found.critical) == ("disk-full", True)
    assert "publishing is refused" in found.sentence


def test_publishes_that_are_rejected_for_a_wrong_clock_are_critical() -> None:
    metrics = healthy()
    problems = Problems(metrics, Clock())
    set_back(metrics)
    problems.look()
    found = [(each.page, each.critical) for each in problems.present]
    assert found == [("clock-wrong", True), ("clock-differs", False), ("clock-differs", False)]
    assert "the clock of database is 7,200 s ahead of this node's" in problems.present[0].sentence
    # One peer that is wrong, and one publisher, do not make this node's clock wrong.
    metrics.clock_offset_seconds.labels("database").set(0)
    problems.look()
    assert [each.page for each in problems.present] == ["clock-differs"]


def test_requests_over_http_count_as_calls_do() -> None:
    metrics, clock = healthy(), Clock()
    problems = Problems(metrics, clock)
    problems.look()
    clock.now_s += 5
    metrics.http_requests.labels("connect_Publish", "503").inc(20)
    metrics.http_requests.labels("query", "500").inc()
    metrics.http_requests.labels("query", "400").inc(20)
    problems.look()
    clock.now_s += 60
    problems.look()
    assert {each.page for each in problems.present} == {"publish-errors", "calls-failing"}


def misdirected(metrics: Metrics) -> None:
    metrics.read_only.set(1)
    metrics.calls.labels("Publish", "UNAVAILABLE").inc(500)


def slow_readers(metrics: Metrics) -> None:
    for _ in range(50):
        metrics.query_seconds.labels("GetSdsMessages").observe(60.0)


@pytest.mark.parametrize(
    "cause",
    [
        lambda m: m.unread_oldest_seconds.set(9_999),
        lambda m: m.calls.labels("Publish", "DEADLINE_EXCEEDED").inc(500),
        lambda m: m.calls.labels("Publish", "RESOURCE_EXHAUSTED").inc(500),
        lambda m: m.calls.labels("Query", "INVALID_ARGUMENT").inc(500),
        lambda m: m.sync_sessions.labels("responder", "refused").inc(9),
        lambda m: m.messages_rejected.labels("client", "too_old").inc(500),
        misdirected,
        slow_readers,
    ],
    ids=[
        *("unconfirmed", "unsent request", "quota", "malformed", "stranger's session"),
        "wrong clock of a publisher",
        *("publish at a read-only node", "slow readers"),
    ],
)
def test_what_callers_cause_by_themselves_is_no_problem(
    cause: Callable[[Metrics], object],
) -> None:
    metrics, clock = healthy(), Clock()
    problems = Problems(metrics, clock)
    problems.look()
    clock.now_s += 5
    cause(metrics)
    for _ in range(3):
        problems.look()
        assert not problems.present
        clock.now_s += 150


def test_a_problem_of_a_counter_expires() -> None:
    metrics, clock = healthy(), Clock()
    problems = Problems(metrics, clock)
    problems.look()
    metrics.maintenance_events.labels("clock_doubted").inc()
    problems.look()
    assert [each.page for each in problems.present] == ["clock-wrong"]
    clock.now_s += 800
    problems.look()
    assert problems.present
    clock.now_s += 200
    problems.look()
    assert not problems.present


def test_a_problem_that_goes_on_keeps_its_beginning_and_one_that_returns_does_not() -> None:
    metrics, clock = healthy(), Clock()
    problems = Problems(metrics, clock)
    failures = metrics.peer_failures.labels("a:1")
    for number, since_s in ((3, NOW_S), (4, NOW_S), (0, None), (5, NOW_S + 30)):
        failures.set(number)
        problems.look()
        found = [each.since_s for each in problems.present]
        assert found == ([] if since_s is None else [since_s])
        clock.now_s += 10


def test_callers_that_fall_silent_are_named() -> None:
    clock = Clock()
    problems = Problems(healthy(), clock)
    problems.look([("node-b", NOW_S)])
    assert not problems.present
    clock.now_s += CALLER_SILENT_S + 1
    problems.look([("node-b", NOW_S), ("node-c", clock.now_s)])
    (found,) = problems.present
    assert found.page == "peer-silent"
    assert "node-b" in found.sentence


def test_critical_problems_come_first_then_the_oldest() -> None:
    metrics, clock = healthy(), Clock()
    problems = Problems(metrics, clock)
    metrics.peer_failures.labels("b:1").set(4)
    problems.look()
    clock.now_s += 1
    metrics.peer_failures.labels("a:1").set(4)
    metrics.database_up.set(0)
    problems.look()
    assert [(each.page, each.since_s - NOW_S) for each in problems.present] == [
        ("database-unreachable", 1),
        ("peer-unreachable", 0),
        ("peer-unreachable", 1),
    ]
