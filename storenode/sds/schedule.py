"""The clock of a channel, and the schedules of sync messages and of the Bloom filter.

The Lamport clock, in milliseconds, follows the time, and never goes back. A received clock takes
ours along only as far as ``max_ahead_ms`` past the time: without a bound, one message with the
largest clock would leave no room for any other.

Timers must continue when the clock is set back. They count in *running* time, which continues
from where it was with the time as it is now; it is `set_back_ms` ahead of the time.

A sync message is sent after a silence of the channel whose length is drawn again each time; the
participant with the shortest one speaks for all. While only sync messages are sent, which bring
nothing new, each silence is 16 times as long as the one before, up to a bound. In a channel that is
never silent, a participant that only listens would never acknowledge anything, nor would others
learn what it lacks. So a sync message is also sent when messages that were delivered here have not
been named by another's history for long, and when for very long neither the participant itself nor
another one has named all that it could name.

Histories show what a participant has (`storenode.sds.log`), so the filter, most of a message,
is needed only where they do not suffice. It is sent

- with every n-th message of content;
- with the next message after something that histories do not repair: a cause was given up, so that
  what led to it is unknown; a restart; too many heads;
- with a sync message, if none was sent for long. One is enough for all: its receivers search for
  what it shows, and name what it lacks, which all others receive.

Source: SDS, "Participant state", "Deliver message" and "Periodic sync message".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from storenode.sds.codec import Entry
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_CLOCK, MAX_OWED_IDS
from storenode.sds.log import Rng

_RARER: Final = 16


class Clock:
    """``value`` is the Lamport timestamp of the latest message sent or delivered."""

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


class SyncTimer:
    """Times are in milliseconds. Random values are None before the draw.

    ``silence`` is that of the channel after which we speak, and ``rarer`` by what it is prolonged;
    ``limits`` are how long we may owe an acknowledgement, and how long we may be silent since
    ``named_ms``, when our heads were last named.
    """

    def __init__(self, now_ms: int, config: ChannelConfig) -> None:
        self._config = config
        self.active_ms = now_ms
        self.spoke_ms = now_ms
        self.named_ms = now_ms
        self.owed: dict[str, int] = {}
        self.silence: float | None = None
        self.limits: tuple[float, float] | None = None
        self.rarer = 1.0

    def active(self, now_ms: int) -> None:
        """Record a broadcast of any kind."""
        self.active_ms = now_ms
        self.silence = None

    def received(self, now_ms: int, *, news: bool) -> None:
        """Record another's message; one without news makes sync messages rarer."""
        self.active(now_ms)
        if not news:
            self.named_ms = now_ms
            self.limits = None
        self.rarer = 1.0 if news else self._rarest(self.rarer * _RARER)

    def named(self, now_ms: int) -> None:
        """Record a sync message that named all heads: ours is not needed."""
        self.named_ms = now_ms
        self.silence = self.limits = None
        self.rarer = max(self.rarer, self._rarest(_RARER))

    def spoke(self, now_ms: int, history: Iterable[Entry] | None, *, news: bool) -> None:
        """Record an own message, which acknowledges what it names; None: all messages."""
        self.received(now_ms, news=news)
        if news:
            # What is left to be said of it is for others to say: that they have it.
            self.rarer = self._rarest(_RARER)
        self.spoke_ms = now_ms
        if history is None:
            self.owed.clear()
        for entry in history or ():
            self.owed.pop(entry.message_id, None)
        self.limits = None

    def delivered(self, message_id: str, now_ms: int, *, again: bool = False) -> None:
        """Record a delivered message, which no other participant has acknowledged yet.

        One that is sent ``again`` is waited for: it is answered like what is new.
        """
        if again:
            self.rarer, self.silence = 1.0, None
        if len(self.owed) < MAX_OWED_IDS:
            self.owed.setdefault(message_id, now_ms)

    def due_ms(self, rng: Rng) -> float:
        """Return when a sync message is due, if nothing happens until then."""
        config = self._config
        if self.silence is None:
            self.silence = self.rarer * rng.uniform(config.sync_min_ms, config.sync_max_ms)
        if self.limits is None:
            owing, longest = config.sync_owed_ms, config.sync_at_least_ms
            self.limits = rng.uniform(owing / 2, owing), rng.uniform(longest / 2, longest)
        owing_ms, longest_ms = self.limits
        named_ms = max(self.spoke_ms, self.named_ms)
        due = min(self.active_ms + self.silence, named_ms + longest_ms)
        if self.owed:
            due = min(due, next(iter(self.owed.values())) + owing_ms)
        return due

    def _rarest(self, rarer: float) -> float:
        return min(rarer, max(self._config.sync_at_least_ms / self._config.sync_max_ms, 1.0))


class FilterSchedule:
    """Decides for each message; ``due`` asks for the filter with the next one.

    ``every_ms`` is the longest time without a filter in the channel, and ``last_ms`` when there
    was one, in running time.
    """

    def __init__(self, every: int, every_ms: int, now_ms: int) -> None:
        self._every = every
        self._every_ms = every_ms
        self.due = False
        self.last_ms = now_ms

    def content(self, number: int) -> bool:
        """Return True if a message of content carries it, the ``number``-th message in all."""
        return self.due or number % self._every == 0

    def sync(self, now_ms: int, *, wanted: bool) -> bool:
        """Return True if a sync message carries it, where it need not be ``wanted``."""
        return wanted or self.due or now_ms - self.last_ms >= self._every_ms

    def sent(self, now_ms: int) -> None:
        """Record that an own message carried it."""
        self.due, self.last_ms = False, now_ms
