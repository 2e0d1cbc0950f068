"""The Lamport clock of a channel, in milliseconds: it follows the time, and never goes back.

A received clock takes ours along only as far as ``max_ahead_ms`` past the time: without a bound,
one message with the largest clock would leave no room for any other.

Timers must go on when the clock is set back. They count in *running* time, which goes on
from where it was with the time as it is now; it is `set_back_ms` ahead of the time.

Source: SDS, "Participant state" and "Deliver message", in the newest revision.
"""

from storenode.sds.limits import MAX_CLOCK


class Clock:
    """``value`` is the Lamport timestamp of the latest message sent or delivered."""

    __slots__ = ("latest_ms", "max_ahead_ms", "set_back_ms", "value")

    def __init__(self, now_ms: int, max_ahead_ms: int) -> None:
        self.value = now_ms
        self.max_ahead_ms = max_ahead_ms
        self.latest_ms = now_ms
        self.set_back_ms = 0

    def running_ms(self, now_ms: int) -> int:
        """Return the running time at a time."""
        running_ms = now_ms + self.set_back_ms
        if running_ms < self.latest_ms:
            self.set_back_ms += self.latest_ms - running_ms
            return self.latest_ms
        self.latest_ms = running_ms
        return running_ms

    def unix_ms(self, running_ms: int) -> int:
        """Return the time of a running time."""
        return running_ms - self.set_back_ms

    def tick(self, now_ms: int) -> int:
        """Return the timestamp of the next message: the time, or one more than the last.

        Raises:
            OverflowError: it does not fit 64 unsigned bits.
        """
        following = max(now_ms, self.value + 1)
        if following > MAX_CLOCK:
            raise OverflowError(f"the clock of this channel is past {MAX_CLOCK}")
        self.value = following
        return following

    def adopt(self, lamport: int, now_ms: int) -> bool:
        """Update the clock by a delivered message's; return False if that is too far ahead."""
        allowed = min(lamport, now_ms + self.max_ahead_ms)
        self.value = max(self.value, allowed)
        return allowed == lamport or lamport <= self.value
