"""Whether the node is able to serve, and if not, why: one truth for probes, status and metrics."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Obstacle(Enum):
    """What keeps a node from serving; the first that is present is what probes are told."""

    DRAINING = "the node is shutting down"
    STARTING = "the node is starting"
    DISK = "the database's disk is full; free space on it"
    REFUSED = "the database host that takes writes is not the newest one that this node has seen"
    DATABASE = "the database does not answer"


class Readiness:
    """The obstacles that are present; begins as starting.

    ``unready``: the reason as a sentence without its period; None when ready.
    """

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._present = {Obstacle.STARTING}
        self._on_change = on_change
        self.unready: str | None = Obstacle.STARTING.value

    @property
    def ready(self) -> bool:
        """True when nothing is in the way."""
        return self.unready is None

    def set(self, obstacle: Obstacle, present: bool) -> bool:
        """Note an obstacle or its end; True if that was news."""
        if (obstacle in self._present) == present:
            return False
        was_ready = self.ready
        if present:
            self._present.add(obstacle)
        else:
            self._present.discard(obstacle)
        self.unready = next((each.value for each in Obstacle if each in self._present), None)
        if self.ready != was_ready:
            self._on_change(self.ready)
        return True
