"""Virtual time: events in the order of their time, clocks, and the trace of a run."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from typing import Final

from sim.limits import NS_PER_MS, TRACE_TAIL_LINES

_Action = Callable[[], object]
_MILLION: Final = 1_000_000


class Timer:
    """An event to come, unless it is cancelled."""

    __slots__ = ("_action", "_timeline")

    def __init__(self, timeline: Timeline, action: _Action) -> None:
        self._timeline = timeline
        self._action: _Action | None = action

    def cancel(self) -> None:
        """Cancel the event; repeated and late calls have no effect."""
        if self._action is not None:
            self._action = None
            self._timeline.waiting -= 1

    def take(self) -> _Action | None:
        """Take the action; only for `Timeline`."""
        action, self._action = self._action, None
        return action


class Timeline:
    """Events at Unix nanoseconds; those of one moment happen in the order of their making.

    Attributes:
        now_ns: the true time.
        events: how many have happened.
        waiting: how many will.
    """

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.events = 0
        self.waiting = 0
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()

    def at(self, time_ns: int, action: _Action) -> Timer:
        """Schedule an action at a time, or now if that is past."""
        timer = Timer(self, action)
        heapq.heappush(self._heap, (max(time_ns, self.now_ns), next(self._numbers), timer))
        self.waiting += 1
        return timer

    def after(self, delay_ns: int, action: _Action) -> Timer:
        """Schedule an action after a delay."""
        return self.at(self.now_ns + delay_ns, action)

    def soon(self, action: _Action) -> Timer:
        """Schedule an action at this moment, after the current one."""
        return self.at(self.now_ns, action)

    def step(self) -> bool:
        """Let the next event happen; False: there is none."""
        while self._heap:
            time_ns, _, timer = heapq.heappop(self._heap)
            action = timer.take()
            if action is not None:
                assert time_ns >= self.now_ns, "time goes back"
                self.now_ns = time_ns
                self.events += 1
                self.waiting -= 1
                action()
                return True
        return False


class Clock:
    """The clocks of a node: a wall clock, which can be set, and a steady one.

    ``drift_ppm``: how much faster than true time the steady clock goes.

    Attributes:
        offset_ns: how far the wall clock is ahead of true time.
    """

    def __init__(self, timeline: Timeline, drift_ppm: int = 0) -> None:
        self.offset_ns = 0
        self._timeline = timeline
        self._drift_ppm = drift_ppm
        self._began_ns = timeline.now_ns

    def unix_ns(self) -> int:
        """Return the time of the wall clock."""
        return self._timeline.now_ns + self.offset_ns

    def steady_ns(self) -> int:
        """Return the nanoseconds of the steady clock, which never decrease."""
        elapsed_ns = self._timeline.now_ns - self._began_ns
        return elapsed_ns + elapsed_ns * self._drift_ppm // _MILLION

    def true_delay_ns(self, steady_ns: int) -> int:
        """Return the true delay until the steady clock has advanced by some nanoseconds."""
        return -(-max(0, steady_ns) * _MILLION // (_MILLION + self._drift_ppm))


class Trace:
    """Notes, each with its time; ``sink`` is given every line."""

    def __init__(self, timeline: Timeline, sink: Callable[[str], None] | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=TRACE_TAIL_LINES)
        self._timeline = timeline
        self._began_ns = timeline.now_ns
        self._sink = sink
        self._hash = blake2b(digest_size=16)

    def note(self, who: str, what: str) -> None:
        """Note an event."""
        elapsed_ns = self._timeline.now_ns - self._began_ns
        line = f"{elapsed_ns // NS_PER_MS / 1000:10.3f}  {who:<6} {what}"
        self._hash.update(b"%d %s\n" % (elapsed_ns, line.encode()))
        self.tail.append(line)
        if self._sink is not None:
            self._sink(line)

    @property
    def digest(self) -> str:
        """The same for two runs only if the same happened in both, at the same times."""
        return self._hash.hexdigest()
