"""The health of a node: one value with a revision number, from which everything else is rendered.

`/readyz`, `/metrics`, `/status.json`, ``GetStatus``, ``WatchStatus``, gRPC's health service and the
log show the same value, which `NodeHealth` alone changes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.observe.problems import Problems
from store.serving.context import Health

_LOG = get_logger("store.runtime.health")


class Obstacle(Enum):
    """A reason for which a node is not ready; the first that is present is reported."""

    DRAINING = "the node is shutting down"
    STARTING = "the node is starting"
    DISK = "the database's disk is full; free space on it"
    REFUSED = "the database host that takes writes is not the newest one that this node has seen"
    DATABASE = "the database does not answer"
    SPACE = "publishing is refused: the data directory's disk is full (--min-free-disk)"
    WRITES = "the database takes no writes"


_ONLY_WRITES: Final = frozenset({Obstacle.SPACE, Obstacle.WRITES})
"""Queries are answered nevertheless."""


class NodeHealth(Health):
    """The obstacles and problems that are present. ``rules`` finds the problems."""

    def __init__(self, metrics: Metrics, refresh: Callable[[], None] = lambda: None) -> None:
        """Make the health of a node that is starting; ``refresh`` renews gauges before a look."""
        starting = Obstacle.STARTING.value
        super().__init__(starting)
        self.rules = Problems(metrics)
        self._metrics = metrics
        self._refresh = refresh
        self._present = {Obstacle.STARTING: starting}

    def set(self, obstacle: Obstacle, present: bool, sentence: str | None = None) -> None:
        """Note an obstacle or its end; ``sentence`` takes the place of its usual one."""
        before = dict(self._present)
        self._present.pop(obstacle, None)
        if present:
            self._present[obstacle] = sentence or obstacle.value
        if self._present != before:
            self._evaluate()

    def look(self) -> None:
        """Evaluate the problems."""
        self._refresh()
        self._evaluate()

    def _evaluate(self) -> None:
        found = [each for each in Obstacle if each in self._present]
        if Obstacle.DATABASE not in found and Obstacle.REFUSED in found:
            found.remove(Obstacle.REFUSED)  # a newer host serves
        unready = next((self._present[each] for each in found), None)
        halting = (self._present[each] for each in found if each not in _ONLY_WRITES)
        # Problems look at the gauge of readiness.
        self._metrics.ready.set(int(unready is None))
        if self.change(unready, next(halting, None), self.rules.evaluate(unready)):
            self._metrics.health_revision.set(self.revision)
            _LOG.info(
                "health_changed",
                revision=self.revision,
                ready=self.ready,
                reason=unready,
                problems=sorted({each.page for each in self.problems}),
            )
