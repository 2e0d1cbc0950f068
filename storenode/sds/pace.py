"""When a sync message is sent.

It is sent after a silence of the channel whose length is drawn anew each time; whoever drew the
shortest speaks for all. In a channel that is never silent, a participant that only listens would
never acknowledge anything, nor would others see in its filter what it lacks. So one is also sent
when messages that were delivered here have long gone without anybody else's history naming them,
and when the participant itself has been silent for very long.

Source: SDS, "Periodic sync message".
"""

from storenode.sds.chance import Chance
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_OWED_IDS


class Pace:
    """Times are in milliseconds. What is drawn is None before the draw.

    ``silence`` is that of the channel after which we speak; ``limits`` are how long we may owe
    an acknowledgement, and how long we may be silent.
    """

    __slots__ = ("_config", "active_ms", "limits", "owed", "silence", "spoke_ms")

    def __init__(self, now_ms: int, config: ChannelConfig) -> None:
        self._config = config
        self.active_ms = now_ms
        self.spoke_ms = now_ms
        self.owed: dict[str, int] = {}
        self.silence: float | None = None
        self.limits: tuple[float, float] | None = None

    def heard(self, now_ms: int) -> None:
        """Somebody has broadcast."""
        self.active_ms = now_ms
        self.silence = None

    def spoke(self, now_ms: int) -> None:
        """We have broadcast, which acknowledges all that was delivered."""
        self.heard(now_ms)
        self.spoke_ms = now_ms
        self.owed.clear()
        self.limits = None

    def delivered(self, message_id: str, now_ms: int) -> None:
        """A message of somebody else was delivered, and nobody has acknowledged it yet."""
        if len(self.owed) < MAX_OWED_IDS:
            self.owed[message_id] = now_ms

    def acknowledged(self, message_id: str) -> None:
        """Somebody else's history names a message."""
        self.owed.pop(message_id, None)

    def due_ms(self, chance: Chance) -> float:
        """When a sync message is due, if nothing happens until then."""
        config = self._config
        if self.silence is None:
            self.silence = chance.uniform(config.sync_min_ms, config.sync_max_ms)
        if self.limits is None:
            owing, longest = config.sync_owed_ms, config.sync_at_least_ms
            self.limits = chance.uniform(owing / 2, owing), chance.uniform(longest / 2, longest)
        owing_ms, longest_ms = self.limits
        due = min(self.active_ms + self.silence, self.spoke_ms + longest_ms)
        if self.owed:
            due = min(due, next(iter(self.owed.values())) + owing_ms)
        return due
