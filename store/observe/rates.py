"""How much happens per second, from the counters of the metrics. Time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from prometheus_client.metrics import MetricWrapperBase

from store.observe.limits import RATE_SAMPLES
from store.observe.metrics import Metrics

RATES: Final = ("published", "queries", "gossip_in", "gossip_out", "transfer_in", "transfer_out")
"""Messages, and for ``queries`` reads of any kind, in the order in which they are shown."""


def total(metric: MetricWrapperBase, suffix: str = "_total", **labels: Collection[str]) -> float:
    """The sum of a metric's series whose labels have one of these values."""
    return sum(
        sample.value
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(suffix)
        and all(sample.labels[name] in values for name, values in labels.items())
    )


class Rates:
    """Remembers the last `RATE_SAMPLES` samples of what was counted."""

    def __init__(self, metrics: Metrics, now_s: float) -> None:
        self._metrics = metrics
        self._before = now_s, self._totals()
        self._rates: deque[list[float]] = deque(maxlen=RATE_SAMPLES)

    def sample(self, now_s: float) -> None:
        """Note what happened since the last sample; ``now_s`` by a clock that nobody sets."""
        then_s, before = self._before
        now = self._totals()
        if now_s <= then_s:
            return
        self._before = now_s, now
        self._rates.append(
            [max(0.0, new - old) / (now_s - then_s) for new, old in zip(now, before, strict=True)]
        )

    def series(self) -> dict[str, list[float]]:
        """Per second, of each of `RATES`: the samples there are, the oldest first."""
        return {
            name: [round(rates[place], 3) for rates in self._rates]
            for place, name in enumerate(RATES)
        }

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
        ]
