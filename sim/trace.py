"""What happened in a run: a digest of all of it, its last lines, and every line if wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from sim.limits import NS_PER_MS, TRACE_TAIL_LINES
from sim.timeline import Timeline


class Trace:
    """Notes, each with its time; ``sink`` is given every line."""

    def __init__(self, timeline: Timeline, sink: Callable[[str], None] | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=TRACE_TAIL_LINES)
        self.lines = 0
        self._timeline = timeline
        self._began_ns = timeline.now_ns
        self._sink = sink
        self._hash = blake2b(digest_size=16)

    def note(self, who: str, what: str) -> None:
        """Something happened."""
        elapsed_ns = self._timeline.now_ns - self._began_ns
        line = f"{elapsed_ns // NS_PER_MS / 1000:10.3f}  {who:<6} {what}"
        self._hash.update(b"%d %s\n" % (elapsed_ns, line.encode()))
        self.tail.append(line)
        self.lines += 1
        if self._sink is not None:
            self._sink(line)

    @property
    def digest(self) -> str:
        """The same for two runs only if the same happened in both, at the same times."""
        return self._hash.hexdigest()
