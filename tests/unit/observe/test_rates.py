"""The counts that the status page makes rates of."""

from __future__ import annotations

from store.observe.metrics import Metrics, read_totals


def test_each_total_is_that_of_its_counters() -> None:
    metrics = Metrics("1")
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
