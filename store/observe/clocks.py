"""Comparison of this node's clock with those of its database, its peers and its publishers."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

from store.observe.logging import get_logger
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import NS_PER_S

_LOG = get_logger("store.observe.clocks")

MAX_CLOCKS: Final = 64
MAX_PUBLISHERS: Final = 1_024
SAMPLES: Final = 2
"""Samples of one clock, of which the least delayed counts: a delay makes a clock look late."""

SAMPLE_AGE_NS: Final = 2 * 3_600 * NS_PER_S
"""Older samples are ignored: the clock may have been set meanwhile."""

PUBLISHERS_AGE_NS: Final = 300 * NS_PER_S
FEWEST_PUBLISHERS: Final = 3
"""The timestamps of fewer publishers say nothing about this node's clock."""

DEFAULT_LIMIT_NS: Final = 60 * NS_PER_S
_TIME: Final = re.compile(r"[0-9]{1,19}")


def parse_time(text: str | None) -> int | None:
    """Return the Unix nanoseconds that a peer sent; None if it sent none that can be read."""
    return int(text) if text is not None and _TIME.fullmatch(text) else None


_Samples: TypeAlias = deque[tuple[int, int]]
"""Samples of one clock, each its time at a reading of the steady clock."""


class ClockComparison:
    """The clocks of others, relative to this node's.

    Attributes:
        limit_ns: A difference beyond half of ``--max-clock-drift`` is a problem.
    """

    def __init__(
        self,
        max_drift_ns: int | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.limit_ns = DEFAULT_LIMIT_NS if max_drift_ns is None else max_drift_ns // 2
        self._now_ns = now_ns
        self._steady_ns = steady_ns
        self._clocks = BoundedDict[str, _Samples](MAX_CLOCKS)
        self._off = set[str]()
        self._publishers = BoundedDict[str, tuple[int, bool]](MAX_PUBLISHERS)

    def note(self, name: str, time_ns: int | None, delay_ns: int = 0) -> None:
        """Note what another clock showed, so long ago; None: it is not known."""
        if time_ns is None:
            return
        samples = self._clocks.pop(name, None) or _Samples(maxlen=SAMPLES)
        self._clocks[name] = samples
        samples.append((time_ns + delay_ns, self._steady_ns()))
        offset_ns = self._offset_ns(samples)
        is_off = offset_ns is not None and abs(offset_ns) > self.limit_ns
        if is_off != (name in self._off):
            self._off = (self._off ^ {name}) & self._clocks.keys()
            write = _LOG.warning if is_off else _LOG.info
            offset_s = round((offset_ns or 0) / NS_PER_S, 1)
            write("clock_differs" if is_off else "clock_agrees", other=name, ahead_s=offset_s)

    def note_publisher(self, client: str, *, in_time: bool) -> None:
        """Note whether the timestamps of a client's latest request were near this node's clock."""
        self._publishers.pop(client, None)
        self._publishers[client] = self._steady_ns(), in_time

    def offsets_s(self) -> dict[str, float]:
        """Return by how many seconds each other clock is ahead of this node's now."""
        found = {name: self._offset_ns(samples) for name, samples in self._clocks.items()}
        return {name: ns / NS_PER_S for name, ns in found.items() if ns is not None}

    def refused_publishers(self) -> float:
        """Return the share of recent publishers whose timestamps were refused; 0: too few."""
        since_ns = self._steady_ns() - PUBLISHERS_AGE_NS
        recent = [in_time for at_ns, in_time in self._publishers.values() if at_ns >= since_ns]
        return recent.count(False) / len(recent) if len(recent) >= FEWEST_PUBLISHERS else 0.0

    def _offset_ns(self, samples: _Samples) -> int | None:
        steady_ns = self._steady_ns()
        ahead = [
            time_ns + steady_ns - at_ns
            for time_ns, at_ns in samples
            if steady_ns - at_ns <= SAMPLE_AGE_NS
        ]
        return max(ahead) - self._now_ns() if ahead else None
