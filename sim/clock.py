"""The clocks of a node: one that somebody sets, and one that nobody does."""

from __future__ import annotations

from typing import Final

from sim.timeline import Timeline

_MILLION: Final = 1_000_000


class Clock:
    """``drift_ppm``: how much faster than true time the steady clock goes.

    Attributes:
        offset_ns: how far the clock that somebody sets is ahead of true time.
    """

    def __init__(self, timeline: Timeline, drift_ppm: int = 0) -> None:
        self.offset_ns = 0
        self._timeline = timeline
        self._drift_ppm = drift_ppm
        self._began_ns = timeline.now_ns

    def unix_ns(self) -> int:
        """What the node takes for the time."""
        return self._timeline.now_ns + self.offset_ns

    def steady_ns(self) -> int:
        """Nanoseconds that only ever grow; they count from nothing in particular."""
        elapsed_ns = self._timeline.now_ns - self._began_ns
        return elapsed_ns + elapsed_ns * self._drift_ppm // _MILLION

    def true_delay_ns(self, steady_ns: int) -> int:
        """For how long to wait until the steady clock has shown so many nanoseconds more."""
        return -(-max(0, steady_ns) * _MILLION // (_MILLION + self._drift_ppm))
