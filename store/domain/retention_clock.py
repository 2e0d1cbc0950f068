"""The time that retention goes by: the clock's, unless the clock has leapt forward.

What is dropped does not come back, and a clock that is a year ahead for a minute must not drop a
year. So the clock is compared with the time that has passed since it was last believed. Rules:

1. Where it shows no more than that, with `TOLERANCE_NS`, it is believed; also when it was set back,
   since that keeps messages for longer.
2. Else it has leapt. Time goes on from where it was, until the clock has been steady for as long as
   it leapt over, or for `MAX_DOUBT_NS`. Then it is believed: a node that was off, or a machine that
   slept, has leapt as well.
3. What a starting node compares with is the newest commit, which shows that the clock was there.

Publishing and queries go by the clock itself, which is wrong no longer than it is wrong.
"""

from dataclasses import dataclass
from typing import Final

from store.domain.partitioning import DAY_NS
from storenode.message.limits import NS_PER_S

TOLERANCE_NS: Final = 60 * NS_PER_S
MAX_DOUBT_NS: Final = DAY_NS


@dataclass(frozen=True, slots=True)
class Reading:
    """The time to go by, and by how much the clock is ahead of it; all in nanoseconds."""

    time_ns: int
    ahead_ns: int = 0

    @property
    def doubted(self) -> bool:
        """True while the clock is not believed."""
        return self.ahead_ns > 0


class RetentionClock:
    """Reads a clock with caution; ``steady_ns`` is of a clock that nobody sets."""

    def __init__(self, witness_ns: int, steady_ns: int) -> None:
        """``witness_ns``: a time that has certainly been reached."""
        self._believed_ns = witness_ns
        self._at_ns = steady_ns
        self._doubted_since_ns: int | None = None

    def read(self, clock_ns: int, steady_ns: int) -> Reading:
        """What time it is when the clock shows ``clock_ns``."""
        expected_ns = self._believed_ns + (steady_ns - self._at_ns)
        ahead_ns = clock_ns - expected_ns
        if ahead_ns > TOLERANCE_NS and not self._settled(ahead_ns, steady_ns):
            return self._note(expected_ns, steady_ns, ahead_ns)
        self._doubted_since_ns = None
        return self._note(clock_ns, steady_ns, 0)

    def _settled(self, ahead_ns: int, steady_ns: int) -> bool:
        if self._doubted_since_ns is None:
            self._doubted_since_ns = steady_ns
        return steady_ns - self._doubted_since_ns >= min(ahead_ns, MAX_DOUBT_NS)

    def _note(self, time_ns: int, steady_ns: int, ahead_ns: int) -> Reading:
        self._believed_ns, self._at_ns = time_ns, steady_ns
        return Reading(time_ns, ahead_ns)
