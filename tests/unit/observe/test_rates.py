"""Rates are what was counted between two samples, per second."""

from __future__ import annotations

from store.observe.metrics import RATE_SAMPLES, RATES, Metrics, Rates


def test_each_rate_is_that_of_its_counters() -> None:
    metrics = Metrics("1")
    rates = Rates(metrics, 100.0)
    metrics.count_stored("client", 10)
    metrics.count_intake("client", 3, {})
    metrics.count_stored("gossip", 20)
    metrics.count_stored("transfer", 4)
    metrics.count_stored("resume", 2)
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
    rates.sample(102.0)
    assert rates.series() == {
        "published": [5.0],
        "queries": [1.0],
        "gossip_in": [10.0],
        "gossip_out": [4.0],
        "transfer_in": [3.0],
        "transfer_out": [4.0],
        "failed": [3.0],
    }
    rates.sample(104.0)
    assert all(values[1:] == [0.0] for values in rates.series().values())


def test_samples_are_bounded_and_no_time_is_no_rate() -> None:
    rates = Rates(Metrics("1"), 0.0)
    rates.sample(0.0)
    assert rates.series() == {name: [] for name in RATES}
    for second in range(1, 3 * RATE_SAMPLES):
        rates.sample(float(second))
    assert {len(values) for values in rates.series().values()} == {RATE_SAMPLES}
