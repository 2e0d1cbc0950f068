"""How much happens per second, from the counters of the metrics. Time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.samples import Sample

from store.observe.limits import RATE_SAMPLES
from store.observe.metrics import Metrics

RATES: Final = (
    "published",
    "queries",
    "gossip_in",
    "gossip_out",
    "transfer_in",
    "transfer_out",
    "failed",
)
"""Messages, for ``queries`` reads of any kind and for ``failed`` calls that the node failed, in the
order in which they are shown."""

SERVER_FAULTS: Final = ("UNAVAILABLE", "INTERNAL", "UNKNOWN")
HTTP_FAULTS: Final = ("500", "503")
"""How calls end that the node has failed. DEADLINE_EXCEEDED: the request did not come in time."""


def samples(metric: MetricWrapperBase) -> Iterator[Sample]:
    """What a metric has now, by labels."""
    for family in metric.collect():
        yield from family.samples


def total(metric: MetricWrapperBase, suffix: str = "_total", **labels: Collection[str]) -> float:
    """The sum of a metric's series whose labels have one of these values."""
    return sum(
        sample.value
        for sample in samples(metric)
        if sample.name.endswith(suffix)
        and all(sample.labels[name] in values for name, values in labels.items())
    )


class Rates:
    """Remembers the last `RATE_SAMPLES` samples of what was counted."""

    def __init__(self, metrics: Metrics, now_s: float) -> None:
        self._metrics = metrics
        self._before = now_s, self._totals()
        self._timed = (0.0, 0.0)
        self._publish_ms: float | None = None
        self._rates: deque[list[float]] = deque(maxlen=RATE_SAMPLES)

    def sample(self, now_s: float) -> None:
        """Note what happened since the last sample; ``now_s`` by a clock that nobody sets."""
        then_s, before = self._before
        now = self._totals()
        if now_s <= then_s:
            return
        self._before = now_s, now
        self._time_publishes()
        self._rates.append(
            [max(0.0, new - old) / (now_s - then_s) for new, old in zip(now, before, strict=True)]
        )

    def series(self) -> dict[str, list[float]]:
        """Per second, of each of `RATES`: the samples there are, the oldest first."""
        return {
            name: [round(rates[place], 3) for rates in self._rates]
            for place, name in enumerate(RATES)
        }

    def publish_ms(self) -> float | None:
        """How long the last batches took in the mean, in milliseconds; None: there were none."""
        return self._publish_ms

    def _time_publishes(self) -> None:
        timed = self._metrics.publish_batch_seconds
        now = total(timed, "_count"), total(timed, "_sum")
        batches, seconds = now[0] - self._timed[0], now[1] - self._timed[1]
        if batches:
            self._publish_ms = round(1_000 * seconds / batches, 1)
        self._timed = now

    def _totals(self) -> list[float]:
        metrics = self._metrics
        stored, pushed = metrics.messages_stored, {"bodies_pushed", "bodies_answered"}
        return [
            total(stored, source={"client"}),
            total(metrics.query_seconds, "_count"),
            total(stored, source={"gossip"}),
            total(metrics.gossip_events, what=pushed),
            total(stored, source={"transfer", "resume"}),
            total(metrics.transfer_messages, direction={"sent"}),
            total(metrics.calls, code=SERVER_FAULTS)
            + total(metrics.http_requests, code=HTTP_FAULTS),
        ]
