"""Pauses between attempts."""

from __future__ import annotations


class Backoff:
    """Pauses in seconds that double from ``first_s`` to ``most_s``; `pause_s` is the next one."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.pause_s = first_s

    def take(self) -> float:
        """Return the next pause, and double the one after it."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self._most_s)
        return pause_s

    def reset(self) -> None:
        """Begin with the first again, after a success."""
        self.pause_s = self._first_s
