"""The health of a node: one value with a revision number, from which everything else is rendered.

`/readyz`, `/metrics`, `/status.json`, ``GetStatus``, ``WatchStatus``, gRPC's health service and the
log show the same value, which `NodeHealth` alone changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from store.observe.logging import get_logger
from store.observe.metrics import Metrics
from store.observe.problems import Problems
from store.serving.context import STARTING, HealthValue

_LOG = get_logger("store.runtime.health")


class Obstacle(Enum):
    """A reason for which a node is not ready; the first that is present is reported."""

    DRAINING = "the node is shutting down"
    STARTING = STARTING
    DISK = "the database's disk is full; free space on it"
    REFUSED = "the database host that takes writes is not the newest one that this node has seen"
    DATABASE = "the database does not answer"
    SPACE = "publishing is refused: the data directory's disk is full (--min-free-disk)"
    WRITES = "the database takes no writes"


_ONLY_WRITES: Final = frozenset({Obstacle.SPACE, Obstacle.WRITES})
"""Queries are answered nevertheless."""


class NodeHealth:
    """The obstacles and problems that are present; begins as starting. ``value``: as they are."""

    def __init__(self, metrics: Metrics, refresh: Callable[[], None] = lambda: None) -> None:
        """Make the health of a node that is starting; ``refresh`` renews gauges before a look."""
        self.value = HealthValue()
        self._metrics = metrics
        self._refresh = refresh
        self.problems = Problems(metrics)
        self._present = {Obstacle.STARTING: Obstacle.STARTING.value}
        self._changed = asyncio.Event()

    def set(self, obstacle: Obstacle, present: bool, sentence: str | None = None) -> None:
        """Note an obstacle or its end; ``sentence`` takes the place of its usual one."""
        before = dict(self._present)
        self._present.pop(obstacle, None)
        if present:
            self._present[obstacle] = sentence or obstacle.value
        if self._present != before:
            self._update()

    def look(self) -> HealthValue:
        """Evaluate the problems, and return the present health."""
        self._refresh()
        self._update()
        return self.value

    async def await_revision(self, since: int) -> int:
        """Wait until the revision is not ``since``, and return it.

        One above the present revision is from before a restart.
        """
        while self.value.revision == since:
            await self._changed.wait()
        return self.value.revision

    def _update(self) -> None:
        found = [each for each in Obstacle if each in self._present]
        if Obstacle.DATABASE not in found and Obstacle.REFUSED in found:
            found.remove(Obstacle.REFUSED)  # a newer host serves
        unready = next((self._present[each] for each in found), None)
        halting = (self._present[each] for each in found if each not in _ONLY_WRITES)
        before = self.value
        # Problems look at the gauge of readiness.
        self._metrics.ready.set(int(unready is None))
        problems = self.problems.evaluate(unready)
        value = HealthValue(before.revision, unready, next(halting, None), problems)
        if not value.differs(before):
            self.value = value
            return
        self.value = replace(value, revision=before.revision + 1)
        self._metrics.health_revision.set(self.value.revision)
        _LOG.info(
            "health_changed",
            revision=self.value.revision,
            ready=value.ready,
            reason=unready,
            problems=sorted({each.page for each in problems}),
        )
        self._changed.set()
        self._changed = asyncio.Event()
