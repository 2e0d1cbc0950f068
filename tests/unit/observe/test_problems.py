"""The problems of a node that are derived from its own metrics."""

from __future__ import annotations

import pytest

from store.observe.problems import RULES, Problems
from tests.support.faults import FAULTS, START_S, Fault, healthy, record


def test_every_problem_is_the_problem_of_a_fault() -> None:
    pages = {rule.page for rule in RULES}
    assert {page for fault in FAULTS for page in fault.pages} == pages
    assert len({(rule.page, rule.for_s, rule.critical) for rule in RULES}) == len(pages)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_a_problem_until_it_ends(fault: Fault) -> None:
    before, during, after = record(fault)[1].values()
    assert (before, during, after) == (frozenset(), frozenset(fault.pages), frozenset())


def test_a_problem_is_reported_once_it_has_lasted() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, lambda: now_s[0])
    metrics.ready.set(0)
    assert problems.evaluate() == ()
    now_s[0] += 59
    assert problems.evaluate() == ()
    now_s[0] += 1
    (found,) = problems.evaluate("the database takes no writes")
    assert (found.page, found.critical, found.since_s) == ("node-not-ready", True, START_S)
    assert found.sentence.endswith("not ready: the database takes no writes")
    assert found.url.endswith("/docs/runbooks/node-not-ready.md")


def test_a_sentence_names_what_is_meant() -> None:
    metrics = healthy()
    metrics.standby_lag_bytes.labels("b").set(200 * 2**20)
    metrics.peer_failures.labels("a:1").set(4)
    metrics.peer_silent_since.labels("node-c").set(START_S)
    now_s = [START_S]
    problems = Problems(metrics, lambda: now_s[0])
    problems.evaluate()
    now_s[0] += 4 * 3_600
    assert {each.sentence for each in problems.evaluate()} >= {
        "standby b lags by 200 MiB",
        "the last 4 sessions with a:1 have failed",
        "not reconciled with node-c for 4.0 hours",
    }


def test_a_problem_that_goes_on_keeps_its_beginning_and_one_that_returns_does_not() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, lambda: now_s[0])
    failures = metrics.peer_failures.labels("a:1")
    for number, since_s in ((3, START_S), (4, START_S), (0, None), (5, START_S + 30)):
        failures.set(number)
        found = [each.since_s for each in problems.evaluate()]
        assert found == ([] if since_s is None else [since_s])
        now_s[0] += 10


def test_critical_problems_come_first_then_the_oldest() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, lambda: now_s[0])
    metrics.peer_failures.labels("b:1").set(4)
    problems.evaluate()
    now_s[0] += 1
    metrics.peer_failures.labels("a:1").set(4)
    metrics.token_file_broken.set(1)
    metrics.disk_full.set(1)
    assert [(each.page, each.since_s - START_S) for each in problems.evaluate()] == [
        ("disk-full", 1),
        ("peer-unreachable", 0),
        ("peer-unreachable", 1),
        ("token-file-broken", 1),
    ]


def test_a_problem_that_is_over_is_shown_for_an_hour_unless_it_returns() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, lambda: now_s[0])

    def ended(value: int, after_s: float) -> list[tuple[str, float]]:
        metrics.token_file_broken.set(value)
        now_s[0] += after_s
        problems.evaluate()
        return [(each.page, each.ended_s - START_S) for each in problems.ended]

    page = "token-file-broken"
    assert [ended(*each) for each in ((1, 0), (0, 60), (0, 180), (1, 10), (0, 10))] == [
        *([], [(page, 60)], [(page, 60)], [], [(page, 260)])
    ]
    assert ended(0, 3_599)
    assert not ended(0, 1)


def test_a_stall_keeps_its_beginning_while_its_cause_changes() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, lambda: now_s[0])
    for cause in ("a lock is held by pid 7", "commits wait for synchronous replication"):
        metrics.commit_age_seconds.clear()
        metrics.commit_age_seconds.labels(cause).set(now_s[0])
        (found,) = problems.evaluate()
        assert found.sentence == f"nothing has been committed for {now_s[0]:.0f} s: {cause}"
        assert (found.page, found.since_s) == ("nothing-commits", START_S)
        now_s[0] += 10
