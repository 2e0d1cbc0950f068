"""Whether the node can do what it was started for: one truth for probes, status and metrics."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final


class Obstacle(Enum):
    """A reason why a node is not ready; probes report the first that is present."""

    DRAINING = "the node is shutting down"
    STARTING = "the node is starting"
    DISK = "the database's disk is full; free space on it"
    REFUSED = "the database host that takes writes is not the newest one that this node has seen"
    DATABASE = "the database does not answer"
    SPACE = "publishing is refused: the data directory's disk is full (--min-free-disk)"
    WRITES = "the database takes no writes"


_ONLY_WRITES: Final = frozenset({Obstacle.SPACE, Obstacle.WRITES})
"""Queries are answered all the same."""


class Readiness:
    """The obstacles that are present; begins as starting.

    Attributes:
        unready: Why the node is not ready, a sentence without its period; None if it is.
        halted: Why it serves no calls at all, likewise.
    """

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._present = {Obstacle.STARTING: Obstacle.STARTING.value}
        self._on_change = on_change
        self.unready: str | None = Obstacle.STARTING.value
        self.halted: str | None = Obstacle.STARTING.value

    @property
    def ready(self) -> bool:
        """True if there is no obstacle."""
        return self.unready is None

    def set(self, obstacle: Obstacle, present: bool, sentence: str | None = None) -> None:
        """Note an obstacle or its end; `sentence` takes the place of its usual one."""
        was_ready = self.ready
        self._present.pop(obstacle, None)
        if present:
            self._present[obstacle] = sentence or obstacle.value
        found = [each for each in Obstacle if each in self._present]
        self.unready = next((self._present[each] for each in found), None)
        halting = (self._present[each] for each in found if each not in _ONLY_WRITES)
        self.halted = next(halting, None)
        if self.ready != was_ready:
            self._on_change(self.ready)
