"""What happened in a run: a digest of all of it, its last lines, and every line if wanted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from sim.limits import NS_PER_MS, TRACE_TAIL_LINES


class Trace:
    """Notes, each with nanoseconds since the run began; ``sink`` is given every line."""

    def __init__(self, sink: Callable[[str], None] | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=TRACE_TAIL_LINES)
        self._sink = sink
        self._hash = blake2b(digest_size=16)

    def note(self, elapsed_ns: int, who: str, what: str) -> None:
        """Something happened."""
        line = f"{elapsed_ns // NS_PER_MS / 1000:10.3f}  {who:<6} {what}"
        self._hash.update(b"%d %s\n" % (elapsed_ns, line.encode()))
        self.tail.append(line)
        if self._sink is not None:
            self._sink(line)

    @property
    def digest(self) -> str:
        """The same for two runs only if the same happened in both, at the same times."""
        return self._hash.hexdigest()
