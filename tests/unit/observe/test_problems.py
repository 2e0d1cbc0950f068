"""Problems, rates, clocks and probes that are derived from a node's own state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from store.observe.clocks import SAMPLE_AGE_NS, ClockComparison, parse_time
from store.observe.http import (
    LIVE_SILENCE_S,
    MAX_METRICS_REQUESTS,
    METRICS_PATH,
    READY_SILENCE_S,
    MetricsListener,
)
from store.observe.metrics import Metrics, read_totals
from store.observe.problems import RULES, Problems
from tests.integration.run.helpers import get
from tests.support.faults import FAULTS, START_S, Fault, healthy, record
from tests.support.virtual_time import virtual_time


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
    problems = Problems(metrics, *2 * [lambda: now_s[0]])
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
    problems = Problems(metrics, *2 * [lambda: now_s[0]])
    problems.evaluate()
    now_s[0] += 4 * 3_600
    assert {each.sentence for each in problems.evaluate()} >= {
        "standby b lags by 200 MiB",
        "the last 4 sessions with a:1 have failed",
        "not reconciled with node-c for 4.0 hours",
    }


def test_a_problem_that_goes_on_keeps_its_beginning_and_one_that_returns_does_not() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, *2 * [lambda: now_s[0]])
    failures = metrics.peer_failures.labels("a:1")
    for number, since_s in ((3, START_S), (4, START_S), (0, None), (5, START_S + 30)):
        failures.set(number)
        found = [each.since_s for each in problems.evaluate()]
        assert found == ([] if since_s is None else [since_s])
        now_s[0] += 10


def test_critical_problems_come_first_then_the_oldest() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, *2 * [lambda: now_s[0]])
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
    problems = Problems(metrics, *2 * [lambda: now_s[0]])

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


@pytest.mark.parametrize("step_s", [-7_200, 7_200])
def test_a_clock_that_is_set_begins_and_ends_no_problem(step_s: float) -> None:
    metrics, clocks = healthy(), [START_S, 0.0]
    problems = Problems(metrics, lambda: clocks[0], lambda: clocks[1])

    def look(after_s: float) -> tuple[list[str], list[str]]:
        clocks[:] = clocks[0] + after_s, clocks[1] + after_s
        metrics.peer_silent_since.clear()
        return [each.page for each in problems.evaluate()], [each.page for each in problems.ended]

    page = ["node-not-ready"]
    for ready, after_s, expected in (
        *((0, 0, ([], [])), (0, 30, ([], [])), (0, 30, (page, [])), (0, 10, (page, []))),
        *((1, 10, ([], page)), (1, 3_599, ([], page)), (1, 1, ([], []))),
    ):
        metrics.ready.set(ready)
        clocks[0] += step_s
        assert look(after_s) == expected


def test_a_stall_keeps_its_beginning_while_its_cause_changes() -> None:
    metrics, now_s = healthy(), [START_S]
    problems = Problems(metrics, *2 * [lambda: now_s[0]])
    for cause in ("a lock is held by pid 7", "commits wait for synchronous replication"):
        metrics.commit_age_seconds.clear()
        metrics.commit_age_seconds.labels(cause).set(now_s[0])
        (found,) = problems.evaluate()
        assert found.sentence == f"nothing has been committed for {now_s[0]:.0f} s: {cause}"
        assert (found.page, found.since_s) == ("nothing-commits", START_S)
        now_s[0] += 10


def test_each_total_is_that_of_its_counters() -> None:
    metrics = Metrics("1")
    metrics.messages_stored.labels("client").inc(10)
    metrics.count_intake("client", 3, {})
    metrics.messages_stored.labels("gossip").inc(20)
    metrics.messages_stored.labels("transfer").inc(4)
    metrics.messages_stored.labels("resume").inc(2)
    metrics.query_seconds.labels("Query").observe(0.5)
    metrics.query_seconds.labels("Scan").observe(700)
    metrics.gossip_events.labels("bodies_pushed").inc(6)
    metrics.gossip_events.labels("bodies_answered").inc(2)
    metrics.gossip_events.labels("ids_sent").inc(99)
    metrics.transfer_messages.labels("sent", "stored").inc(8)
    metrics.transfer_messages.labels("received", "stored").inc(99)
    metrics.calls.labels("Query", "UNAVAILABLE").inc(4)
    metrics.calls.labels("Query", "INVALID_ARGUMENT").inc(99)
    metrics.http_requests.labels("query", "503").inc(2)
    metrics.http_requests.labels("query", "429").inc(99)
    metrics.publish_batch_seconds.observe(0.5)
    assert read_totals(metrics) == {
        "published": 10,
        "queries": 2,
        "gossip_in": 20,
        "gossip_out": 8,
        "transfer_in": 6,
        "transfer_out": 8,
        "failed": 6,
        "batches": 1,
        "batch_seconds": 0.5,
    }


# Comparison of clocks

S = 10**9
DRIFT_NS = 20 * S


class Clocks:
    """A node's clock, the steady one behind it, and the right time."""

    def __init__(self) -> None:
        self.right_ns = 1_800_000_000 * S
        self.steady_ns = 0
        self.set_ns = 0
        self.comparison = ClockComparison(DRIFT_NS, self.now, lambda: self.steady_ns)

    def now(self) -> int:
        return self.right_ns + self.steady_ns + self.set_ns

    def right(self) -> int:
        return self.right_ns + self.steady_ns


def test_a_clock_that_is_set_back_differs_until_it_is_right_again() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right())
    assert clocks.comparison.offsets_s() == {"b": 0}
    clocks.set_ns = -7_200 * S
    assert clocks.comparison.offsets_s() == {"b": 7_200}, "without another sample"
    clocks.set_ns = 0
    clocks.steady_ns += 60 * S
    assert clocks.comparison.offsets_s() == {"b": 0}


def test_a_sample_that_was_delayed_makes_no_clock_late() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right())
    clocks.comparison.note("b", clocks.right() - 30 * S)
    assert clocks.comparison.offsets_s() == {"b": 0}
    clocks.comparison.note("b", clocks.right() - 30 * S)
    assert clocks.comparison.offsets_s() == {"b": -30}, "it is late indeed"
    clocks.comparison.note("c", clocks.right() - 3 * S, delay_ns=3 * S)
    assert clocks.comparison.offsets_s()["c"] == 0


def test_an_old_sample_says_nothing() -> None:
    clocks = Clocks()
    clocks.comparison.note("b", clocks.right() + 90 * S)
    clocks.steady_ns += SAMPLE_AGE_NS + 1
    assert clocks.comparison.offsets_s() == {}


def test_only_several_publishers_tell_of_a_clock() -> None:
    clocks = Clocks()
    for name in ("a", "b"):
        clocks.comparison.note_publisher(name, in_time=False)
    for _ in range(100):
        clocks.comparison.note_publisher("a", in_time=False)
    assert clocks.comparison.refused_publishers() == 0
    clocks.comparison.note_publisher("c", in_time=False)
    clocks.comparison.note_publisher("d", in_time=True)
    assert clocks.comparison.refused_publishers() == 0.75
    clocks.steady_ns += 301 * S
    assert clocks.comparison.refused_publishers() == 0


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        (None, None),
        ("1800000000000000000", 1_800_000_000 * S),
        *((each, None) for each in ("", "-1", "1.5", "٣", " 1", "9" * 20)),
    ],
)
def test_a_time_that_cannot_be_read_is_no_time(text: str | None, time_ns: int | None) -> None:
    assert parse_time(text) == time_ns


# Probes while the loop does something else


@dataclass
class Node:
    """The state of a node that a metrics listener reads."""

    unready: str | None = None
    free: asyncio.Event = field(default_factory=asyncio.Event)
    now_s: float = 0.0
    address: str = ""

    async def render(self) -> bytes:
        """Return what the node's loop alone can render."""
        await self.free.wait()
        return b"rendered"


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Start a metrics listener for a node."""
    node = Node()
    listener = MetricsListener(
        {METRICS_PATH: node.render}, lambda: node.unready, (), clock=lambda: node.now_s
    )
    node.address = f"127.0.0.1:{await listener.open('127.0.0.1', 0)}"
    yield node
    await listener.close()


async def test_probes_are_answered_while_the_loop_of_the_node_is_blocked(node: Node) -> None:
    # These block the loop that this test runs in.
    assert get(node.address, "/readyz") == (200, "ready\n")
    node.unready = "the node is shutting down"
    assert get(node.address, "/readyz") == (503, "not ready: the node is shutting down\n")


async def test_a_node_whose_loop_does_not_run_is_not_ready_and_later_not_alive(node: Node) -> None:
    assert get(node.address, "/healthz") == (200, "alive\n")
    node.now_s = READY_SILENCE_S + 1
    assert get(node.address, "/readyz") == (503, "not ready: nothing has run for 11 s\n")
    assert get(node.address, "/healthz") == (200, "alive\n")
    node.now_s = LIVE_SILENCE_S + 1
    assert get(node.address, "/healthz") == (503, "not alive: nothing has run for 61 s\n")


@virtual_time
async def test_a_connection_ends_although_its_response_is_not_read() -> None:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport = Mock(**{"is_closing.return_value": False})
    transport.abort.side_effect = lambda: protocol.connection_lost(None)
    writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
    reader.feed_data(b"GET / HTTP/1.1\r\n\r\n")
    await MetricsListener({}, lambda: None, ()).serve(reader, writer)
    transport.abort.assert_called_once_with()


async def test_more_requests_for_metrics_than_are_rendered_at_one_time_are_refused(
    node: Node,
) -> None:
    async def metrics() -> bytes:
        reader, writer = await asyncio.open_connection(*node.address.split(":"))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    asking = {asyncio.create_task(metrics()) for _ in range(MAX_METRICS_REQUESTS + 1)}
    refused, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    assert [each.result()[:13] for each in refused] == [b"HTTP/1.1 503 "]
    node.free.set()
    assert {(await each)[:13] for each in waiting} == {b"HTTP/1.1 200 "}
