"""When a sync message is sent.

It is sent after a silence of the channel whose length is drawn anew each time; whoever drew the
shortest speaks for all. While nothing but sync messages is sent, which tell nothing new, each
silence is 16 times as long as the one before, up to a bound. In a channel that is never silent,
a participant that only listens would never acknowledge anything, nor would others learn what it
lacks. So one is also sent when messages that were delivered here have long gone without anybody
else's history naming them, and when for very long neither the participant itself nor anybody else
has named all that it could name.

Source: SDS, "Periodic sync message".
"""

from collections.abc import Iterable
from typing import Final

from storenode.sds.chance import Chance
from storenode.sds.codec import Entry
from storenode.sds.config import ChannelConfig
from storenode.sds.limits import MAX_OWED_IDS

_RARER: Final = 16


class Pace:
    """Times are in milliseconds. What is drawn is None before the draw.

    ``silence`` is that of the channel after which we speak, and ``rarer`` by what it is prolonged;
    ``limits`` are how long we may owe an acknowledgement, and how long we may be silent since
    ``named_ms``, when somebody last named what we would.
    """

    __slots__ = (
        "_config",
        "active_ms",
        "limits",
        "named_ms",
        "owed",
        "rarer",
        "silence",
        "spoke_ms",
    )

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
        """Something is broadcast."""
        self.active_ms = now_ms
        self.silence = None

    def heard(self, now_ms: int, *, news: bool) -> None:
        """A message was broadcast; one without news makes sync messages rarer."""
        self.active(now_ms)
        if not news:
            self.named_ms = now_ms
            self.limits = None
        self.rarer = 1.0 if news else self._rarest(self.rarer * _RARER)

    def named(self, now_ms: int) -> None:
        """A sync message that has waited named all that we have by now: we need not say it."""
        self.named_ms = now_ms
        self.silence = self.limits = None
        self.rarer = max(self.rarer, self._rarest(_RARER))

    def spoke(self, now_ms: int, history: Iterable[Entry] | None, *, news: bool) -> None:
        """We have broadcast, which acknowledges what it names; None: all that was delivered."""
        self.heard(now_ms, news=news)
        if news:
            # What is left to be said of it is for others to say: that they have it.
            self.rarer = self._rarest(_RARER)
        self.spoke_ms = now_ms
        if history is None:
            self.owed.clear()
        for entry in history or ():
            self.owed.pop(entry.message_id, None)
        self.limits = None

    def repeats(self) -> bool:
        """Whether the last that was broadcast has said all that we could say."""
        return self.rarer > 1 and not self.owed

    def delivered(self, message_id: str, now_ms: int, *, again: bool = False) -> None:
        """A message of somebody else was delivered, and nobody has acknowledged it yet.

        One that is sent ``again`` is waited for: it is answered like what is new.
        """
        if again:
            self.rarer, self.silence = 1.0, None
        if len(self.owed) < MAX_OWED_IDS:
            self.owed.setdefault(message_id, now_ms)

    def acknowledged(self, message_id: str) -> None:
        """Somebody else's history names a message."""
        self.owed.pop(message_id, None)

    def due_ms(self, chance: Chance) -> float:
        """When a sync message is due, if nothing happens until then."""
        config = self._config
        if self.silence is None:
            self.silence = self.rarer * chance.uniform(config.sync_min_ms, config.sync_max_ms)
        if self.limits is None:
            owing, longest = config.sync_owed_ms, config.sync_at_least_ms
            self.limits = chance.uniform(owing / 2, owing), chance.uniform(longest / 2, longest)
        owing_ms, longest_ms = self.limits
        named_ms = max(self.spoke_ms, self.named_ms)
        due = min(self.active_ms + self.silence, named_ms + longest_ms)
        if self.owed:
            due = min(due, next(iter(self.owed.values())) + owing_ms)
        return due

    def _rarest(self, rarer: float) -> float:
        """So much rarer, within the longest silence."""
        return min(rarer, max(self._config.sync_at_least_ms / self._config.sync_max_ms, 1.0))
