"""Keeps a flood of equal events out of the log, without keeping silent about it.

Of one kind of event, `burst` are let through per interval. The others are counted, and the count
is written with the next event of that kind or by `drain`. Time is an argument.
"""

from dataclasses import dataclass

from store.observe.limits import LOG_BURST_EVENTS, LOG_INTERVAL_S, MAX_LOG_KINDS

OTHER_KINDS = "other events"
"""The kind that stands for all beyond MAX_LOG_KINDS."""


@dataclass(slots=True)
class _Window:
    started_s: float
    passed: int = 0
    suppressed: int = 0


class FloodGate:
    """Counts events by kind; costs one dictionary look-up an event and bounded memory."""

    def __init__(
        self,
        burst: int = LOG_BURST_EVENTS,
        interval_s: float = LOG_INTERVAL_S,
        max_kinds: int = MAX_LOG_KINDS,
    ) -> None:
        self._burst = burst
        self._interval_s = interval_s
        self._max_kinds = max_kinds
        self._windows: dict[str, _Window] = {}

    def admit(self, kind: str, now_s: float) -> int | None:
        """How many of this kind were suppressed before this one; None: suppress this one too."""
        window = self._window(kind, now_s)
        missed = 0
        if now_s - window.started_s >= self._interval_s:
            missed = window.suppressed
            window.started_s, window.passed, window.suppressed = now_s, 0, 0
        if window.passed >= self._burst:
            window.suppressed += 1
            return None
        window.passed += 1
        return missed

    def drain(self, now_s: float) -> list[tuple[str, int]]:
        """Kinds whose interval is over with their suppressed counts, which are then forgotten."""
        over = [
            (kind, window)
            for kind, window in self._windows.items()
            if now_s - window.started_s >= self._interval_s
        ]
        for kind, _ in over:
            del self._windows[kind]
        return [(kind, window.suppressed) for kind, window in over if window.suppressed]

    def clear(self) -> None:
        """Forget every kind and its count."""
        self._windows.clear()

    def _window(self, kind: str, now_s: float) -> _Window:
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= self._max_kinds:
                kind = OTHER_KINDS
            window = self._windows.setdefault(kind, _Window(now_s))
        return window
